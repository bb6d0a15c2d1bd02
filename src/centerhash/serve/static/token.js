// The token that changes need: one dialog for it, whatever the change is.

import { checkToken } from "./api.js";
import { $, capital } from "./dom.js";

// sessionStorage, not localStorage: a shared computer must not keep the right to change the collection after the tab is
// closed. The field is one that password managers fill and save, for people who do not want to type it again.
const NAME = "centerhash-token";
const WRONG = "This is not the token of the server. Enter the one that it was started with.";

let asking; // the promise of the open dialog: changes that come meanwhile wait for the same one

export const storedToken = () => sessionStorage.getItem(NAME) ?? "";

// Runs `action(token)` and returns its result, or undefined if the dialog was closed. A stored token that the server no
// longer accepts (status 401) is forgotten, and the action is run again with the next one.
export async function withToken(action) {
  let problem = "";
  for (;;) {
    const token = storedToken() || (await (asking ??= ask(problem).finally(() => { asking = undefined; })));
    if (!token) return undefined;
    try {
      return await action(token);
    } catch (error) {
      if (error.status !== 401) throw error;
      sessionStorage.removeItem(NAME);
      problem = WRONG;
    }
  }
}

// Opens the dialog; gives the token once the server has accepted it, or "" if the dialog was closed.
function ask(problem) {
  const dialog = $("token-dialog");
  $("token").value = "";
  $("token-problem").textContent = problem;
  dialog.showModal();
  $("token").focus();
  return new Promise((done) => {
    let accepted = "";
    const submit = async (event) => {
      event.preventDefault();
      const typed = $("token").value.trim();
      $("token-problem").textContent = "";
      $("token-use").disabled = true;
      try {
        await checkToken(typed);
        accepted = typed;
        sessionStorage.setItem(NAME, typed);
        dialog.close();
      } catch (error) {
        $("token-problem").textContent = error.status === 401 ? WRONG : capital(error.message);
        $("token").select();
      }
      $("token-use").disabled = false;
    };
    $("token-form").addEventListener("submit", submit);
    dialog.addEventListener("close", () => {
      $("token-form").removeEventListener("submit", submit);
      done(accepted);
    }, { once: true });
  });
}

$("token-cancel").addEventListener("click", () => $("token-dialog").close());
