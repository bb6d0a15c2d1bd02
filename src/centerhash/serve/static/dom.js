// Small things that every part of the page needs.

export const $ = (id) => document.getElementById(id);
export const number = (value) => value.toLocaleString("en");
export const photos = (count) => `${number(count)} ${count === 1 ? "photo" : "photos"}`;
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const percent = (value) => `${Math.round(100 * value)} %`;

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function button(className, text, click) {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", click);
  return made;
}

export function drawError(title, text = "") {
  $("error-title").textContent = title;
  $("error-text").textContent = text;
  $("error").hidden = !title;
}
