// Labels of one's own: select photos, name what they show, then confirm or reject what the label finds.

import { forgetTaught, getJson, renameTaught, teachLabel, thumbnail } from "./api.js";
import { $, button, element, number, photos } from "./dom.js";
import { withToken } from "./token.js";

const OFFERED = 12; // photos to confirm or reject at a time

const picked = new Set(); // ids of selected photos
let selecting = false;
let name = ""; // of the label that is being improved
const answers = new Map(); // true or false by id
let after; // { changed, search }: draws the page anew; searches by a label

// --- selecting photos: a click on one selects it instead of opening it

function setSelecting(on) {
  selecting = on;
  if (!on) picked.clear();
  document.body.classList.toggle("selecting", on);
  $("select").setAttribute("aria-pressed", String(on));
  mark();
}

function mark() {
  for (const row of document.querySelectorAll("#grid > li, #groups li[data-id]")) {
    const on = picked.has(row.dataset.id);
    row.classList.toggle("picked", on);
    const opener = row.querySelector(".result");
    if (selecting) opener?.setAttribute("aria-pressed", String(on));
    else opener?.removeAttribute("aria-pressed");
  }
  $("picked").hidden = !selecting;
  $("picked-count").textContent = picked.size ? `${number(picked.size)} selected` : "Select photos that show the same thing";
  $("teach").disabled = !picked.size;
}

function toggle(event) {
  const row = selecting && event.target.closest(".result")?.closest("li[data-id]");
  if (!row) return;
  event.stopPropagation();
  event.preventDefault();
  if (!picked.delete(row.dataset.id)) picked.add(row.dataset.id);
  mark();
}

// --- the dialog: first the name, then photos to confirm or reject

async function openDialog() {
  name = "";
  answers.clear();
  $("teaching-title").textContent = picked.size ? "Teach a label" : "Taught labels";
  $("teaching-form").hidden = !picked.size;
  $("teaching-answers").hidden = true;
  $("teaching-list").replaceChildren();
  say(picked.size ? `From ${photos(picked.size)}. Choose a known label to add to it.` : "");
  $("teaching").showModal();
  if (picked.size) $("teaching-name").focus();
  try {
    drawList((await getJson("taught")).labels);
  } catch (error) {
    fail(error);
  }
}

const say = (text) => { $("teaching-status").textContent = text; };

function fail(error) {
  say(error.message);
}

// Runs one request with the token; whether it was made and went well.
async function change(work) {
  $("teaching").setAttribute("aria-busy", "true");
  try {
    return (await withToken(async (token) => {
      await work(token);
      return true;
    })) ?? false;
  } catch (error) {
    fail(error);
    return false;
  } finally {
    $("teaching").removeAttribute("aria-busy");
  }
}

function drawList(labels) {
  $("teaching-known").replaceChildren(...labels.map((label) => Object.assign(element("option"), { value: label.name })));
  if (picked.size) return;
  if (!labels.length) say("There are none yet. Select photos, then “Teach a label”.");
  $("teaching-list").replaceChildren(...labels.map(listed));
}

function listed(label) {
  const text = `${photos(label.items)}, from ${number(label.like.length)} that show it and ${number(label.unlike.length)} that do not`;
  const row = element("li", "", element("b", "", label.name), element("small", "", text));
  const rename = async () => {
    const to = prompt("New name", label.name)?.trim();
    if (!to || to === label.name) return;
    if (await change(async (key) => drawList((await renameTaught(label.name, to, key)).labels))) after.changed({ [label.name]: to });
  };
  const forget = async () => {
    if (!confirm(`Remove the label “${label.name}”? The photos stay.`)) return;
    if (await change(async (key) => drawList((await forgetTaught(label.name, key)).labels))) after.changed();
  };
  const improve = async () => {
    name = label.name;
    try {
      await showSuggestions();
    } catch (error) {
      fail(error);
    }
  };
  row.append(element("span", "actions", button("button plain", "Improve", improve), button("button plain", "Rename", rename), button("button plain bad", "Remove", forget)));
  return row;
}

async function teach(event) {
  event.preventDefault();
  const wanted = $("teaching-name").value.trim();
  if (!wanted) return;
  await change(async (key) => {
    const label = await teachLabel(wanted, [...picked], [], key);
    name = label.name;
    after.changed();
    await showSuggestions(label);
  });
}

async function answer() {
  const given = (like) => [...answers].filter(([, side]) => side === like).map(([id]) => id);
  await change(async (key) => {
    const label = await teachLabel(name, given(true), given(false), key);
    after.changed();
    await showSuggestions(label);
  });
}

async function showSuggestions(label) {
  answers.clear();
  const found = await getJson(`suggestions?name=${encodeURIComponent(name)}&k=${OFFERED}`);
  $("teaching-form").hidden = true;
  $("teaching-list").replaceChildren();
  $("teaching-answers").hidden = false;
  $("teaching-title").textContent = `Is it “${name}”?`;
  say(label ? `${photos(label.items)} ${label.items === 1 ? "carries" : "carry"} it now. Each answer improves it.` : "Each answer improves it.");
  $("teaching-likely").replaceChildren(...found.likely.map(choice));
  $("teaching-uncertain").replaceChildren(...found.uncertain.map(choice));
  $("teaching-send").disabled = true;
}

function choice(item) {
  const title = item.path ?? item.id;
  const picture = item.path === null ? element("span", "blank", title) : Object.assign(element("img"), { src: thumbnail(item.id), alt: title, loading: "lazy" });
  const row = element("li", "", picture);
  row.dataset.id = item.id;
  const set = (side) => {
    if (answers.get(item.id) === side) answers.delete(item.id);
    else answers.set(item.id, side);
    for (const [one, value] of [[yes, true], [no, false]]) one.setAttribute("aria-pressed", String(answers.get(item.id) === value));
    $("teaching-send").disabled = !answers.size;
  };
  const yes = button("yes", "✓", () => set(true));
  const no = button("no", "✗", () => set(false));
  yes.setAttribute("aria-label", `${title} is ${name}`);
  no.setAttribute("aria-label", `${title} is not ${name}`);
  for (const one of [yes, no]) one.setAttribute("aria-pressed", "false");
  row.append(element("span", "sides", yes, no));
  return row;
}

// --- on the page

export function setUpTeaching(actions) {
  after = actions;
  for (const place of ["grid", "groups"]) $(place).addEventListener("click", toggle, true); // before the photo opens
  new MutationObserver(mark).observe($("grid"), { childList: true }); // photos that come later
  $("select").addEventListener("click", () => setSelecting(!selecting));
  $("picked-clear").addEventListener("click", () => setSelecting(false));
  $("teach").addEventListener("click", openDialog);
  $("taught-link").addEventListener("click", (event) => {
    event.preventDefault();
    setSelecting(false);
    openDialog();
  });
  $("teaching-form").addEventListener("submit", teach);
  $("teaching-send").addEventListener("click", answer);
  $("teaching-close").addEventListener("click", () => $("teaching").close());
  $("teaching").addEventListener("close", () => {
    if (!name) return;
    setSelecting(false);
    after.search(name);
  });
}

// Only a server that takes changes can be taught.
export function offerTeaching(writable, size) {
  $("select").hidden = !writable || !size;
  $("taught-link").hidden = !writable;
}
