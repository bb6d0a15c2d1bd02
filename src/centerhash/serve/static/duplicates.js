// Photos that are there more than once, in groups; the first of each is the one to keep.

import { getJson } from "./api.js";
import { $, element, number } from "./dom.js";
import { tile } from "./tiles.js";

const POLL = 700; // milliseconds between two looks at work that goes on
const TITLES = { near: "Probably the same photo", same: "Equal files", similar: "Photos that look alike" };

export async function showDuplicates(actions, signal) {
  $("found-title").textContent = "Duplicates";
  $("groups").replaceChildren();
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
  $("status").textContent = count ? `${number(count)} groups among ${number(answer.images)} photos; the first of each has the most pixels` : `No two of ${number(answer.images)} photos are the same.`;
  $("groups").replaceChildren(...["same", "near", "similar"].flatMap((kind) => section(kind, answer.groups, actions)));
  return answer.groups.flatMap((group) => group.items);
}

function section(kind, groups, actions) {
  const own = groups.filter((group) => group.kind === kind);
  if (!own.length) return [];
  return [element("h2", "", TITLES[kind]), ...own.map((group) => element("ol", "grid group", ...group.items.map((item) => {
    const row = tile(item, actions);
    row.querySelector(".caption").append(element("span", "far", item.width ? `${item.width} × ${item.height}` : ""));
    return row;
  })))];
}
