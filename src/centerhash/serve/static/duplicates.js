// Photos that are there more than once, in groups, the largest file first.

import { getJson } from "./api.js";
import { $, element, number, photos } from "./dom.js";
import { keepingPlace, tile } from "./tiles.js";

const POLL = 700; // milliseconds between two looks at work that goes on
const TITLES = { near: "Probably the same photo", same: "Equal files", similar: "Photos that look alike" };

// `quiet`: old groups stay until the new ones are known.
export async function showDuplicates(actions, signal, quiet) {
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
  const count = answer.groups.length;
  $("status").textContent = count ? `${number(count)} ${count === 1 ? "group" : "groups"} among ${photos(answer.images)}` : `No two of ${photos(answer.images)} are the same.`;
  keepingPlace(() => $("groups").replaceChildren(...["same", "near", "similar"].flatMap((kind) => section(kind, answer, actions))));
  return answer.groups.flatMap((group) => group.items);
}

function section(kind, answer, actions) {
  const groups = answer.groups.filter((group) => group.kind === kind);
  if (!groups.length) return [];
  const rows = groups.map((group) => element("section", "group", element("ol", "grid", ...group.items.map((item) => card(item, actions)))));
  return [element("h2", "", TITLES[kind]), ...rows];
}

function card(item, actions) {
  const row = tile(item, actions);
  const facts = [item.width ? `${item.width} × ${item.height}` : "", item.bytes ? sizeText(item.bytes) : "", item.change ?? ""];
  row.querySelector(".caption").replaceWith(element("div", "about-file",
    element("b", "", item.path ?? item.id), element("span", "", item.folder ?? ""), element("span", "", facts.filter(Boolean).join(", "))));
  return row;
}

const sizeText = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
