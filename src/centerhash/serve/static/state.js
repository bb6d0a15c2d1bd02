// What is asked for, as text behind the # of the address: back, forward and bookmarks follow from that.

export const PAGE = 24;

// { kind: "none" | "picture" | "id" | "labels", picture, id, labels: [[name, weight]], filter: [name], k }
export function readState(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const shared = { filter: values.getAll("having"), k: clampedCount(values.get("k")) };
  if (values.has("id")) return { kind: "id", id: values.get("id"), ...shared };
  if (values.has("picture")) return { kind: "picture", picture: values.get("picture"), ...shared };
  if (values.has("labels")) return { kind: "labels", labels: readWeights(values.get("labels")), ...shared };
  return { kind: "none", ...shared };
}

export function writeState(state) {
  const values = new URLSearchParams();
  if (state.kind === "id") values.set("id", state.id);
  if (state.kind === "picture") values.set("picture", state.picture);
  if (state.kind === "labels") values.set("labels", writeWeights(state.labels));
  addShared(values, state, PAGE);
  return `#${values}`;
}

// The query part of the request; undefined where there is nothing to ask.
export function requestOf(state) {
  const values = new URLSearchParams();
  if (state.kind === "none") return undefined;
  if (state.kind === "id") values.set("id", state.id);
  if (state.kind === "labels") {
    const weighed = state.labels.filter(([, weight]) => weight > 0);
    if (!weighed.length) return undefined;
    values.set("labels", writeWeights(weighed));
  }
  addShared(values, state);
  return values.toString();
}

function addShared(values, state, usual) {
  for (const label of state.filter) values.append("having", label);
  if (state.k !== usual) values.set("k", state.k);
}

function readWeights(text) {
  const parts = text.match(/"(?:[^"]|"")*"[^,]*|[^,]+/g) ?? []; // a name in quotes may hold commas
  return parts.map((part) => {
    const quoted = /^"((?:[^"]|"")*)"(?::(.*))?$/.exec(part);
    if (quoted) return [quoted[1].replaceAll('""', '"'), Math.max(0, Number(quoted[2] ?? 1)) || 0];
    const colon = part.lastIndexOf(":");
    const weight = Number(part.slice(colon + 1));
    return colon < 0 || !Number.isFinite(weight) ? [part, 1] : [part.slice(0, colon), Math.max(0, weight)];
  });
}

const written = (name) => (/[,"]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);
const writeWeights = (labels) => labels.map(([name, weight]) => `${written(name)}:${+weight.toFixed(2)}`).join(",");

const clampedCount = (text) => Math.min(1000, Math.max(1, Math.trunc(Number(text)) || PAGE));
