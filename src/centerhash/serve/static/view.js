// Drawing: each function puts one thing on the page, and keeps what is there already where it can.

export const $ = (id) => document.getElementById(id);
export const number = (value) => value.toLocaleString("en");

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// --- results

const tiles = new Map(); // by id: a picture that stays in the results is not loaded again

export function drawResults(results, asked, actions) {
  const rows = results.map((result) => {
    if (!tiles.has(result.id)) tiles.set(result.id, tile(result, actions));
    const row = tiles.get(result.id);
    row.querySelector(".far").textContent = farText(result.distance);
    row.querySelector(".chips").replaceChildren(...chips(result.labels, asked));
    return row;
  });
  $("grid").replaceChildren(...rows);
  for (const [id, row] of tiles) if (tiles.size > 400 && !row.isConnected) tiles.delete(id);
}

function tile(result, { choose, foresee }) {
  const frame = element("span", "frame");
  const title = result.path ?? result.id;
  if (result.path === null) frame.append(element("span", "blank", title));
  else frame.append(picture(result, title, frame));
  const button = element("button", "result", frame, element("span", "far"), element("span", "chips"));
  button.type = "button";
  button.addEventListener("click", () => choose(result));
  button.addEventListener("pointerenter", () => foresee(result.id));
  button.addEventListener("focus", () => foresee(result.id));
  return element("li", "", button);
}

function picture(result, title, frame) {
  const image = element("img");
  Object.assign(image, { decoding: "async", alt: title, width: 360, height: 360, src: thumbnail(result.id) });
  image.addEventListener("error", () => frame.replaceChildren(element("span", "blank", title)));
  return image;
}

export const thumbnail = (id) => `thumbnails/${encodeURIComponent(id)}`;

function farText(distance) {
  if (distance === 0) return "same code";
  return distance === 1 ? "1 bit away" : `${distance} bits away`;
}

function chips(labels, asked) {
  const first = [...labels].sort((a, b) => asked.has(b) - asked.has(a));
  const made = first.slice(0, 4).map((label) => element("span", asked.has(label) ? "chip asked" : "chip", label));
  if (labels.length > 4) made.push(element("span", "chip", `+${labels.length - 4}`));
  return made;
}

// Arrow keys walk through the grid as it looks on the screen.
export function walkResults(event) {
  const buttons = [...$("grid").querySelectorAll(".result")];
  const at = buttons.indexOf(document.activeElement);
  if (at < 0) return;
  const columns = buttons.filter((button) => button.offsetTop === buttons[0].offsetTop).length;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: buttons.length - 1 - at };
  const to = buttons[at + steps[event.key]];
  if (!to) return;
  event.preventDefault();
  to.focus();
}

// --- the query

let sliders = []; // [{ name, row, input, share }]

// Rows are [name, weight]; sliders that are there stay there, so that one in use is not taken away.
export function drawWeights(rows, { change, remove }) {
  const same = rows.length === sliders.length && rows.every(([name], at) => name === sliders[at].name);
  if (!same) {
    sliders = rows.map(([name], at) => slider(name, at, change, remove));
    $("weights").replaceChildren(...sliders.map(({ row }) => row));
  }
  rows.forEach(([, weight], at) => {
    sliders[at].input.value = Math.round(100 * Math.min(1, weight));
  });
  showShares();
}

function slider(name, at, change, remove) {
  const input = element("input");
  Object.assign(input, { type: "range", min: 0, max: 100, id: `weight-${at}` });
  const label = element("label", "", name);
  label.htmlFor = input.id;
  const share = element("output");
  share.htmlFor = input.id;
  const off = element("button", "", "×");
  off.type = "button";
  off.setAttribute("aria-label", `Remove ${name}`);
  off.addEventListener("click", () => remove(name));
  input.addEventListener("input", () => {
    showShares();
    change(weightsNow());
  });
  return { name, row: element("li", "", label, share, off, input), input, share };
}

export const weightsNow = () => sliders.map(({ name, input }) => [name, Number(input.value) / 100]);

function showShares() {
  const total = sliders.reduce((sum, { input }) => sum + Number(input.value), 0);
  for (const { row, input, share } of sliders) {
    const percent = total ? Math.round((100 * Number(input.value)) / total) : 0;
    share.textContent = `${percent} %`;
    input.setAttribute("aria-valuetext", `${percent} percent of the query`);
    input.style.setProperty("--fill", `${input.value}%`);
    row.classList.toggle("none", Number(input.value) === 0);
  }
}

export function drawPreview(source, text) {
  $("drop").classList.toggle("filled", Boolean(source));
  $("preview").hidden = !source;
  if (source && $("preview").getAttribute("src") !== source) $("preview").src = source;
  $("preview").alt = text;
  $("drop-hint").textContent = source ? "or drop, or paste" : "or drop one here, or paste it";
  document.querySelector("label[for=file]").textContent = source ? "Choose another" : "Choose a picture";
}

export function drawFilters(labels, remove) {
  $("filters").replaceChildren(...labels.map((label) => {
    const off = element("button", "off", "×");
    off.type = "button";
    off.setAttribute("aria-label", `No longer only with ${label}`);
    off.addEventListener("click", () => remove(label));
    return element("li", "chip", label, off);
  }));
}

export function drawPopular(rows, pick) {
  $("popular-box").hidden = !rows.length;
  $("popular").replaceChildren(...rows.map(({ label, count }) => {
    const button = element("button", "", label, element("small", "", number(count)));
    button.type = "button";
    button.addEventListener("click", () => pick(label));
    return element("li", "", button);
  }));
}

// --- words

export function drawError(title, text = "") {
  $("error-title").textContent = title;
  $("error-text").textContent = text;
  $("error").hidden = !title;
}
