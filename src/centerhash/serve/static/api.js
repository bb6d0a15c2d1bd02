// Requests to the server: answers are kept for a while, so that going back is instant.

const KEPT = 60;
const answers = new Map();

export class Failed extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export async function getJson(address, signal) {
  return read(await ask(address, { signal }));
}

// A second request with the same address costs nothing.
export async function getKept(address, signal) {
  if (!answers.has(address)) keep(address, await getJson(address, signal));
  return answers.get(address);
}

export async function searchPicture(key, file, query, signal) {
  const address = `search?${query}&rotations=true`;
  const name = `${key} ${address}`;
  if (!answers.has(name)) keep(name, await read(await ask(address, { method: "POST", body: formOf(file), signal })));
  return answers.get(name);
}

export async function addPicture(file, token) {
  const headers = { authorization: `Bearer ${token}` };
  return read(await ask("images", { method: "POST", body: formOf(file), headers }));
}

// `leaving`: the page is being closed, the request must outlive it.
export async function removePicture(id, token, leaving = false) {
  const headers = { authorization: `Bearer ${token}` };
  return read(await ask(`images/${encodeURIComponent(id)}`, { method: "DELETE", headers, keepalive: leaving }));
}

export async function checkToken(token) {
  const response = await ask("token", { headers: { authorization: `Bearer ${token}` } });
  if (!response.ok) await read(response);
}

export async function logOut() {
  await ask("login", { method: "DELETE" });
  location.reload();
}

const change = async (method, address, token, body) => {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  return read(await ask(address, { method, headers, body: body && JSON.stringify(body) }));
};
export const moveDuplicates = (files, token) => change("POST", "duplicates/move", token, files);
export const undoDuplicates = (token) => change("POST", "duplicates/undo", token);
export const teachLabel = (name, like, unlike, token) => change("POST", "taught", token, { name, like, unlike });
export const renameTaught = (name, to, token) => change("PATCH", "taught", token, { name, new: to });
export const forgetTaught = (name, token) => change("DELETE", `taught?name=${encodeURIComponent(name)}`, token);

export const forgetAnswers = () => answers.clear();
export const thumbnail = (id) => `thumbnails/${encodeURIComponent(id)}`;
export const preview = (id) => `previews/${encodeURIComponent(id)}`;
export const original = (id) => `images/${encodeURIComponent(id)}`;

function formOf(file) {
  const body = new FormData();
  body.append("image", file);
  return body;
}

function keep(name, answer) {
  answers.set(name, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
}

async function ask(address, options, again = true) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed("The server does not respond. Check that it is running.", 0);
  }
  if (response.status === 401 && !options.headers?.authorization) location.reload(); // not logged in any longer
  if (response.status === 503 && again) {
    const seconds = Number(response.headers.get("retry-after")) || 1;
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    options.signal?.throwIfAborted();
    return ask(address, options, false);
  }
  return response;
}

async function read(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Failed(body.error ?? `The server responded with status ${response.status}.`, response.status);
  return body;
}
