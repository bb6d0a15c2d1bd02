"""Tables of a comparison: methods by bits, mean and deviation over the seeds.

    summary = summarize(read_results("table"))
    print(markdown(summary))

Everything is derived from the raw rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from centerhash.core.errors import DataError
from centerhash.core.extras import require
from centerhash.core.rendering import text_table
from centerhash.experiments.runner import differences, failure_text
from centerhash.experiments.tasks import Row
from centerhash.methods.registry import METHODS

if TYPE_CHECKING:
    from rich.table import Table

MAPS = {"map_retrieved": "retrieved relevant items", "map_all": "all relevant items"}
# The two forms of the logits of a deep method, scored from one training run on request.
FORMS = ("as_trained", "rotated")
_CSV_METRICS = (
    *MAPS,
    *(f"{metric}_{part}" for metric in MAPS for part in (*FORMS, "expected")),
    *("ndcg", "acg", "wap", "train_seconds", "encode_seconds", "images_per_second"),
)


@dataclass(frozen=True)
class Score:
    """One method at one number of bits: a row per seed."""

    rows: tuple[Row, ...] = ()

    def values(self, metric: str) -> list[float]:
        """A metric of the evaluation, or a time, for each seed that has it."""
        values = ({**row, **row["evaluation"]}.get(metric) for row in self.rows)
        return [float(value) for value in values if value is not None]

    def mean(self, metric: str) -> float | None:
        """Mean over the seeds, None when no row has the metric."""
        values = self.values(metric)
        return float(np.mean(values)) if values else None

    def deviation(self, metric: str) -> float | None:
        """Sample standard deviation over the seeds, None for fewer than two."""
        values = self.values(metric)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Line:
    """One line of a table: a method, or one of several settings of it."""

    method: str
    variant: str  # The settings that distinguish it from the method's other lines, such as "lambda=0.2".
    scores: Mapping[int, Score]  # By bits.

    @property
    def title(self) -> str:
        """The name of the method, with the distinguishing settings."""
        title = METHODS[self.method].title if self.method in METHODS else self.method
        return f"{title}, {self.variant}" if self.variant else title


@dataclass(frozen=True)
class Summary:
    """Everything that the tables and the page show."""

    lines: tuple[Line, ...]
    bits: tuple[int, ...]
    first: Row  # The facts that all rows share: data, split, sizes, depth, level of a random ranking.

    def rows(self) -> list[Row]:
        """The rows of all lines."""
        return [row for line in self.lines for score in line.scores.values() for row in score.rows]

    @property
    def most_seeds(self) -> int:
        """The number of seeds of a full cell."""
        return max(len(score.rows) for line in self.lines for score in line.scores.values())

    @property
    def depth(self) -> int:
        """The depth of mAP: at most the size of the database."""
        return int(min(self.first["evaluation"]["k"], self.first["images"]["database"]))

    def random(self, metric: str) -> float:
        """`map_retrieved` or `map_all` of a random ranking."""
        return float(self.first["evaluation"][metric.replace("map_", "random_")])

    @property
    def title(self) -> str:
        """The dataset, and in parentheses the backbone of all rows and how it was trained."""
        backbone = self.first.get("backbone")
        if backbone is None:
            return str(self.first["data"])
        trained = " and ".join(sorted({str(row["config"]["finetune"]) for row in self.rows()}))
        pool = f", pool {backbone['pool']}" if backbone["pool"] else ""
        network = f"{backbone['name']}, crop {backbone['crop']}{pool}, finetune {trained}"
        return f"{self.first['data']} ({network})"

    def about(self) -> str:
        """Describe the measurement in one sentence."""
        images, evaluation = self.first["images"], self.first["evaluation"]
        excluded = ", each without its own item," if evaluation.get("exclude_self") else ""
        return (
            f"{images['query']:,} queries{excluded} against {images['database']:,} images, "
            f"{images['train']:,} to train on; split: {self.first['split']}; mAP@{self.depth:,}."
        )


def summarize(rows: Sequence[Row]) -> Summary:
    """Group rows by method, setting and bits; rows must be of one dataset, split and depth."""
    if not rows:
        raise DataError("no results to make a table of: run `centerhash compare` first.")
    for row in rows:
        if differs := differences(row, rows[0]):
            raise DataError(f"these results are of different comparisons: {'; '.join(differs)}.")
    latest = {json.dumps(row["config"], sort_keys=True): row for row in rows}.values()
    methods = dict.fromkeys([*METHODS, *(row["config"]["method"] for row in latest)])
    lines = [
        line
        for name in methods
        for line in _lines(name, [row for row in latest if row["config"]["method"] == name])
    ]
    return Summary(tuple(lines), tuple(sorted({bits for line in lines for bits in line.scores})), rows[0])


def _lines(method: str, rows: Sequence[Row]) -> list[Line]:
    """The lines of one method: one, or one per setting where several were tried at the same number of bits."""
    settings = [_flat(row["config"]) for row in rows]
    varying = [key for key in dict.fromkeys(chain(*settings)) if _varies(key, settings)]
    if "finetune" in varying:
        # It decides the defaults of epochs and rates, which then need no mention.
        parts = [[one for one in settings if one["finetune"] == kind] for kind in ("off", "last", "all")]
        varying = ["finetune", *(key for key in varying if any(_varies(key, part) for part in parts))]
    groups: dict[str, dict[int, list[Row]]] = {}
    for row, setting in zip(rows, settings, strict=True):
        variant = ", ".join(f"{key.rpartition('.')[2]}={setting.get(key)}" for key in varying)
        groups.setdefault(variant, {}).setdefault(int(row["config"]["bits"]), []).append(row)
    return [
        Line(method, variant, {bits: Score(tuple(by_bits[bits])) for bits in sorted(by_bits)})
        for variant, by_bits in sorted(groups.items())
    ]


def _varies(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting has several values at one number of bits: some defaults depend on the bits."""
    values = {(one["bits"], json.dumps(one.get(key))) for one in settings}
    return key != "seed" and len(values) > len({one["bits"] for one in settings})


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def score_cells(summary: Summary, line: Line, metric: str, bold: str = "{}") -> list[str]:
    """Mean ± deviation by bits, and the number of seeds if some are missing; the best as printed are in `bold`."""
    texts = []
    for bits in summary.bits:
        score = line.scores.get(bits, Score())
        means = [other.scores[bits].mean(metric) or 0.0 for other in summary.lines if bits in other.scores]
        mean, deviation = score.mean(metric), score.deviation(metric)
        text = "" if mean is None else f"{mean:.3f}"
        cell = bold if text == f"{max(means):.3f}" else "{}"
        text += "" if deviation is None else f" ± {deviation:.3f}"
        text += f" (n={len(score.rows)})" if 0 < len(score.rows) < summary.most_seeds else ""
        texts.append(cell.format(text))
    return texts


def _time_cells(summary: Summary, line: Line) -> list[str]:
    """Seconds of training by bits, then images encoded per second, mean over all bits."""
    means = [line.scores.get(bits, Score()).mean("train_seconds") for bits in summary.bits]
    speeds = [value for score in line.scores.values() for value in score.values("images_per_second")]
    return [*("" if mean is None else f"{mean:,.1f}" for mean in means), f"{np.mean(speeds):,.0f}"]


def tables(summary: Summary, bold: str = "{}") -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Titles, heads and rows: mAP in both conventions, both forms of the logits, and times."""
    heads, depth = ["method", *(f"{bits} bits" for bits in summary.bits)], f"mAP@{summary.depth:,}"
    for metric, name in MAPS.items():
        rows = [[line.title, *score_cells(summary, line, metric, bold)] for line in summary.lines]
        random = ["random ranking", *[f"{summary.random(metric):.3f}"] * len(summary.bits)]
        yield f"{depth} over {name}", heads, [*rows, random]
    for metric, name in MAPS.items():
        for form in FORMS:
            rows = [[line.title, *score_cells(summary, line, f"{metric}_{form}")] for line in summary.lines]
            if rows := [row for row in rows if any(row[1:])]:
                yield f"{depth} over {name}, logits {form.replace('_', ' ')}", heads, rows
    rows = [[line.title, *_time_cells(summary, line)] for line in summary.lines]
    yield "Seconds of training, and images encoded per second (from features)", [*heads, "images/s"], rows


def terminal_tables(summary: Summary) -> list[Table]:
    """The tables for a terminal."""
    return [
        text_table(f"{summary.first['data']}: {title}", [first, *(f">{head}" for head in heads)], rows)
        for title, (first, *heads), rows in tables(summary)
    ]


def markdown(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """The tables in markdown, the best of each column in bold."""
    parts = [f"# {summary.title}", summary.about()]
    for title, heads, rows in tables(summary, "**{}**"):
        parts += [f"## {title}", markdown_table(heads, rows)]
    if failures:
        parts += ["## Failed", "\n".join(f"- {failure_text(row)}" for row in failures)]
    return "\n\n".join(parts) + "\n"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table of texts; the first cell of a row is its name, all others are aligned right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_LATEX_CHARACTERS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def latex(summary: Summary) -> str:
    """The tables of mAP for a paper: booktabs, mean ± standard deviation, the best of each column in bold."""
    seeds = summary.most_seeds
    spread = f"; mean ± standard deviation over n = {seeds} seeds" if seeds > 1 else ""
    texts = []
    for title, heads, rows in islice(tables(summary, r"\textbf{{{}}}"), len(MAPS)):
        caption = f"{summary.title}, {title}{spread}".translate(_LATEX_CHARACTERS)
        lines = [[method.translate(_LATEX_CHARACTERS), *cells] for method, *cells in rows]
        frame, alignment = require("pandas").DataFrame(lines, columns=heads), "l" + "r" * len(summary.bits)
        texts.append(frame.to_latex(index=False, escape=False, caption=caption, column_format=alignment))
    return "\n".join(texts).replace("±", r"$\pm$")


def csv_text(summary: Summary) -> str:
    """One line per method, setting and number of bits, for other programs."""
    rows: list[dict[str, Any]] = []
    for line in summary.lines:
        for bits, score in line.scores.items():
            row = {"method": line.method, "variant": line.variant, "bits": bits, "seeds": len(score.rows)}
            for metric in _CSV_METRICS:
                row |= {f"{metric}_mean": score.mean(metric), f"{metric}_std": score.deviation(metric)}
            rows.append(row | {metric.replace("map_", "random_"): summary.random(metric) for metric in MAPS})
    return str(require("pandas").DataFrame(rows).to_csv(index=False, float_format="%.6g"))
