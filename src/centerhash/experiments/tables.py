"""Tables of a comparison, derived from raw rows: methods by bits, mean and deviation over the seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from centerhash.core.errors import DataError
from centerhash.core.rendering import filled, text_table
from centerhash.experiments.runner import differences, failure_text
from centerhash.experiments.tasks import Row
from centerhash.methods.registry import METHODS

MAPS = {"map_peers": "retrieved relevant items", "map_textbook": "all relevant items"}
RANDOM = "random ranking"
FORMS = ("as_trained", "rotated")  # of the logits of a deep method, each scored from the same training
CSV_METRICS = (
    *MAPS,
    *(f"{metric}_{form}" for metric in MAPS for form in FORMS),
    *(f"{metric}_expected" for metric in MAPS),
    *("ndcg", "acg", "wap", "train_seconds", "encode_seconds", "images_per_second"),
)


@dataclass(frozen=True)
class Score:
    """One method at one number of bits: a row per seed."""

    rows: tuple[Row, ...]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.rows)

    def values(self, metric: str) -> list[float]:
        """A metric of the evaluation, or of time, for each seed that has it."""
        found = ({**row, **row["evaluation"]}.get(metric) for row in self.rows)
        return [float(value) for value in found if value is not None]

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
    variant: str  # what tells it from the method's other lines, such as "lambda=0.2"; empty for the only one
    scores: Mapping[int, Score]  # by bits
    hollow: bool = False  # every second setting of one method, drawn with hollow marks

    @property
    def title(self) -> str:
        """What people call it."""
        title = METHODS[self.method].title if self.method in METHODS else self.method
        return f"{title}, {self.variant}" if self.variant else title


@dataclass(frozen=True)
class Summary:
    """All that the tables and the page show."""

    lines: tuple[Line, ...]
    bits: tuple[int, ...]
    first: Row  # for what all rows share: data, split, sizes, depth, chance level

    @property
    def most_seeds(self) -> int:
        """The number of seeds of a full cell."""
        return max(score.seeds for line in self.lines for score in line.scores.values())

    @property
    def depth(self) -> int:
        """The number of places that mAP really looks at: k, or the whole database where that is smaller."""
        return int(min(self.first["evaluation"]["k"], self.first["images"]["database"]))

    def chance(self, metric: str) -> float:
        """The chance level of `map_peers` or `map_textbook`."""
        return float(self.first["evaluation"][metric.replace("map_", "chance_")])

    def best(self, metric: str, bits: int) -> float | None:
        """The highest mean at this number of bits."""
        means = [line.scores[bits].mean(metric) for line in self.lines if bits in line.scores]
        return max((mean for mean in means if mean is not None), default=None)

    def network(self) -> str:
        """The backbone of all rows, and what was trained of it if they agree; empty for features of unknown origin."""
        if "backbone" not in self.first:
            return ""
        backbone = self.first["backbone"]
        rows = [row for line in self.lines for score in line.scores.values() for row in score.rows]
        trained = {str(row["config"]["finetune"]) for row in rows}
        parts = [backbone["name"], f"crop {backbone['crop']}"]
        parts += [f"pool {backbone['pool']}"] if backbone["pool"] else []
        return ", ".join([*parts, f"finetune {' and '.join(sorted(trained))}"])

    @property
    def title(self) -> str:
        """What the tables are of: the dataset, and the network in parentheses."""
        network = self.network()
        return f"{self.first['data']} ({network})" if network else str(self.first["data"])

    def about(self) -> str:
        """Describe what was measured in one sentence."""
        images, evaluation = self.first["images"], self.first["evaluation"]
        own = ", each without its own item," if evaluation.get("exclude_self") else ""
        return (
            f"{images['query']:,} queries{own} against {images['database']:,} images, {images['train']:,} to train on; "
            f"split: {self.first['split']}; mAP@{self.depth:,}."
        )


def summarize(rows: Sequence[Row]) -> Summary:
    """Group rows by method, setting and bits; rows must be of one dataset, split and depth."""
    if not rows:
        raise DataError("no results to make a table of: run `centerhash compare` first.")
    for row in rows:
        found = differences(row, rows[0])
        if found:
            raise DataError(f"these results are of different comparisons: {'; '.join(found)}.")
    latest = {json.dumps(row["config"], sort_keys=True): row for row in rows}.values()
    methods = list(dict.fromkeys(row["config"]["method"] for row in latest))
    known = list(METHODS)
    methods.sort(key=lambda name: known.index(name) if name in known else len(known))
    lines = [
        line
        for name in methods
        for line in _lines(name, [row for row in latest if row["config"]["method"] == name])
    ]
    bits = sorted({length for line in lines for length in line.scores})
    return Summary(tuple(lines), tuple(bits), rows[0])


def _lines(method: str, rows: Sequence[Row]) -> list[Line]:
    """The lines of one method: one, or one per setting where several were tried at the same number of bits."""
    settings = [_flat(row["config"]) for row in rows]
    varying = [
        key for key in dict.fromkeys(key for found in settings for key in found) if _varies(key, settings)
    ]
    if "finetune" in varying:  # it decides the defaults of epochs and rates, which then need no mention
        parts = [[one for one in settings if one["finetune"] == kind] for kind in ("off", "last", "all")]
        varying = ["finetune", *(key for key in varying if any(_varies(key, part) for part in parts))]
    groups: dict[str, dict[int, list[Row]]] = {}
    for row, found in zip(rows, settings, strict=True):
        variant = ", ".join(f"{key.rpartition('.')[2]}={found.get(key)}" for key in varying)
        groups.setdefault(variant, {}).setdefault(int(row["config"]["bits"]), []).append(row)
    return [
        Line(method, variant, {bits: Score(tuple(by_bits[bits])) for bits in sorted(by_bits)}, place % 2 == 1)
        for place, (variant, by_bits) in enumerate(sorted(groups.items()))
    ]


def _varies(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting has several values at one number of bits: some defaults depend on the bits."""
    found: dict[Any, set[str]] = {}
    for values in settings:
        found.setdefault(values["bits"], set()).add(json.dumps(values.get(key)))
    return key != "seed" and any(len(values) > 1 for values in found.values())


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# Texts of cells


def score_parts(summary: Summary, score: Score | None, metric: str) -> tuple[str, str, str]:
    """Mean, "± deviation", and "n=2" where seeds are missing; each empty where there is none."""
    mean = None if score is None else score.mean(metric)
    if score is None or mean is None:
        return "", "", ""
    deviation = score.deviation(metric)
    spread = "" if deviation is None else f"± {deviation:.3f}"
    return f"{mean:.3f}", spread, f"n={score.seeds}" if score.seeds < summary.most_seeds else ""


def score_text(summary: Summary, score: Score | None, metric: str) -> str:
    """Mean ± deviation, with the number of seeds where some are missing; empty for no result."""
    mean, spread, missing = score_parts(summary, score, metric)
    return " ".join(filter(None, (mean, spread, f"({missing})" if missing else "")))


def rotation_texts(line: Line, bits: Sequence[int], metric: str) -> list[str]:
    """A metric of the same trainings with logits as trained and rotated, by bits; empty where no row has both."""
    texts = []
    for length in bits:
        score = line.scores.get(length, Score(()))
        means = [score.mean(f"{metric}_{form}") for form in FORMS]
        texts.append(" / ".join(f"{mean:.3f}" for mean in means if mean is not None))
    return texts


def time_texts(line: Line, bits: Sequence[int]) -> list[str]:
    """Seconds of training by bits, then images encoded per second, mean over all bits."""
    means = [line.scores[length].mean("train_seconds") if length in line.scores else None for length in bits]
    speeds = [value for score in line.scores.values() for value in score.values("images_per_second")]
    return [
        *("" if mean is None else f"{mean:,.1f}" if mean >= 1 else f"{mean:.2f}" for mean in means),
        f"{np.mean(speeds):,.0f}" if speeds else "",
    ]


def score_cells(summary: Summary, line: Line, metric: str, bold: str = "{}") -> list[str]:
    """Texts of a line by bits; the best of each column, as it is printed, is put into `bold`."""
    texts = [score_text(summary, line.scores.get(bits), metric) for bits in summary.bits]
    best = [f"{summary.best(metric, bits) or 0:.3f}" for bits in summary.bits]
    return [
        bold.format(text) if text.startswith(top) else text for text, top in zip(texts, best, strict=True)
    ]


# Whole tables


def _tables(summary: Summary, bold: str = "{}") -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, heads and lines of each table: mAP in both conventions, a random ranking last, and times."""
    k, heads = f"{summary.depth:,}", [f"{bits} bits" for bits in summary.bits]
    for metric, name in MAPS.items():
        lines = [[line.title, *score_cells(summary, line, metric, bold)] for line in summary.lines]
        chance = [RANDOM, *[f"{summary.chance(metric):.3f}"] * len(heads)]
        yield f"mAP@{k} over {name}", ["method", *heads], [*lines, chance]
    for metric, name in MAPS.items():
        lines = [[line.title, *rotation_texts(line, summary.bits, metric)] for line in summary.lines]
        if any(any(texts) for _, *texts in lines):
            title = f"mAP@{k} over {name}: logits as trained / rotated"
            yield title, ["method", *heads], [line for line in lines if any(line[1:])]
    times = [[line.title, *time_texts(line, summary.bits)] for line in summary.lines]
    title = "Seconds of training, and images encoded per second (from features)"
    yield title, ["method", *heads, "images/s"], times


def terminal_tables(summary: Summary) -> list[Table]:
    """The tables for a terminal."""
    tables = []
    for title, (first, *heads), lines in _tables(summary):
        named = title if title.startswith("Seconds") else f"{summary.first['data']}: {title}"
        tables.append(text_table(named, [first, *(f">{head}" for head in heads)], lines, dim=(RANDOM,)))
    return tables


_TABLE = """\
{%- macro table(heads, lines) -%}
| {{ heads | join(" | ") }} |
| ---{{ " | ---:" * (heads | length - 1) }} |
{%- for line in lines %}

| {{ line | join(" | ") }} |
{%- endfor %}
{%- endmacro -%}
"""
_PAGE = """\
# {{ summary.title }}

{{ summary.about() }}
{% for title, heads, lines in tables %}

## {{ title }}

{{ table(heads, lines) }}
{% endfor %}
{% if failures %}

## Failed

{% for text in failures %}
- {{ text }}
{% endfor %}
{% endif %}
"""


def markdown(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """The same as markdown, the best of each column in bold."""
    texts = [failure_text(row) for row in failures]
    return filled(_TABLE + _PAGE, summary=summary, tables=_tables(summary, "**{}**"), failures=texts)


_LATEX = r"""
{%- for title, heads, lines in tables %}
\begin{table}
  \centering
  \caption{{"{"}}{{ title }}}
  \begin{tabular}{{"{"}}l{{ "r" * (heads | length - 1) }}}
    \toprule
    {{ heads | join(" & ") }} \\
    \midrule
    {% for line in lines %}
    {% if loop.last %}
    \midrule
    {% endif %}
    {{ line | join(" & ") }} \\
    {% endfor %}
    \bottomrule
  \end{tabular}
\end{table}
{% endfor %}
"""
_LATEX_CHARACTERS = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
    }
)


def latex(summary: Summary) -> str:
    """The tables of mAP for a paper: booktabs, mean ± standard deviation, the best of each column in bold."""
    spread = f"; mean ± standard deviation over n = {summary.most_seeds} seeds"
    heads = ["method", *(f"{bits} bits" for bits in summary.bits)]
    tables = []
    for metric, name in MAPS.items():
        title = f"{summary.title}, mAP@{summary.depth:,} over {name}"
        title += spread if summary.most_seeds > 1 else ""
        lines = [
            [
                line.title.translate(_LATEX_CHARACTERS),
                *(
                    cell.replace("±", r"$\pm$")
                    for cell in score_cells(summary, line, metric, r"\textbf{{{}}}")
                ),
            ]
            for line in summary.lines
        ]
        chance = [RANDOM, *[f"{summary.chance(metric):.3f}"] * len(summary.bits)]
        tables.append((title.translate(_LATEX_CHARACTERS), heads, [*lines, chance]))
    return filled(_LATEX, tables=tables)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A markdown table of plain text cells; the first cell of each line is its name."""
    return filled(_TABLE + "{{ table(heads, lines) }}", heads=heads, lines=lines)


def csv_text(summary: Summary) -> str:
    """One line per method, setting and number of bits, for other programs."""
    heads = ["method", "variant", "bits", "seeds"]
    heads += [name for metric in CSV_METRICS for name in (f"{metric}_mean", f"{metric}_std")]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*heads, "chance_peers", "chance_textbook"])
    chance = [summary.chance(metric) for metric in MAPS]
    for line in summary.lines:
        for bits, score in line.scores.items():
            figures = [
                value for metric in CSV_METRICS for value in (score.mean(metric), score.deviation(metric))
            ]
            texts = ["" if value is None else f"{value:.6g}" for value in [*figures, *chance]]
            writer.writerow([line.method, line.variant, bits, score.seeds, *texts])
    return stream.getvalue()
