// Changing the collection, with the token: adding files, and removing photos with time to think again.

import { addPicture, removePicture } from "./api.js";
import { $, element, number } from "./dom.js";
import { storedToken, withToken } from "./token.js";

const UNDO = 7000; // milliseconds in which a removal can be taken back

export async function showAdding() {
  await withToken(() => $("adding").open || $("adding").showModal());
}

// Files are sent one after the other; `done` is called at the end with how many are new.
export async function addFiles(files, most, done) {
  const skipped = [];
  const counts = { new: 0, known: 0 };
  $("adding-skipped").replaceChildren();
  $("adding-progress").hidden = false;
  for (const [at, file] of files.entries()) {
    $("adding-progress").value = at / files.length;
    $("adding-status").textContent = `${number(at + 1)} of ${number(files.length)}: ${file.name}`;
    const why = file.size > most * 1e6 ? `larger than ${most} MB` : await added(file, counts);
    if (why === true) continue;
    if (why === undefined) break; // without a token no file is accepted
    skipped.push([file.name, why]);
    $("adding-skipped").append(element("li", "", element("b", "", file.name), ` ${why}`));
  }
  $("adding-progress").hidden = true;
  $("adding-status").textContent = summary(counts, skipped.length);
  done(counts.new);
}

// True when it is stored; otherwise why not; undefined when the dialog for the token was closed.
async function added(file, counts) {
  try {
    const answer = await withToken((token) => addPicture(file, token));
    if (!answer) return undefined;
    counts[answer.new ? "new" : "known"] += 1;
    return true;
  } catch (error) {
    if (error.status === 400 || error.status === 415) return "cannot be read as a photo";
    return error.message;
  }
}

function summary(counts, skipped) {
  const parts = [`${number(counts.new)} added`];
  if (counts.known) parts.push(`${number(counts.known)} already in the index`);
  if (skipped) parts.push(`${number(skipped)} skipped`);
  return `${parts.join(", ")}.`;
}

// --- removing

let pending; // { id, timer, back, failed }
const leaving = new Set(); // ids of photos that are removed, or will be when the time to undo it is over

// Answers of the server still list them.
export const staying = (items) => items.filter((item) => !leaving.has(item.id));

// The photo leaves the page at once (`gone`) and the index when the time to undo it is over.
export function removeLater(id, name, { gone, back, failed }) {
  removeNow();
  leaving.add(id);
  gone();
  pending = { id, back, failed, timer: setTimeout(removeNow, UNDO) };
  $("toast-text").textContent = `“${name}” is removed from the index. The file is not deleted.`;
  $("toast").hidden = false;
}

function removeNow(leaving = false) {
  if (!pending) return;
  const { id, timer, back, failed } = pending;
  pending = undefined;
  clearTimeout(timer);
  $("toast").hidden = true;
  // a page that is being closed cannot open a dialog
  const request = leaving ? removePicture(id, storedToken(), true) : withToken((token) => removePicture(id, token));
  const ended = request.finally(() => leaving.delete(id));
  ended.then((answer) => answer ?? back()).catch((error) => {
    if (error.status === 404) return; // gone already
    back();
    failed(error);
  });
}

$("undo").addEventListener("click", () => {
  if (!pending) return;
  clearTimeout(pending.timer);
  $("toast").hidden = true;
  leaving.delete(pending.id);
  pending.back();
  pending = undefined;
});
addEventListener("pagehide", () => removeNow(true));
