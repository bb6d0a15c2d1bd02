// Dates: headings by month among the photos, and the words of a filter.

import { element } from "./dom.js";

// "June 2024" of "2024-06" or of a whole date.
const monthName = (text) => new Date(`${text.slice(0, 7)}-01T00:00Z`).toLocaleDateString("en", { month: "long", year: "numeric", timeZone: "UTC" });

export const datesText = ({ after, before }) => [after && `since ${after}`, before && `before ${before}`].filter(Boolean).join(", ");

// A heading, which begins a new row, and before it what keeps the last photos of the month above from being stretched.
export function heading(item, first) {
  const row = element("li", "month", element("h2", "", item.taken ? monthName(item.taken) : "Without a date"));
  const fill = element("li", "fill");
  for (const one of [row, fill]) one.setAttribute("role", "presentation");
  return first ? [row] : [fill, row];
}

export const monthOf = (item) => item.taken?.slice(0, 7) ?? "";
