"""The page of a comparison: tables and plots of stored rows in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.core.errors import DataError
from centerhash.core.files import make_folder, write_text
from centerhash.experiments.figures import Series, line_plot, swatch
from centerhash.experiments.page import cards, footer, page, section
from centerhash.experiments.rows import Row, completed, read_rows
from centerhash.experiments.tables import (
    MAPS,
    Line,
    Score,
    Summary,
    csv_text,
    failure_text,
    markdown,
    summarise,
    time_texts,
)
from centerhash.methods.table import METHODS

# a line stays in view alone while its name is under the pointer, or after a click on it
_SCRIPT = """
const named = [...document.querySelectorAll("[data-series]")];
const buttons = [...document.querySelectorAll("button[data-series]")];
let kept = null;
const show = name => named.forEach(e => e.classList.toggle("faint", name !== null && e.dataset.series !== name));
named.filter(e => !e.closest("svg")).forEach(e => {
  const name = e.dataset.series;
  e.addEventListener("mouseenter", () => show(name));
  e.addEventListener("mouseleave", () => show(kept));
  e.addEventListener("click", () => {
    kept = kept === name ? null : name;
    buttons.forEach(b => b.setAttribute("aria-pressed", b.dataset.series === kept));
    show(kept);
  });
});
"""


def read_results(folder: str | Path) -> list[Row]:
    """The rows that `centerhash compare --out folder` stored."""
    path = Path(folder) / "results.jsonl"
    rows = [completed(row) for row in read_rows(path)]
    if not rows:
        raise DataError(f"no results in '{path}': pass the --out folder of `centerhash compare`.")
    return rows


def read_failures(folder: str | Path) -> list[Row]:
    """The cells of the comparison in `folder` whose last attempt failed."""
    return read_rows(Path(folder) / "failures.jsonl", ("config", "error"))


def write_comparison(rows: Sequence[Row], folder: str | Path, failures: Sequence[Row] = ()) -> Summary:
    """Write table.md, table.csv and report.html into `folder`; nothing but the rows decides what they say."""
    summary, out = summarise(rows), make_folder(folder)
    write_text(out / "table.md", markdown(summary, failures))
    write_text(out / "table.csv", csv_text(summary))
    write_text(out / "report.html", comparison_page(summary, failures))
    return summary


def comparison_page(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """The page as HTML text."""
    parts = [_headline(summary), section("Mean average precision", _score_table(summary))]
    key = _key(summary)
    scores = [_score_plot(summary, measure, name) for measure, name in MAPS.items()]
    parts.append(section("mAP against bits", key + _plots(scores)))
    recall = _panels(summary, _recall_points, **_RECALL)
    if recall:
        parts.append(section("Precision and recall by Hamming radius", key + _plots(recall) + _RECALL_NOTE))
    places = _panels(summary, _precision_points, **_PRECISION)
    if places:
        parts.append(section("Precision at the first places", key + _plots(places)))
    parts.append(section("Settings", _settings(summary)))
    if failures:
        failed = "".join(f"<li>{html.escape(failure_text(row))}</li>" for row in failures)
        parts.append(
            section("Failed", f"<p>Run the same command again to try these again.</p><ul>{failed}</ul>")
        )
    return page(f"centerhash: comparison on {summary.first['data']}", [*parts, _last_line(summary)], _SCRIPT)


def _headline(summary: Summary) -> str:
    longest = summary.bits[-1]
    facts = []
    for measure, name in MAPS.items():
        scored = [
            (score.mean(measure), line.title)
            for line in summary.lines
            if (score := line.scores.get(longest)) is not None
        ]
        best, title = max((mean, title) for mean, title in scored if mean is not None)
        chance = f"chance is {summary.chance(measure):.3f}"
        facts.append((f"{best:.3f}", f"best mAP at {longest} bits, {name}: {title}; {chance}"))
    cells = sum(score.seeds for line in summary.lines for score in line.scores.values())
    methods = len({line.method for line in summary.lines})
    trained = f"trainings: {methods} methods, {_listed(summary.bits)} bits, up to {summary.most_seeds} seeds"
    facts.append((str(cells), trained))
    return (
        f"<header><h1>Comparison on {html.escape(summary.first['data'])}</h1>"
        f"<p>{html.escape(summary.about())} An image is relevant when it shares a label with the query; ties of "
        f"Hamming distance are broken by one random order.</p>{cards(facts)}</header>"
    )


def _listed(bits: Sequence[int]) -> str:
    return ", ".join(map(str, bits))


def _series_key(summary: Summary, line: Line) -> str:
    """A short name of a line that is safe in HTML."""
    return f"s{summary.lines.index(line)}"


def _hollow(summary: Summary, line: Line) -> bool:
    """Every second setting of one method."""
    return [other for other in summary.lines if other.method == line.method].index(line) % 2 == 1


def _key(summary: Summary) -> str:
    buttons = "".join(
        f"<button type='button' data-series='{_series_key(summary, line)}' aria-pressed='false'>"
        f"{swatch(line.method, _hollow(summary, line))}{html.escape(line.title)}</button>"
        for line in summary.lines
    )
    return f"<div class='key'>{buttons}</div>"


def _plots(svgs: Sequence[str]) -> str:
    return "<div class='plots'>" + "".join(f"<div class='plot'>{svg}</div>" for svg in svgs) + "</div>"


# Tables


def _score_table(summary: Summary) -> str:
    count, longest = len(summary.bits), summary.bits[-1]
    groups = "".join(f"<th colspan='{count}' class='group'>mAP, {name}</th>" for name in MAPS.values())
    lengths = "".join(f"<th>{bits} bits</th>" for bits in summary.bits) * len(MAPS)
    chance = "".join(f"<td>{summary.chance(measure):.3f}</td>" * count for measure in MAPS)
    return (
        f"<div class='wide'><table class='scores'><thead><tr><th></th>{groups}"
        "<th class='group'>training</th><th class='group'>encoding</th></tr>"
        f"<tr><th></th>{lengths}<th>s at {longest} bits</th><th>images/s</th></tr></thead>"
        f"<tbody>{''.join(_score_line(summary, line) for line in summary.lines)}"
        f"<tr class='chance'><th>chance<small>a random order</small></th>{chance}<td></td><td></td></tr>"
        "</tbody></table></div>"
        "<p class='note'>Mean ± sample standard deviation over the seeds. Peers: the average precision of a query is "
        "divided by the relevant items among the first k, as the paper and its peers do; textbook: by all relevant "
        "items, at most k. Encoding starts from features. The best of each column is set in bold.</p>"
    )


def _score_line(summary: Summary, line: Line) -> str:
    cells = "".join(
        f"<td>{_score_cell(summary, line.scores.get(bits), measure, bits)}</td>"
        for measure in MAPS
        for bits in summary.bits
    )
    times = "".join(f"<td>{text}</td>" for text in time_texts(line, summary.bits)[-2:])
    return (
        f"<tr data-series='{_series_key(summary, line)}'><th>{swatch(line.method, _hollow(summary, line))}"
        f"{html.escape(line.title)}<small>{html.escape(_about(line.method))}</small></th>{cells}{times}</tr>"
    )


def _score_cell(summary: Summary, score: Score | None, measure: str, bits: int) -> str:
    mean = None if score is None else score.mean(measure)
    if score is None or mean is None:
        return "–"
    best = f"{mean:.3f}" == f"{summary.best(measure, bits):.3f}"  # equal as printed is equally good
    deviation = score.deviation(measure)
    spread = "" if deviation is None else f"± {deviation:.3f}"
    missing = f" n={score.seeds}" if score.seeds < summary.most_seeds else ""
    value = f"<b>{mean:.3f}</b>" if best else f"{mean:.3f}"
    return f"{value}<small>{spread}{missing}</small>"


def _about(method: str) -> str:
    if method not in METHODS:
        return ""
    row = METHODS[method]
    return f"{row.family}, {row.year}" + ("" if row.uses_labels else ", without labels")


def _settings(summary: Summary) -> str:
    """What every line was trained with, folded away."""
    shared = _shared_training(summary)
    lines = "".join(
        f"<tr><th>{html.escape(line.title)}</th><td>{html.escape(_options_text(line, shared))}</td></tr>"
        for line in summary.lines
    )
    return (
        "<details><summary>Options of every method, as it was trained with the most bits</summary>"
        f"<p class='note'>For all: {html.escape(_named(shared))}.</p>"
        f"<div class='wide'><table class='settings'><tbody>{lines}</tbody></table></div></details>"
    )


def _training(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("method", "bits", "seed", "options")}


def _shared_training(summary: Summary) -> dict[str, Any]:
    """Training settings that all rows have in common."""
    scores = [score for line in summary.lines for score in line.scores.values()]
    found = [_training(row["config"]) for score in scores for row in score.rows]
    return {key: value for key, value in found[0].items() if all(other.get(key) == value for other in found)}


def _options_text(line: Line, shared: dict[str, Any]) -> str:
    """The options of a method, and what else it does not share with all others."""
    config = line.scores[max(line.scores)].rows[0]["config"]
    own = {key: value for key, value in _training(config).items() if key not in shared}
    return _named({**config["options"], **own}) or "none"


def _named(values: dict[str, Any]) -> str:
    parts = (f"{k} ({_named(v)})" if isinstance(v, dict) else f"{k} {v}" for k, v in values.items())
    return ", ".join(parts)


# Plots


def _score_plot(summary: Summary, measure: str, name: str) -> str:
    series = []
    for line in summary.lines:
        points = [
            (bits, mean, score.deviation(measure) or 0.0)
            for bits, score in line.scores.items()
            if (mean := score.mean(measure)) is not None
        ]
        if points:
            x, y, spread = zip(*points, strict=True)
            series.append(_series(summary, line, x, y, spread))
    depth = f"mAP@{summary.first['evaluation']['k']:,}"
    return line_plot(
        series,
        title=f"{depth}, {name}",
        xlabel="bits",
        ylabel="mean average precision",
        ticks=summary.bits,
        reference=("chance", summary.chance(measure)),
    )


def _series(
    summary: Summary, line: Line, x: Sequence[float], y: Sequence[float], spread: Sequence[float] = ()
) -> Series:
    return Series(_series_key(summary, line), line.method, x, y, spread, _hollow(summary, line))


_RECALL: dict[str, Any] = {"xlabel": "recall", "ylabel": "precision", "across": (0.0, 1.0), "markers": 8}
_RECALL_NOTE = (
    "<p class='note'>One point per Hamming radius, from 0 at the left to all bits at the right; means over the seeds. "
    "Precision is the mean over the queries whose ball of that radius holds an image, recall over all queries.</p>"
)
_PRECISION: dict[str, Any] = {
    "xlabel": "first places",
    "ylabel": "precision",
    "ticks": (1, 10, 100, 1000, 5000),
}


def _panels(
    summary: Summary, points: Callable[[Score], tuple[list[float], list[float]]], **settings: Any
) -> list[str]:
    """One plot per number of bits with all lines that have such points, all of the same height."""
    panels: dict[int, list[Series]] = {}
    for line in summary.lines:
        for bits, score in line.scores.items():
            x, y = points(score)
            if x:
                panels.setdefault(bits, []).append(_series(summary, line, x, y))
    heights = [y for series in panels.values() for line in series for y in line.y]
    return [
        line_plot(
            panels[bits], title=f"{bits} bits", limits=(min(heights), max(heights)), width=3.7, **settings
        )
        for bits in sorted(panels)
    ]


def _recall_points(score: Score) -> tuple[list[float], list[float]]:
    """Recall and precision by radius, means over the seeds; radii at which no ball held an item are left out."""
    curves = [row["evaluation"]["curve"] for row in score.rows if "curve" in row["evaluation"]]
    if not curves:
        return [], []
    recall = np.mean([curve["recall"] for curve in curves], axis=0)
    precision = np.array([curve["precision"] for curve in curves], dtype=float)  # None becomes nan
    kept = ~np.isnan(precision).all(axis=0)
    return recall[kept].tolist(), np.nanmean(precision[:, kept], axis=0).tolist()


def _precision_points(score: Score) -> tuple[list[float], list[float]]:
    """Places and precision, means over the seeds."""
    found = [row["evaluation"].get("precision", {}) for row in score.rows]
    places = sorted(set.intersection(*(set(map(int, values)) for values in found)))
    return [float(place) for place in places], [
        float(np.mean([values[str(place)] for values in found])) for place in places
    ]


def _last_line(summary: Summary) -> str:
    row = summary.first
    facts = [f"{name} {version}" for name, version in row.get("versions", {}).items()]
    if "threads" in row:
        facts.append(f"{row['threads']} thread(s)")
    return footer([*facts, "raw results: results.jsonl"])
