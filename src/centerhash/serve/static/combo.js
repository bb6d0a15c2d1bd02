// A box to pick one of many labels by typing: the combobox pattern of the ARIA guide.

let boxes = 0;

// `choices()` gives [{ label, count }], `pick(label)` is called with the one chosen.
export function makeCombo(place, title, choices, pick) {
  const id = `combo-${boxes++}`;
  const input = document.createElement("input");
  Object.assign(input, { type: "text", placeholder: title, autocomplete: "off", spellcheck: false });
  const list = document.createElement("ul");
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

  function open() {
    const typed = input.value.trim().toLowerCase();
    const starts = (row) => (row.label.toLowerCase().startsWith(typed) ? 0 : 1);
    shown = choices().filter((row) => row.label.toLowerCase().includes(typed));
    shown.sort((a, b) => starts(a) - starts(b) || b.count - a.count);
    shown = shown.slice(0, 60);
    list.replaceChildren(...shown.map(option));
    if (!shown.length) list.append(nothing());
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    move(typed && shown.length ? 0 : -1);
  }

  function option(row, number) {
    const item = document.createElement("li");
    item.id = `${id}-${number}`;
    item.setAttribute("role", "option");
    const count = document.createElement("small");
    count.textContent = row.count.toLocaleString("en");
    item.append(row.label, count);
    item.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
    item.addEventListener("click", () => choose(number));
    return item;
  }

  function nothing() {
    const item = document.createElement("li");
    item.className = "nothing";
    item.textContent = "no such label";
    return item;
  }

  function move(to) {
    active = to;
    [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === active)));
    list.children[active]?.scrollIntoView({ block: "nearest" });
    if (active < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `${id}-${active}`);
  }

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(number) {
    const row = shown[number];
    if (!row) return;
    input.value = "";
    close();
    pick(row.label);
  }

  input.addEventListener("input", open);
  input.addEventListener("focus", open);
  input.addEventListener("click", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (shown.length) move((active + step + shown.length) % shown.length);
    } else if (event.key === "Enter" && !list.hidden) {
      event.preventDefault();
      choose(active);
    } else if (event.key === "Escape") {
      close();
    }
  });
  return input;
}
