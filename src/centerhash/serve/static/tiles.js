// Photos in justified rows: each keeps its shape, which is known before it is loaded; CSS fills the rows.

import { thumbnail } from "./api.js";
import { $, button, element } from "./dom.js";
import { heading, monthOf } from "./dates.js";
import { bitsText, nearness } from "./words.js";

const CHIPS = 3;
const WIDEST = 2.4;
const NARROWEST = 0.55; // shapes beyond these are cut
const KEPT = 400;

const tiles = new Map(); // of results, by id: a photo that stays is not loaded again

// Changes the grid without moving what one looks at: the first photo on the screen stays where it is, unless it is the top.
export function keepingPlace(draw) {
  const first = scrollY > 0 ? [...document.querySelectorAll("#grid li[data-id], #groups li[data-id]")].find((row) => row.getBoundingClientRect().bottom > 0) : undefined;
  const before = first?.getBoundingClientRect().top;
  draw();
  const again = first && document.querySelector(placed(first.dataset.id));
  if (again) scrollBy({ top: again.getBoundingClientRect().top - before, behavior: "instant" });
}

// Search results, with words below; `context` is { state, bits, asked }.
export function drawResults(results, context, actions) {
  const rows = results.map((result) => {
    if (!tiles.has(result.id)) tiles.set(result.id, tile(result, actions));
    const row = tiles.get(result.id);
    row.querySelector(".caption").replaceChildren(...caption(result, context, actions));
    return row;
  });
  $("grid").className = "grid results";
  $("grid").replaceChildren(...rows);
  for (const [id, row] of tiles) if (tiles.size > KEPT && !row.isConnected) tiles.delete(id);
}

// More of the collection, without words, under a heading for each month.
export function appendItems(items, actions, kept = new Map()) {
  $("grid").className = "grid wall";
  let last = $("grid").lastElementChild?.dataset.month;
  for (const item of items) {
    const month = monthOf(item);
    if (month !== last) $("grid").append(...heading(item, last === undefined));
    const row = kept.get(item.id) ?? tile(item, actions);
    row.dataset.month = last = month;
    $("grid").append(row);
  }
}

// The same part of the collection once more: photos that stay are not loaded again.
export function redrawItems(items, actions) {
  const kept = new Map([...$("grid").querySelectorAll("li[data-id]")].map((row) => [row.dataset.id, row]));
  clearTiles();
  appendItems(items, actions, kept);
}

export function clearTiles() {
  $("grid").replaceChildren();
}

const placed = (id) => ["grid", "groups"].map((place) => `#${place} [data-id="${CSS.escape(id)}"]`).join(", ");

export function tile(item, { open }) {
  const title = item.path ?? item.id;
  const frame = element("span", "frame");
  frame.append(item.path === null ? element("span", "blank", title) : picture(item, title, frame));
  const opener = button("result", frame, () => open(item.id));
  opener.title = title;
  opener.setAttribute("aria-label", item.labels.length ? `${title}: ${item.labels.join(", ")}` : title);
  const row = element("li", "", opener, element("span", "caption"));
  row.dataset.id = item.id;
  row.style.setProperty("--shape", shapeOf(item));
  return row;
}

const shapeOf = ({ width, height }) => (width && height ? Math.min(WIDEST, Math.max(NARROWEST, width / height)) : 1).toFixed(4);

function picture(item, title, frame) {
  const image = element("img");
  Object.assign(image, { decoding: "async", loading: "lazy", alt: "", src: thumbnail(item.id) });
  image.addEventListener("error", () => frame.replaceChildren(element("span", "blank", title)));
  return image;
}

function caption(result, { state, bits, asked }, { chip }) {
  const far = element("span", "far", nearness(result, state, bits));
  far.title = bitsText(result, bits);
  const first = [...result.labels].sort((a, b) => asked.has(b) - asked.has(a));
  const chips = first.slice(0, CHIPS).map((label) => button(asked.has(label) ? "chip asked" : "chip", label, () => chip(label)));
  for (const made of chips) made.title = `Only photos with ${made.textContent}`;
  if (first.length > CHIPS) {
    const rest = element("span", "chip rest", `+${first.length - CHIPS}`);
    rest.title = first.slice(CHIPS).join(", ");
    chips.push(rest);
  }
  return [far, element("span", "chips", ...chips)];
}

// Arrow keys walk through the photos as they stand on the screen.
export function walkTiles(event) {
  const all = [...$("grid").querySelectorAll(".result")];
  const at = all.indexOf(document.activeElement);
  if (at < 0) return;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key] ?? vertical(all, at, event.key);
  if (to === undefined || !all[to]) return;
  event.preventDefault();
  all[to].focus();
}

// The nearest one in the row above or below.
function vertical(all, at, key) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[key];
  if (!step) return undefined;
  const here = all[at].getBoundingClientRect();
  const middle = (box) => box.left + box.width / 2;
  let best;
  let row;
  for (let to = at + step; all[to]; to += step) {
    const box = all[to].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < 5) continue;
    row ??= box.top;
    if (Math.abs(box.top - row) > 5) break;
    const away = Math.abs(middle(box) - middle(here));
    if (!best || away < best.away) best = { to, away };
  }
  return best?.to;
}
