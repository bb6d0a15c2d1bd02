// One photo, large, with all that is known of it.

import { getKept, original, preview, thumbnail } from "./api.js";
import { $, element, percent } from "./dom.js";
import { bitsText, nearness } from "./words.js";

const HIDDEN = /\.(heic|heif|tiff?|jp2|p[gpn]m)$/i; // formats that most browsers do not show

// `near` is { state, bits } where the photo is the answer to a question, else undefined.
export async function showPhoto(id, known, near, pick) {
  if (!$("photo").open) $("photo").showModal();
  $("photo").dataset.id = id;
  const item = known ?? (await getKept(`items/${encodeURIComponent(id)}`));
  if ($("photo").dataset.id !== id) return; // another one by now
  const name = item.path ?? item.id;
  $("photo-name").textContent = name;
  drawLarge(item, name);
  $("photo-far").textContent = near && item.distance !== undefined ? nearness(item, near.state, near.bits) : "";
  $("photo-far").title = near && item.distance !== undefined ? bitsText(item, near.bits) : "";
  $("photo-facts").replaceChildren(...facts(item));
  $("photo-labels").replaceChildren(...item.labels.map((label) => share(label, item, pick)));
  for (const link of ["open", "download"]) $(link).hidden = item.path === null;
  $("open").href = original(id);
  $("download").href = `${original(id)}?download=true`;
  $("download").download = name;
}

// The thumbnail stands there at once; the original takes its place when it has come, where the browser can show it.
function drawLarge(item, name) {
  const large = $("large");
  large.alt = name;
  large.hidden = item.path === null;
  if (item.path === null) return;
  if (item.width && item.height) {
    large.width = item.width;
    large.height = item.height;
  } else {
    large.removeAttribute("width");
    large.removeAttribute("height");
  }
  large.src = thumbnail(item.id);
  const full = new Image();
  full.addEventListener("load", () => {
    if ($("photo").dataset.id === item.id) large.src = full.src;
  });
  full.addEventListener("error", () => {
    if (full.src.includes("images/")) full.src = preview(item.id); // of a format that this browser does not show
  });
  full.src = HIDDEN.test(item.path ?? "") ? preview(item.id) : original(item.id);
}

function facts(item) {
  const rows = [];
  if (item.folder) rows.push(["Folder", item.folder]);
  if (item.paths?.length > 1) rows.push(["Also", item.paths.slice(1).join(", ")]);
  if (item.taken) rows.push(["Date", new Date(`${item.taken}Z`).toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric", timeZone: "UTC" })]);
  if (item.width) rows.push(["Size", `${item.width} × ${item.height}`]);
  return rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]);
}

function share(label, item, pick) {
  const probability = item.probability?.[label];
  const part = item.share?.[label];
  const chip = element("button", "chip", label);
  chip.type = "button";
  chip.title = `Photos with ${label}`;
  chip.addEventListener("click", () => pick(label));
  const row = element("li", "", chip);
  if (probability === undefined || part === undefined) return row;
  const bar = element("span", "bar");
  bar.style.setProperty("--part", percent(part).replace(" ", ""));
  const text = element("small", "", `${percent(probability)} sure · ${percent(part)} of the photo`);
  text.title = "Label probability and estimated area share";
  row.append(bar, text);
  return row;
}

export function hidePhoto() {
  delete $("photo").dataset.id;
  if ($("photo").open) $("photo").close();
}

// Works also where the page has no right to the clipboard: on other hosts without TLS.
export async function copyLink(address, done) {
  try {
    await navigator.clipboard.writeText(address);
    done("Copied");
  } catch {
    const box = element("input");
    box.value = address;
    $("photo").append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    done(copied ? "Copied" : "Not copied");
  }
}
