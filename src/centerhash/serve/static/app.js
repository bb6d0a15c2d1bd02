// The page: what is asked for stands in the address (state.js), every change of it is drawn by `show`.

import { getJson, search, searchPicture } from "./api.js";
import { makeCombo } from "./combo.js";
import { PAGE, readState, requestOf, writeState } from "./state.js";
import {
  $, drawError, drawFilters, drawPopular, drawPreview, drawResults, drawWeights, number, thumbnail, walkResults, weightsNow,
} from "./view.js";

const DEBOUNCE = 60; // milliseconds that a slider must rest before the server is asked
const FORESEE = 80; // that the pointer must rest on a result before its neighbours are fetched ahead
const STEP = 0.5; // weight of a label that is added to others

const pictures = new Map(); // those picked in this visit: { file, url } by number
let health = { size: 0, max_upload_mb: 20, bits: 0 };
let labels = []; // [{ label, count, center }]
let state = readState(location.hash);
let asking = new AbortController();
let shownFor = ""; // the request whose answer is on the page
let moving; // the timer of a slider that has not come to rest

// --- moving on

function go(next, replace = false) {
  state = next;
  history[replace ? "replaceState" : "pushState"](null, "", writeState(next));
  return show();
}

async function show() {
  clearTimeout(moving); // what a slider was going to ask is asked now
  asking.abort(); // an answer to an older question must not be drawn over a newer one
  asking = new AbortController();
  const { signal } = asking;
  if (state.kind === "picture" && !pictures.has(state.picture)) forget();
  const asked = state;
  drawQuery(asked);
  const query = requestOf(asked);
  $("welcome").hidden = asked.kind !== "none" || !health.size;
  if (query === undefined || !health.size) return showNothing(asked);
  document.body.classList.add("waiting");
  try {
    const started = performance.now();
    const answer = await request(asked, query, signal);
    if (signal.aborted || asked !== state) return; // another question was asked, or a slider has moved
    showAnswer(asked, answer, performance.now() - started);
  } catch (error) {
    if (signal.aborted || asked !== state) return;
    showFailure(asked, error);
  }
  document.body.classList.remove("waiting");
}

function request(asked, query, signal) {
  if (asked.kind !== "picture") return search(`search?${query}`, signal);
  return searchPicture(asked.picture, pictures.get(asked.picture).file, query, signal);
}

function showNothing(asked) {
  document.body.classList.remove("waiting");
  drawResults([], new Set(), actions);
  $("more").hidden = true;
  $("found-title").textContent = health.size ? "Find pictures like yours" : health.adding ? "Pictures are being added" : "An empty index";
  $("status").textContent = asked.kind === "labels" ? "Move a weight up, or add a label." : "";
  if (asked.kind === "none") drawWeights([], weightActions);
}

function showAnswer(asked, answer, milliseconds) {
  drawError("");
  const weighed = asked.kind === "labels" ? asked.labels : answer.labels.map((row) => [row.label, row.weight]);
  if (asked.kind !== "labels") drawWeights(weighed, weightActions);
  const names = weighed.filter(([, weight]) => weight > 0).map(([name]) => name);
  drawResults(answer.results, new Set([...names, ...asked.filter]), actions);
  $("found-title").textContent = titleOf(asked, names);
  document.title = `${titleOf(asked, names)} – centerhash`;
  const count = answer.results.length;
  const time = milliseconds < 1 ? "at once" : `in ${Math.round(milliseconds)} ms`;
  $("status").textContent = count ? `The nearest ${number(count)} of ${number(answer.size)} pictures, ${time}` : "No picture fits. Take away a filter.";
  $("more").hidden = count < asked.k || asked.k >= 1000;
  shownFor = requestOf(asked);
}

function titleOf(asked, names) {
  if (asked.kind === "labels") return capital(new Intl.ListFormat("en").format(names));
  return asked.kind === "picture" ? "Most like your picture" : "Most like this one";
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function showFailure(asked, error) {
  const file = asked.kind === "picture" ? pictures.get(asked.picture)?.file : undefined;
  if (error.status === 400 && file) drawError(`“${file.name || "The picture"}” could not be read as a picture.`, "Try another file: JPEG, PNG, GIF, WebP, TIFF or BMP.");
  else if (error.status === 404 && asked.kind === "id") drawError("This picture is no longer in the index.");
  else if (error.status === 503) drawError("The server is busy.", "Try again in a moment.");
  else if (error.status === undefined) drawError("This page made a mistake.", String(error));
  else drawError("That did not work.", error.message);
  $("status").textContent = "";
  if (requestOf(asked) !== shownFor) $("found-title").textContent = "Nothing found";
  drawResults([], new Set(), actions);
  $("more").hidden = true;
}

// The page was loaded anew, and with it went the pictures that had been picked.
function forget() {
  state = { ...state, kind: "none" };
  history.replaceState(null, "", writeState(state));
  drawError("Your picture is not kept when the page is loaded again.", "Choose it once more.");
}

function drawQuery(asked) {
  const picked = asked.kind === "picture" ? pictures.get(asked.picture) : undefined;
  if (asked.kind === "id") drawPreview(thumbnail(asked.id), "The picture whose neighbours are shown");
  else drawPreview(picked?.url, "Your picture");
  if (asked.kind === "labels") drawWeights(asked.labels, weightActions);
  drawFilters(asked.filter, (label) => go({ ...state, filter: state.filter.filter((other) => other !== label), k: PAGE }));
}

// --- what people do

let resting;
const actions = {
  choose(result) {
    go({ kind: "id", id: result.id, filter: state.filter, k: PAGE });
    $("found-title").focus({ preventScroll: true });
    scrollTo({ top: 0, behavior: "smooth" });
  },
  foresee(id) {
    clearTimeout(resting);
    const query = requestOf({ kind: "id", id, filter: state.filter, k: PAGE });
    resting = setTimeout(() => search(`search?${query}`).catch(() => {}), FORESEE); // only a guess: it may fail
  },
};

const weightActions = {
  change(rows) {
    const next = { kind: "labels", labels: rows, filter: state.filter, k: PAGE };
    const replace = state.kind === "labels"; // one step back undoes a whole drag
    state = next;
    history[replace ? "replaceState" : "pushState"](null, "", writeState(next));
    clearTimeout(moving);
    moving = setTimeout(show, DEBOUNCE);
  },
  remove(name) {
    goLabels(weightsNow().filter(([other]) => other !== name));
    $("add-label").querySelector("input").focus({ preventScroll: true });
  },
};

function goLabels(rows) {
  const kind = rows.length ? "labels" : "none";
  return go({ kind, labels: rows, filter: state.filter, k: PAGE });
}

function addLabel(name) {
  const rows = weightsNow().filter(([other]) => other !== name);
  goLabels([...rows, [name, rows.length ? STEP : 1]]);
}

function addFilter(name) {
  if (!state.filter.includes(name)) go({ ...state, filter: [...state.filter, name], k: PAGE });
}

async function pickFile(file) {
  if (!file) return;
  await prepared; // a picture may be dropped before the page knows what the index holds
  if (!health.size) return drawError("There is nothing to search yet.");
  if (file.type && !file.type.startsWith("image/")) return drawError(`“${file.name}” is not a picture.`, "Try a JPEG, PNG, GIF or WebP.");
  if (file.size > health.max_upload_mb * 1e6) return drawError(`“${file.name}” is too large.`, `This server takes up to ${health.max_upload_mb} MB.`);
  const key = String(pictures.size + 1);
  pictures.set(key, { file, url: URL.createObjectURL(file) });
  go({ kind: "picture", picture: key, filter: state.filter, k: PAGE });
}

function listen() {
  $("file").addEventListener("change", (event) => {
    pickFile(event.target.files[0]);
    event.target.value = ""; // the same file may be chosen again
  });
  addEventListener("paste", (event) => pickFile([...(event.clipboardData?.files ?? [])][0]));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dragging"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    pickFile(event.dataTransfer.files[0]);
  });
  addEventListener("popstate", () => {
    state = readState(location.hash);
    show();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      $("add-label").querySelector("input").focus();
    }
  });
  $("grid").addEventListener("keydown", walkResults);
  $("dismiss").addEventListener("click", () => drawError(""));
  $("more").addEventListener("click", () => go({ ...state, k: Math.min(1000, state.k + 2 * PAGE) }, true));
  $("home").addEventListener("click", (event) => {
    event.preventDefault();
    go({ kind: "none", labels: [], filter: [], k: PAGE });
  });
  $("skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("found-title").focus();
  });
}

const POLL = 2000; // milliseconds between two looks at an index that is being filled

async function start() {
  makeCombo($("add-label"), "Add a label", () => labels.filter((row) => row.center), addLabel);
  makeCombo($("add-filter"), "Filter by a label", () => labels.filter((row) => row.count), addFilter);
  await prepare();
}

// What the index holds; asked again for as long as pictures are being added to it.
async function prepare() {
  const before = health.size;
  try {
    const [facts, all] = await Promise.all([getJson("health"), getJson("labels")]);
    health = facts;
    labels = all.labels;
  } catch (error) {
    return drawError("The page could not be prepared.", error.message);
  }
  const searchable = labels.filter((row) => row.center);
  const coming = health.adding ? ` · adding ${number(health.adding)} more` : "";
  $("summary").textContent = `${number(health.size)} pictures · ${health.bits} bits${coming}`;
  $("words").hidden = !searchable.length;
  $("filter").hidden = !labels.some((row) => row.count);
  $("empty").hidden = health.size > 0 || health.adding > 0;
  $("fill").textContent = `centerhash index add ${health.index} PICTURES`;
  drawPopular([...searchable].sort((a, b) => b.count - a.count).slice(0, 16).filter((row) => row.count), (label) => goLabels([[label, 1]]));
  if (health.adding) setTimeout(prepare, POLL);
  if (!before) show(); // until now there was nothing to ask
}

listen();
const prepared = start();
