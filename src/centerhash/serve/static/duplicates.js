// Photos that are there more than once, in groups. One of each is kept, by a rule or by a click; the others can be moved.

import { staying } from "./adding.js";
import { forgetAnswers, getJson, moveDuplicates, undoDuplicates } from "./api.js";
import { $, button, drawError, element, number, photos } from "./dom.js";
import { keepingPlace, tile } from "./tiles.js";
import { withToken } from "./token.js";

const POLL = 700; // milliseconds between two looks at work that goes on
const TITLES = { near: "Probably the same photo", same: "Equal files", similar: "Photos that look alike" };

const chosen = new Set(); // files that were chosen to be kept by a click

// `again` draws everything anew, after files were moved. `quiet`: old groups stay until the new ones are known.
export async function showDuplicates(actions, signal, again, quiet) {
  $("found-title").textContent = "Duplicates";
  if (!quiet) $("groups").replaceChildren();
  let answer = await getJson("duplicates", signal);
  while (!answer.groups) {
    const { done, total } = answer;
    $("status").textContent = total ? `Comparing photos: ${number(done)} of ${number(total)}` : "Comparing photos";
    await new Promise((next) => setTimeout(next, POLL));
    signal.throwIfAborted();
    answer = await getJson("duplicates", signal);
  }
  signal.throwIfAborted();
  answer.groups = answer.groups.map((group) => ({ ...group, items: staying(group.items) })).filter((group) => group.items.length > 1);
  const count = answer.groups.length;
  $("status").textContent = count ? `${number(count)} ${count === 1 ? "group" : "groups"} among ${photos(answer.images)}` : `No two of ${photos(answer.images)} are the same.`;
  const kinds = ["same", "near", "similar"].flatMap((kind) => section(kind, answer, actions, again));
  keepingPlace(() => $("groups").replaceChildren(...tools(answer, again), ...kinds));
  return answer.groups.flatMap((group) => group.items);
}

// What takes the last move back.
function tools({ movable, undo }, again) {
  if (!movable) return [];
  const back = button("button plain", `Move ${number(undo)} back`, () => act(undoDuplicates, again));
  back.id = "duplicates-undo";
  back.hidden = !undo;
  return [element("p", "tools", back)];
}

function section(kind, answer, actions, again) {
  const own = answer.groups.filter((group) => group.kind === kind);
  if (!own.length) return [];
  return [element("h2", "", TITLES[kind]), ...own.map((group) => drawGroup(group, answer.movable, actions, again))];
}

function drawGroup(group, movable, actions, again) {
  let kept = (group.items.find((item) => chosen.has(item.file)) ?? group.items[0]).file;
  const rows = new Map(group.items.map((item) => [item.file, card(item, actions, () => {
    for (const other of group.items) chosen.delete(other.file);
    chosen.add(item.file);
    choose(item.file);
  })]));
  const why = element("p", "hint why");
  const move = button("button plain move", `Move the other ${number(group.items.length - 1)}`, () => {
    const others = group.items.map((item) => item.file).filter((file) => file !== kept);
    return act((token) => moveDuplicates({ keep: kept, others }, token), again);
  });
  function choose(file) {
    kept = file;
    for (const [name, row] of rows) {
      row.classList.toggle("kept", name === kept);
      row.querySelector(".keep").setAttribute("aria-pressed", String(name === kept));
    }
    why.textContent = kept === group.items[0].file ? `Kept because of: ${group.rule}` : "Kept because you chose it";
  }
  choose(kept);
  return element("section", "group", element("ol", "grid", ...rows.values()), element("p", "actions", why, ...(movable ? [move] : [])));
}

function card(item, actions, keep) {
  const row = tile(item, actions);
  const facts = [item.width ? `${item.width} × ${item.height}` : "", item.bytes ? sizeText(item.bytes) : "", item.change ?? ""];
  row.querySelector(".caption").replaceWith(element("div", "about-file",
    element("b", "", item.path ?? item.id), element("span", "", item.folder ?? ""), element("span", "", facts.filter(Boolean).join(", ")),
    button("chip keep", "Keep", keep)));
  return row;
}

const sizeText = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

async function act(request, again) {
  try {
    const moved = await withToken(request);
    if (!moved) return;
    const { skipped } = moved;
    drawError(skipped ? `${photos(skipped)} ${skipped === 1 ? "stays" : "stay"} where ${skipped === 1 ? "it is" : "they are"}.` : "", skipped ? "Files that have changed, are links, or are gone are not moved. Load the page again." : "");
    if (moved.photos) forgetAnswers();
    await again();
  } catch (error) {
    drawError("The photos were not moved.", error.message);
  }
}
