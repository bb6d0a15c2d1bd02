// A box with suggestions as one types: the combobox pattern of the ARIA guide.

import { element, number } from "./dom.js";

let boxes = 0;
const MOST = 60;

// `choices()` gives [{ text, words, count, note }]; `pick(choice)` is called with the one chosen. In a box of `several`,
// the last words are completed, and `pick` gets the whole text. Enter takes a suggestion only if it was walked to, or if
// a box of one holds exactly its text. `refresh()`, called when the list opens, may bring other choices; an Enter that
// comes before them waits for them.
export function makeCombo(place, { title, placeholder = title, choices, pick, several = false, refresh }) {
  const id = `combo-${boxes++}`;
  const input = element("input");
  Object.assign(input, { type: "text", placeholder, autocomplete: "off", spellcheck: false, enterKeyHint: "search" });
  const list = element("ul");
  list.id = id;
  list.hidden = true;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", title);
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-label": title, "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id,
  })) input.setAttribute(name, value);
  place.replaceChildren(input, list);
  let shown = [];
  let active = -1;
  let refreshing;

  let start = ""; // what stands before the words that are completed

  const ranked = (typed) => choices().map((row) => ({ row, rank: rankOf(row, typed) })).filter(({ rank }) => rank < 4)
    .sort((a, b) => a.rank - b.rank || b.row.count - a.row.count).slice(0, MOST);

  // The longest end of the text that begins some choice: "dog and traf" completes "traf".
  function lastWords() {
    const text = input.value;
    for (const { index } of text.matchAll(/[^\s,]+/g)) {
      if (text.includes(",", index)) continue;
      const found = ranked(text.slice(index).trim().toLowerCase()).filter(({ rank }) => rank < 3);
      if (found.length) return [text.slice(0, index), found];
    }
    return [text, []];
  }

  function open() {
    const typed = input.value.trim().toLowerCase();
    if (several && !typed) return close();
    const [before, fitting] = several ? lastWords() : ["", ranked(typed)];
    start = before;
    shown = fitting.map(({ row }) => row);
    list.replaceChildren(...shown.map(option));
    if (!shown.length && several) return close();
    if (!shown.length) list.append(element("li", "nothing", "no match"));
    const opened = list.hidden;
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    move(!several && typed && fitting[0]?.rank === 0 ? 0 : -1);
    if (opened && refresh) {
      const mine = refresh().then(() => !list.hidden && active < 0 && open()).finally(() => {
        if (refreshing === mine) refreshing = undefined; // else the list has closed and opened again meanwhile
      });
      refreshing = mine;
    }
  }

  function option(row, at) {
    const item = element("li", "", row.text, element("small", "", row.note ?? number(row.count)));
    item.id = `${id}-${at}`;
    item.setAttribute("role", "option");
    item.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
    item.addEventListener("click", () => choose(at));
    return item;
  }

  function move(to) {
    active = to;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === active)));
    list.children[active]?.scrollIntoView({ block: "nearest" });
    if (active < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `${id}-${active}`);
  }

  function close() {
    shown = [];
    active = -1;
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(at) {
    const row = shown[at];
    if (several) {
      if (row) input.value = `${start}${row.text}`;
      close();
      return pick(input.value);
    }
    if (!row) return undefined;
    input.value = "";
    close();
    return pick(row);
  }

  input.addEventListener("input", open);
  if (!several) input.addEventListener("focus", open);
  input.addEventListener("click", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (shown.length) move((active + step + shown.length) % shown.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (active < 0 && refreshing) refreshing.then(() => choose(active));
      else choose(active);
    } else if (event.key === "Escape") {
      close();
    }
  });
  return input;
}

// How well a choice fits what is typed: 0 it is this, 1 it begins so, 2 a synonym does, 3 it holds it, 4 not at all.
function rankOf({ text, words = [] }, typed) {
  const own = text.toLowerCase();
  if (own === typed || words.includes(typed)) return 0;
  if (own.startsWith(typed)) return 1;
  if (words.some((word) => word.startsWith(typed))) return 2;
  return own.includes(typed) ? 3 : 4;
}
