// What is asked for, as text behind the # of the address: back, forward and bookmarks follow from that.

export const PAGE = 48;
const MOST = 1000;
const FILTERS = ["having", "without", "under", "after", "before"];

// { kind: "all" | "picture" | "id" | "labels" | "duplicates", picture, id, labels: [[name, weight]], by: "both" | "general",
//   having: [name], without: [name], under: name or "", after and before: date or "", photo: id or "" of the one shown large, k }
export function readState(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {
    ...nothing,
    by: values.get("by") === "general" ? "general" : "both",
    having: values.getAll("having"),
    without: values.getAll("without"),
    under: values.get("under") ?? "",
    after: values.get("after") ?? "",
    before: values.get("before") ?? "",
    photo: values.get("photo") ?? "",
    k: Math.min(MOST, Math.max(1, Math.trunc(Number(values.get("k"))) || PAGE)),
  };
  if (values.get("page") === "duplicates") return { ...state, kind: "duplicates" };
  if (values.has("id")) return { ...state, kind: "id", id: values.get("id") };
  if (values.has("picture")) return { ...state, kind: "picture", picture: values.get("picture") };
  const labels = readWeights(values.get("labels") ?? "");
  return labels.length ? { ...state, kind: "labels", labels } : state;
}

export const nothing = { kind: "all", labels: [], by: "both", having: [], without: [], under: "", after: "", before: "", photo: "", k: PAGE };

// A new question keeps the filters.
export const asking = (state, question) => ({ ...nothing, ...Object.fromEntries(FILTERS.map((name) => [name, state[name]])), ...question });

export function writeState(state) {
  const values = new URLSearchParams();
  if (state.kind === "duplicates") values.set("page", "duplicates");
  addQuestion(values, state);
  addFilters(values, state);
  if (state.k !== PAGE) values.set("k", state.k);
  if (state.photo) values.set("photo", state.photo);
  return `#${values}`;
}

// The query part of the request; undefined where there is nothing to ask.
export function requestOf(state) {
  const weighed = state.labels.filter(([, weight]) => weight > 0);
  if (state.kind === "labels" && !weighed.length) return undefined;
  const values = new URLSearchParams();
  addQuestion(values, { ...state, labels: weighed });
  values.delete("picture");
  addFilters(values, state);
  if (state.kind !== "all") values.set("k", state.k);
  return values.toString();
}

function addQuestion(values, state) {
  if (state.kind === "id") values.set("id", state.id);
  if (state.kind === "picture") values.set("picture", state.picture);
  if (state.kind === "labels") values.set("labels", writeWeights(state.labels));
  if (state.by === "general" && (state.kind === "id" || state.kind === "picture")) values.set("by", "general");
}

function addFilters(values, state) {
  for (const label of state.having) values.append("having", label);
  for (const label of state.without) values.append("without", label);
  for (const name of ["under", "after", "before"]) if (state[name]) values.set(name, state[name]);
}

// "dog:0.7, person": a label without a number weighs 1; a name in quotes may hold commas.
export function readWeights(text) {
  const parts = (text.match(/\s*"(?:[^"]|"")*"[^,]*|[^,]+/g) ?? []).map((part) => part.trim()).filter(Boolean);
  return parts.map((part) => {
    const quoted = /^"((?:[^"]|"")*)"(?::(.*))?$/.exec(part);
    if (quoted) return [quoted[1].replaceAll('""', '"'), Math.max(0, Number(quoted[2] ?? 1)) || 0];
    const colon = part.lastIndexOf(":");
    const weight = Number(part.slice(colon + 1));
    return colon < 0 || !Number.isFinite(weight) ? [part, 1] : [part.slice(0, colon).trim(), Math.max(0, weight)];
  });
}

const written = (name) => (/[,"]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);
const writeWeights = (labels) => labels.map(([name, weight]) => `${written(name)}:${+weight.toFixed(2)}`).join(",");
