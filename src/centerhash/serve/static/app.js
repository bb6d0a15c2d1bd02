// The page: what is asked for stands in the address (state.js), every change of it is drawn by `show`.

import { forgetAnswers, getJson, getKept, original, searchPicture, thumbnail } from "./api.js";
import { makeCombo } from "./combo.js";
import { datesText } from "./dates.js";
import { $, capital, drawError, number, photos } from "./dom.js";
import { showDuplicates } from "./duplicates.js";
import { takeFiles } from "./files.js";
import { copyLink, hidePhoto, showPhoto } from "./photo.js";
import { drawExample, drawFilters, drawPopular, drawUnknown, drawWeights, filterChoices, weightsNow } from "./query.js";
import { asking, nothing, PAGE, readState, requestOf, writeState } from "./state.js";
import { clearTiles, drawResults, keepingPlace, walkTiles } from "./tiles.js";
import { makeWall } from "./wall.js";

const DEBOUNCE = 60; // milliseconds that a slider must rest before the server is asked
const POLL = { adding: 2000, else: 5000 }; // milliseconds between two looks at whether the index has changed
const POPULAR = 18;

const pictures = new Map(); // those picked in this visit: { file, url } by number
let health = { size: undefined, max_upload_mb: 20, bits: 0 };
let labels = []; // [{ label, count, center, also }]
let counts = { labels: {}, folders: {} }; // of the photos that pass the filters, for the filter box
let state = readState(location.hash);
let stop = new AbortController();
let shown = ""; // the address, without the photo shown large, of what is on the page
let listed = []; // the photos on the page, in their order
let moving; // the timer of a slider that has not come to rest
let question; // the box
let behind = false; // whether the groups on the page are of before a change

// --- moving on

function go(next, replace = false) {
  const opened = !replace && next.photo && !state.photo; // closing it is then a step back
  state = next;
  drawError("");
  if (!replace) history.replaceState({ ...history.state, top: scrollY }, "");
  history[replace ? "replaceState" : "pushState"](replace ? history.state : { opened }, "", writeState(next));
  return show();
}

const withoutPhoto = (asked) => writeState({ ...asked, photo: "" });

async function show() {
  if (!state.photo) hidePhoto(); // at once: what follows may take a moment
  if (withoutPhoto(state) !== shown) await showList();
  drawPhoto();
}

// `quiet`: the same is shown again because the index has changed, and what is on the screen stays in its place.
async function showList(quiet = false) {
  clearTimeout(moving); // what a slider was going to ask is asked now
  moving = undefined;
  stop.abort(); // an answer to an older question must not be drawn over a newer one
  stop = new AbortController();
  const { signal } = stop;
  if (state.kind === "picture" && !pictures.has(state.picture)) forget();
  const asked = state;
  shown = withoutPhoto(asked);
  drawQuestion(asked);
  if (!quiet) document.body.classList.add("waiting");
  try {
    if (!health.size) showEmpty();
    else if (asked.kind === "all") await showAll(asked, signal, quiet);
    else if (asked.kind === "duplicates") await showGroups(signal, quiet);
    else await showAnswer(asked, signal, quiet);
  } catch (error) {
    if (signal.aborted || withoutPhoto(asked) !== withoutPhoto(state)) return;
    showFailure(asked, error);
  }
  if (!signal.aborted) document.body.classList.remove("waiting");
}

function showEmpty() {
  clearTiles();
  $("found-title").textContent = health.adding ? "Photos are being added" : "The index is empty";
  $("status").textContent = "";
}

async function showAll(asked, signal, quiet) {
  const total = await wall[quiet ? "again" : "show"](requestOf(asked), signal);
  listed = wall.items;
  const filtered = isFiltered(asked);
  $("found-title").textContent = asked.under && !asked.having.length && !asked.without.length ? asked.under : "Photos";
  document.title = "centerhash";
  $("status").textContent = total || !filtered ? `${filtered ? `${number(total)} of ` : ""}${photos(filtered ? health.size : total)}, newest first${coming()}.` : "No photos match. Remove a filter.";
}

const isFiltered = (asked) => asked.having.length + asked.without.length > 0 || [asked.under, asked.after, asked.before].some(Boolean);

const coming = () => (health.adding ? `, ${number(health.adding)} still to be added` : "");

async function showGroups(signal, quiet) {
  if (!quiet) clearTiles();
  listed = await showDuplicates(actions, signal, quiet);
  document.title = "Duplicates – centerhash";
}

async function showAnswer(asked, signal, quiet) {
  const query = requestOf(asked);
  if (query === undefined) {
    clearTiles();
    $("status").textContent = "Increase a weight or add a label.";
    return;
  }
  const started = performance.now();
  const answer = asked.kind === "picture" ? await searchPicture(asked.picture, pictures.get(asked.picture).file, query, signal) : await getKept(`search?${query}`, signal);
  if (signal.aborted || withoutPhoto(asked) !== withoutPhoto(state)) return;
  const weighed = weightsOf(asked, answer);
  drawWeights(weighed, weightActions);
  const names = weighed.filter(([, weight]) => weight > 0).map(([name]) => name);
  listed = answer.results;
  const context = { state: { ...asked, labels: weighed }, bits: answer.bits, asked: new Set([...names, ...asked.having]) };
  const draw = () => drawResults(listed, context, actions);
  if (quiet) keepingPlace(draw);
  else draw();
  const title = titleOf(asked, names);
  $("found-title").textContent = title;
  document.title = `${title} – centerhash`;
  const time = Math.round(performance.now() - started);
  $("status").textContent = listed.length ? `${countOf(asked)} of ${photos(answer.size)}, in ${time} ms` : `No photos match.${isFiltered(asked) ? " Remove a filter." : ""}`;
  $("more").hidden = listed.length < asked.k || asked.k >= 1000;
}

// A list by labels ends where nothing fits any more.
const countOf = (asked) => (asked.kind === "labels" && listed.length < asked.k ? `All ${number(listed.length)} that match,` : `Top ${number(listed.length)}`);

// The weights to show; words that the server understood as labels are written as these from now on.
function weightsOf(asked, answer) {
  const found = answer.labels.map((row) => [row.label, row.weight]);
  if (asked.kind !== "labels") return found;
  const known = new Set(labels.map((row) => row.label));
  if (asked.labels.every(([name]) => known.has(name))) return asked.labels;
  state = { ...state, labels: found };
  shown = withoutPhoto(state);
  history.replaceState(history.state, "", writeState(state));
  question.value = found.map(([name]) => name).join(", ");
  return found;
}

function titleOf(asked, names) {
  if (asked.kind === "labels") return capital(new Intl.ListFormat("en").format(names));
  if (asked.by === "general") return asked.kind === "picture" ? "Visually similar to your photo" : "Visually similar to this photo";
  return asked.kind === "picture" ? "Most like your photo" : "Most like this photo";
}

// The old question goes: what stands there then belongs to nothing.
function showFailure(asked, error) {
  const file = asked.kind === "picture" ? pictures.get(asked.picture)?.file : undefined;
  if (error.status === 400 && file && asked.by === "both") drawError(`“${file.name || "The photo"}” could not be read as a photo.`, "Try another file: JPEG, PNG, WebP or HEIC.");
  else if (error.status === 404 && asked.kind === "id") drawError("This photo is no longer in the index.");
  else if (error.status === 503) drawError("The server is busy.", "Try again in a moment.");
  else if (error.status === 400) drawError(capital(error.message));
  else if (error.status === undefined) drawError("An error occurred in the page.", String(error));
  else drawError("The request failed.", error.message);
  listed = [];
  clearTiles();
  drawWeights([], weightActions);
  drawExample(undefined, "", "both");
  $("asked").hidden = true;
  $("status").textContent = "";
  $("found-title").textContent = "No results";
  shown = ""; // asked again when one comes back to it
}

// The page was loaded anew, and with it went the photos that had been picked.
function forget() {
  state = { ...state, kind: "all" };
  history.replaceState(history.state, "", writeState(state));
  drawError("Your photo is not kept when the page is reloaded.", "Choose it again.");
}

function drawQuestion(asked) {
  $("more").hidden = true;
  $("asked").hidden = asked.kind === "all" || asked.kind === "duplicates";
  $("popular").hidden = asked.kind !== "all" || !$("popular").childElementCount;
  $("drop-hint").hidden = asked.kind !== "all" || !health.size;
  $("groups").hidden = asked.kind !== "duplicates";
  document.querySelector(".filters").hidden = asked.kind === "duplicates" || !health.size;
  const picked = asked.kind === "picture" ? pictures.get(asked.picture) : undefined;
  if (asked.kind === "id") drawExample(thumbnail(asked.id), "The query photo", asked.by);
  else drawExample(picked?.url, "Your photo", asked.by);
  if (asked.kind === "labels") drawWeights(asked.labels, weightActions);
  else if (asked.kind === "all") drawWeights([], weightActions);
  if (document.activeElement !== question) question.value = asked.kind === "labels" ? asked.labels.map(([name]) => name).join(", ") : "";
  const less = (key, name) => go({ ...state, [key]: state[key].filter((other) => other !== name), k: PAGE });
  drawFilters([
    ...asked.having.map((name) => ({ text: `with ${name}`, off: () => less("having", name) })),
    ...asked.without.map((name) => ({ text: `without ${name}`, off: () => less("without", name) })),
    ...(asked.under ? [{ text: `in ${asked.under}`, off: () => go({ ...state, under: "", k: PAGE }) }] : []),
    ...(asked.after || asked.before ? [{ text: datesText(asked), off: () => go({ ...state, after: "", before: "", k: PAGE }) }] : []),
  ]);
}

// --- one photo, large

// Whether there are photos before and after the one shown large; its place among them.
function drawSteps() {
  const at = listed.findIndex((item) => item.id === state.photo);
  $("previous").hidden = at <= 0;
  $("next").hidden = at < 0 || (at === listed.length - 1 && !(state.kind === "all" && wall.hasMore()));
  return at;
}

function drawPhoto() {
  if (!state.photo) return undefined;
  const at = drawSteps();
  for (const near of [listed[at - 1], listed[at + 1]]) if (near?.path) new Image().src = original(near.id); // at hand when it is asked for
  const asked = state.kind === "all" || state.kind === "duplicates" ? undefined : { state, bits: health.bits };
  return showPhoto(state.photo, listed[at], asked, (label) => go(asking(nothing, { kind: "labels", labels: [[label, 1]] }))).catch((error) => {
    go({ ...state, photo: "" }, true);
    drawError(error.status === 404 ? "This photo is no longer in the index." : error.message);
  });
}

async function step(by) {
  const at = listed.findIndex((item) => item.id === state.photo);
  if (at < 0) return;
  if (by > 0 && at === listed.length - 1 && state.kind === "all") await wall.more();
  const to = listed[at + by];
  if (to && state.photo) go({ ...state, photo: to.id }, true);
}

function closePhoto() {
  const last = state.photo;
  if (history.state?.opened) history.back();
  else go({ ...state, photo: "" }, true);
  requestAnimationFrame(() => $("grid").querySelector(`[data-id="${CSS.escape(last)}"] .result`)?.focus({ preventScroll: true }));
}

function searchBy(id, by) {
  go(asking(state, { kind: "id", id, by }));
  scrollTo({ top: 0 });
  $("found-title").focus({ preventScroll: true });
}

// --- what people do

const actions = {
  open: (id) => go({ ...state, photo: id }),
  chip: (label) => (state.having.includes(label) ? undefined : go({ ...state, having: [...state.having, label], k: PAGE })),
};

const weightActions = {
  change(rows) {
    const next = asking(state, { kind: "labels", labels: rows });
    const replace = state.kind === "labels"; // one step back undoes a whole drag
    state = next;
    history[replace ? "replaceState" : "pushState"](null, "", writeState(next));
    clearTimeout(moving);
    moving = setTimeout(() => {
      moving = undefined;
      show();
    }, DEBOUNCE);
  },
  remove(name) {
    goLabels(weightsNow().filter(([other]) => other !== name));
    question.focus({ preventScroll: true });
  },
};

const goLabels = (rows) => go(asking(state, rows.length ? { kind: "labels", labels: rows } : {}));

// The server reads the text: labels and filters replace or join those on the page, and unknown words are reported.
async function ask(text) {
  question.blur();
  if (!text.trim()) return goLabels([]);
  let read;
  try {
    read = await getJson(`parse?${new URLSearchParams({ text })}`);
  } catch (error) {
    return drawError(capital(error.message));
  }
  const rows = Object.entries(read.labels);
  const without = [...new Set([...state.without, ...read.without])];
  const asked = rows.length ? rows : read.without.length ? [] : [[text, 1]]; // the last fails, and stands in the address
  await go({ ...asking(state, asked.length ? { kind: "labels", labels: asked } : {}), without });
  if (!Object.keys(read.unknown).length) return undefined;
  question.value = text; // to be corrected
  return drawUnknown(read.unknown, labels.filter((row) => row.center).map((row) => row.label), (label) => {
    goLabels([...rows.filter(([name]) => name !== label), [label, 1]]);
  });
}

function addFilter({ key, name }) {
  if (key === "under") return go({ ...state, [key]: name, k: PAGE });
  return state[key].includes(name) ? undefined : go({ ...state, [key]: [...state[key], name], k: PAGE });
}

async function pickFiles(files) {
  if (!files.length) return;
  await prepared; // a photo may be dropped before the page knows what the index holds
  const [file] = files;
  if (!health.size) return drawError("The index has no photos yet.");
  if (file.type && !file.type.startsWith("image/")) return drawError(`“${file.name}” is not a photo.`, "Try a JPEG, PNG, WebP or HEIC.");
  if (file.size > health.max_upload_mb * 1e6) return drawError(`“${file.name}” is too large.`, `The server accepts up to ${health.max_upload_mb} MB.`);
  const key = String(pictures.size + 1);
  pictures.set(key, { file, url: URL.createObjectURL(file) });
  go(asking(state, { kind: "picture", picture: key }));
}

function listen() {
  takeFiles(pickFiles);
  addEventListener("popstate", async (event) => {
    const before = shown;
    state = readState(location.hash);
    drawError("");
    await show();
    if (shown !== before) scrollTo({ top: event.state?.top ?? 0 });
  });
  addEventListener("keydown", (event) => {
    if ($("photo").open && ["ArrowLeft", "ArrowRight"].includes(event.key)) step(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      question.focus();
    }
  });
  for (const place of ["grid", "groups"]) $(place).addEventListener("keydown", walkTiles);
  const clicks = {
    dismiss: () => drawError(""),
    more: () => go({ ...state, k: Math.min(1000, state.k + 2 * PAGE) }, true),
    previous: () => step(-1),
    next: () => step(1),
    close: closePhoto,
    like: () => searchBy(state.photo, "both"),
    general: () => searchBy(state.photo, "general"),
    copy: () => copyLink(`${location.href.split("#")[0]}${writeState({ ...nothing, photo: state.photo })}`, (text) => {
      $("copy").textContent = text;
      setTimeout(() => { $("copy").textContent = "Copy the link"; }, 1500);
    }),
  };
  for (const [name, act] of Object.entries(clicks)) $(name).addEventListener("click", act);
  $("photo").addEventListener("cancel", (event) => {
    event.preventDefault();
    closePhoto();
  });
  $("photo").addEventListener("click", (event) => event.target === $("photo") && closePhoto());
  $("ways").addEventListener("change", (event) => go({ ...state, by: event.target.value, k: PAGE }));
  $("ask").addEventListener("submit", (event) => event.preventDefault());
  for (const [name, act] of Object.entries({ home: () => go(nothing), skip: () => $("found-title").focus() })) {
    $(name).addEventListener("click", (event) => {
      event.preventDefault();
      act();
    });
  }
}

async function start() {
  question = makeCombo($("question"), {
    title: "Labels to search for", placeholder: "dog, person …", pick: ask, several: true,
    choices: () => labels.filter((row) => row.center).map((row) => ({ text: row.label, words: row.also, count: row.count })),
  });
  makeCombo($("add-filter"), {
    title: "Filter by a label or folder", placeholder: "Filter", pick: addFilter, refresh: countAgain,
    choices: () => filterChoices(counts, new Map(labels.map((row) => [row.label, row.also]))),
  });
  $("words").open = matchMedia("(min-width: 820px)").matches; // on a phone the results come first
  await prepare();
}

// What the index holds.
async function prepare() {
  const before = health.size;
  try {
    [health, { labels }] = await Promise.all(["health", "labels"].map((name) => getJson(name)));
  } catch (error) {
    return drawError("The page could not be loaded.", error.message);
  }
  drawPage();
  if (health.size !== before) {
    if (before) wall.forget();
    forgetAnswers();
    shown = "";
    return show();
  }
  return undefined;
}

function drawPage() {
  $("question").hidden = !labels.some((row) => row.center);
  $("empty").hidden = health.size > 0 || health.adding > 0;
  $("fill").textContent = `centerhash photos add ${health.index} PHOTOS`;
  $("log-out").hidden = !health.password;
  const searchable = labels.filter((row) => row.center && row.count).sort((a, b) => b.count - a.count);
  drawPopular(searchable.slice(0, POPULAR), (label) => goLabels([[label, 1]]));
}

// What the filter box offers: counts of the photos that pass the filters on the page.
async function countAgain() {
  try {
    counts = await getKept(`counts?${requestOf(asking(state, {}))}`);
  } catch (error) {
    if (error.status === undefined) throw error; // a fault of this page; a server that does not answer leaves the old counts
  }
}

// --- changes by others: a folder that is followed, another process, another page

async function follow() {
  for (;;) {
    await new Promise((done) => setTimeout(done, health.adding ? POLL.adding : POLL.else));
    if (!document.hidden) await lookAgain();
  }
}

async function lookAgain() {
  try {
    const now = await getJson("health");
    if (now.changes === health.changes && now.adding === health.adding) return;
    const old = labels;
    const same = now.changes === health.changes;
    [health, labels] = [now, same ? labels : (await getJson("labels")).labels];
    drawPage();
    if (!same || (behind && !health.adding)) await redraw(withoutLabels(old));
  } catch (error) {
    if (error.status === undefined) throw error; // a fault of this page; a server that is away may come back
  }
}

// The same once more, with what the index holds now. Duplicates follow when no more photos are added: all are compared.
async function redraw(next = state) {
  forgetAnswers();
  if (withoutPhoto(next) !== withoutPhoto(state)) return go(next, true);
  if (state.kind !== "all") wall.forget(); // loaded anew when one comes back to it
  behind = state.kind === "duplicates" && health.adding > 0;
  if (moving || behind) return undefined;
  await showList(true);
  return drawSteps();
}

// The query without labels that were there before and are no longer.
function withoutLabels(old) {
  const known = new Set(labels.map((row) => row.label));
  const gone = new Set(old.map((row) => row.label).filter((name) => !known.has(name)));
  const filters = Object.fromEntries(["having", "without"].map((key) => [key, state[key].filter((name) => !gone.has(name))]));
  const asked = state.labels.filter(([name]) => !gone.has(name));
  return { ...state, ...filters, labels: asked, kind: state.kind === "labels" && !asked.length ? "all" : state.kind };
}

const wall = makeWall(actions);
listen();
const prepared = start();
prepared.then(follow);
