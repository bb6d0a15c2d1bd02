// The whole collection, page by page as one scrolls; what was loaded once stays, so that going back finds it.

import { getJson } from "./api.js";
import { $ } from "./dom.js";
import { appendItems, clearTiles, keepingPlace, redrawItems } from "./tiles.js";

const AT_ONCE = 120; // photos per request
const MOST = 1000; // that a request may ask for
const AHEAD = "1600px"; // how far below the screen the next ones are fetched

export function makeWall(actions) {
  const wall = { items: [], more, show, again, hasMore, forget };
  let query; // whose photos these are
  let total = 0;
  let offset = 0;
  let loading;
  let signal;
  const seen = new Set(); // photos that are added meanwhile move the others: none is shown twice
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && $("grid").classList.contains("wall")) more();
  }, { rootMargin: AHEAD });
  watcher.observe(document.querySelector(".more"));

  async function show(asked, stop) {
    signal = stop;
    clearTiles();
    if (asked !== query) {
      forget();
      query = asked;
      await more(true);
    } else {
      appendItems(wall.items, actions);
    }
    return total;
  }

  // As many photos as are on the page, as they are now; what is on the screen stays in its place.
  async function again(asked, stop) {
    if (asked !== query || !wall.items.length) return show(asked, stop);
    signal = stop;
    await loading;
    const [wanted, fresh] = [Math.max(offset, AT_ONCE), new Map()];
    let answer;
    for (let at = 0; at < wanted; at += MOST) {
      answer = await getJson(`items?offset=${at}&limit=${Math.min(MOST, wanted - at)}${asked ? `&${asked}` : ""}`, stop);
      if (asked !== query || stop.aborted) return total;
      for (const item of answer.items) fresh.set(item.id, item);
    }
    [total, offset] = [answer.total, wanted];
    seen.clear();
    for (const id of fresh.keys()) seen.add(id);
    wall.items.splice(0, wall.items.length, ...fresh.values());
    keepingPlace(() => redrawItems(wall.items, actions));
    return total;
  }

  function hasMore() {
    return offset < total;
  }

  async function more(first = false) {
    if (!first && !hasMore()) return undefined;
    loading ??= load().finally(() => { loading = undefined; });
    return loading;
  }

  async function load() {
    const asked = query;
    const answer = await getJson(`items?offset=${offset}&limit=${AT_ONCE}${asked ? `&${asked}` : ""}`);
    if (asked !== query || signal.aborted) return;
    total = answer.total;
    offset += AT_ONCE;
    const fresh = answer.items.filter((item) => !seen.has(item.id));
    for (const item of fresh) seen.add(item.id);
    wall.items.push(...fresh);
    appendItems(fresh, actions);
    watcher.unobserve(document.querySelector(".more")); // looked at again: it may still be near
    watcher.observe(document.querySelector(".more"));
  }

  function forget() {
    query = undefined;
    loading = undefined;
    [total, offset] = [0, 0];
    wall.items.length = 0;
    seen.clear();
  }

  return wall;
}
