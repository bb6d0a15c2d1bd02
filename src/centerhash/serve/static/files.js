// Files come by a button, by dropping them anywhere, or by pasting.

import { $ } from "./dom.js";

export function takeFiles(take) {
  $("file").addEventListener("change", (event) => {
    take([...event.target.files]);
    event.target.value = ""; // the same file may be chosen again
  });
  addEventListener("paste", (event) => take([...(event.clipboardData?.files ?? [])]));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dragging"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    take([...event.dataTransfer.files]);
  });
}
