// Dates: headings by month on the wall, and a timeline of all months with the number of their photos.

import { getKept } from "./api.js";
import { $, button, element, number, photos } from "./dom.js";

const LEAST = 0.12; // height of the smallest bar

// "June 2024" of "2024-06" or of a whole date; "2024" stays a year.
export function monthName(text) {
  const month = /^\d{4}-\d{2}/.exec(text)?.[0];
  return month ? new Date(`${month}-01T00:00Z`).toLocaleDateString("en", { month: "long", year: "numeric", timeZone: "UTC" }) : text;
}

// The year or month that follows: "2025" of "2024", "2025-01" of "2024-12".
export function following(text) {
  const [year, month] = text.split("-").map(Number);
  if (!month) return String(year + 1).padStart(4, "0");
  const next = month === 12 ? [year + 1, 1] : [year, month + 1];
  return `${String(next[0]).padStart(4, "0")}-${String(next[1]).padStart(2, "0")}`;
}

// The words of a filter by dates: a month or year by its name.
export function datesText({ after, before }) {
  if (after && before === following(after)) return `in ${monthName(after)}`;
  return [after && `since ${after}`, before && `before ${before}`].filter(Boolean).join(", ");
}

// A heading, which begins a new row, and before it what keeps the last photos of the month above from being stretched.
export function heading(item, first) {
  const text = item.taken ? monthName(item.taken) : "Without a date";
  const row = element("li", "month", element("h2", "", text));
  const fill = element("li", "fill");
  for (const one of [row, fill]) one.setAttribute("role", "presentation");
  return first ? [row] : [fill, row];
}

export const monthOf = (item) => item.taken?.slice(0, 7) ?? "";

// Bars from left to right in time; `pick` gets { after, before }. One month alone needs no timeline.
export async function drawTimeline(query, signal, pick) {
  const place = $("timeline");
  const { months } = await getKept(`months${query ? `?${query}` : ""}`, signal);
  if (signal.aborted) return;
  place.hidden = months.length < 2;
  const most = Math.max(...months.map(({ count }) => count));
  const years = grouped(months);
  place.replaceChildren(...[...years].map(([year, rows]) => {
    const bars = rows.map(({ month, count }) => {
      const bar = button("bar", "", () => pick({ after: month, before: following(month) }));
      bar.style.setProperty("--height", Math.max(LEAST, count / most).toFixed(3));
      bar.title = `${monthName(month)}: ${number(count)}`;
      bar.setAttribute("aria-label", `${monthName(month)}, ${photos(count)}`);
      return bar;
    });
    const label = button("year", year, () => pick({ after: year, before: following(year) }));
    return element("div", "", element("div", "bars", ...bars), label);
  }));
}

function grouped(months) {
  const years = new Map();
  for (const row of [...months].reverse()) {
    const year = row.month.slice(0, 4);
    years.set(year, [...(years.get(year) ?? []), row]);
  }
  return years;
}
