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
  if (response.status === 401) location.reload(); // not logged in any longer
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
