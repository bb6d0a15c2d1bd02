// The question as it stands on the page: an example photo, sliders for the weights, filters as chips.

import { $, button, element, number } from "./dom.js";

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
  $("words").hidden = !rows.length;
  showShares();
}

function slider(name, at, change, remove) {
  const input = element("input");
  Object.assign(input, { type: "range", min: 0, max: 100, id: `weight-${at}` });
  const label = element("label", "", name);
  label.htmlFor = input.id;
  const share = element("output");
  share.htmlFor = input.id;
  const off = button("", "×", () => remove(name));
  off.setAttribute("aria-label", `Remove ${name}`);
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
    const part = total ? Math.round((100 * Number(input.value)) / total) : 0;
    share.textContent = `${part} %`;
    input.setAttribute("aria-valuetext", `${part} percent of the query`);
    input.style.setProperty("--fill", `${input.value}%`);
    row.classList.toggle("none", Number(input.value) === 0);
  }
}

export function drawExample(source, text, by) {
  $("example").hidden = !source;
  if (source && $("preview").getAttribute("src") !== source) $("preview").src = source;
  $("preview").alt = text;
  $("ways").querySelector(`input[value=${by}]`).checked = true;
}

// Filters are [{ text, off }]: what stands on the chip, and what takes it away.
export function drawFilters(filters) {
  $("filters").replaceChildren(...filters.map(({ text, off }) => {
    const cross = button("off", "×", off);
    cross.setAttribute("aria-label", `Remove the filter: ${text}`);
    return element("li", "chip", text, cross);
  }));
}

// What the filter box offers: photos with a label, without it or in a folder, each with the number of photos
// that it would leave. `also` gives the other words for a label.
export function filterChoices({ labels, folders }, also) {
  const rows = (counts) => Object.entries(counts);
  const words = (label) => [label, ...(also.get(label) ?? [])];
  return [
    ...rows(labels).map(([name, count]) => ({ text: `with ${name}`, words: words(name), count, key: "having", name })),
    ...rows(folders).map(([name, count]) => ({ text: `in ${name}`, words: name.toLowerCase().split("/"), count, key: "under", name })),
    ...rows(labels).map(([name, count]) => ({ text: `without ${name}`, words: words(name), count: -count, note: "", key: "without", name })),
  ];
}

export function drawPopular(rows, pick) {
  $("popular").replaceChildren(...rows.map(({ label, count }) => {
    const chip = button("", label, () => pick(label));
    chip.append(element("small", "", number(count)));
    return element("li", "", chip);
  }));
}

// Words that mean nothing here, each with labels that may be meant. Labels that may be meant are links; without any, all labels are shown.
export function drawUnknown(unknown, labels, pick) {
  const link = (label) => button("link", label, () => pick(label));
  const near = [...new Set(Object.values(unknown).flat())];
  const offered = near.length ? near : labels;
  const end = near.length ? "?" : ".";
  const words = Object.keys(unknown).map((word) => `“${word}”`).join(", ");
  $("error-title").textContent = `${words} ${Object.keys(unknown).length > 1 ? "are not among the things" : "is not one of the things"} that can be found here.`;
  $("error-text").replaceChildren(near.length ? "Did you mean " : "These can: ", ...offered.flatMap((label, at) => [element("span", "", link(label), at + 1 < offered.length ? "," : end), " "]));
  $("error").hidden = false;
}
