// The login page, which the server shows in place of any other: once logged in, a reload shows the one that was wanted.

const form = document.getElementById("login");
const problem = document.getElementById("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  document.getElementById("enter").disabled = true;
  const body = JSON.stringify({ password: document.getElementById("password").value });
  try {
    const response = await fetch(form.action, { method: "POST", body, headers: { "content-type": "application/json" } });
    if (response.ok) return location.reload();
    problem.textContent = await messageOf(response);
  } catch {
    problem.textContent = "The server does not respond. Check that it is running.";
  }
  document.getElementById("enter").disabled = false;
  return document.getElementById("password").select();
});

async function messageOf(response) {
  if (response.status === 401) return "This is not the password.";
  if (response.status === 429) return `Too many wrong passwords. Try again in ${minutes(response)}.`;
  const { error } = await response.json().catch(() => ({}));
  return error ?? `The server responded with status ${response.status}.`;
}

function minutes(response) {
  const count = Math.ceil(Number(response.headers.get("retry-after")) / 60);
  return count === 1 ? "a minute" : `${count} minutes`;
}

// Browsers do not send the cookie when a link on another site leads here; they do when this page requests something.
if ((await fetch(form.action)).ok) location.reload();
