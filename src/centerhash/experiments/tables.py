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
from typing import Any

from centerhash.core.errors import DataError
from centerhash.core.extras import require
from centerhash.experiments.runner import differences, failure_text
from centerhash.experiments.tasks import Row
from centerhash.methods.registry import METHODS

MAPS = {"map_retrieved": "retrieved relevant items", "map_all": "all relevant items"}
# Both forms of the logits of a deep method can be scored after one training run.
FORMS = ("as_trained", "rotated")
_METRICS = (
    *MAPS,
    *(f"{metric}_{part}" for metric in MAPS for part in (*FORMS, "expected")),
    *("ndcg", "acg", "wap", "train_seconds", "encode_seconds", "images_per_second"),
)
# These columns identify a line of a table: a method, or one of its settings such as "lambda=0.2".
LINE = ["method", "variant"]


@dataclass(frozen=True)
class Summary:
    """The content of the tables and of the page.

    `runs` is a DataFrame in the order of the tables: method, variant, bits, all metrics, and the raw `row` of each run.
    `first` has the facts that all rows share: data, split, sizes, depth, level of a random ranking.
    """

    runs: Any
    first: Row

    @property
    def lines(self) -> dict[tuple[str, str], str]:
        """The titles of the lines by method and variant."""
        titles = {}
        for method, variant in self.runs[LINE].itertuples(index=False, name=None):
            title = METHODS[method].title if method in METHODS else method
            titles[method, variant] = f"{title}, {variant}" if variant else title
        return titles

    @property
    def bits(self) -> list[int]:
        """All numbers of bits, ascending."""
        return sorted(set(self.runs["bits"].tolist()))

    @property
    def most_seeds(self) -> int:
        """The number of seeds of a full cell."""
        return int(self.runs.groupby([*LINE, "bits"]).size().max())

    @property
    def depth(self) -> int:
        """The depth of mAP: at most the size of the database."""
        return int(min(self.first["evaluation"]["k"], self.first["images"]["database"]))

    def random(self, metric: str) -> float:
        """Return `map_retrieved` or `map_all` of a random ranking."""
        return float(self.first["evaluation"][metric.replace("map_", "random_")])

    @property
    def title(self) -> str:
        """The dataset, and in parentheses the backbone of all rows and how it was trained."""
        backbone = self.first.get("backbone")
        if backbone is None:
            return str(self.first["data"])
        trained = " and ".join(sorted({str(row["config"]["finetune"]) for row in self.runs["row"]}))
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
    for row in rows:
        if differs := differences(row, rows[0]):
            raise DataError(f"these results are of different comparisons: {'; '.join(differs)}.")
    latest = {json.dumps(row["config"], sort_keys=True): row for row in rows}.values()
    records: list[Row] = []
    for method in dict.fromkeys([*METHODS, *(row["config"]["method"] for row in latest)]):
        runs = [row for row in latest if row["config"]["method"] == method]
        variants = zip(_variants(runs), runs, strict=True)
        for variant, row in sorted(variants, key=lambda pair: (pair[0], pair[1]["config"]["bits"])):
            values, bits = {**row, **row["evaluation"]}, int(row["config"]["bits"])
            metrics = {metric: values.get(metric) for metric in _METRICS}
            records.append({"method": method, "variant": variant, "bits": bits, "row": row, **metrics})
    return Summary(require("pandas").DataFrame(records).astype(dict.fromkeys(_METRICS, float)), rows[0])


def _variants(rows: Sequence[Row]) -> list[str]:
    """Return what distinguishes each row of a method from others at the same number of bits; seeds do not count."""
    configs = [_flat(row["config"]) for row in rows]
    names = [name for name in dict.fromkeys(chain(*configs)) if _varies(name, configs)]
    if "finetune" in names:
        # This setting determines the defaults of epochs and rates, which then need no mention.
        groups = [
            [config for config in configs if config["finetune"] == kind] for kind in ("off", "last", "all")
        ]
        names = ["finetune", *(name for name in names if any(_varies(name, group) for group in groups))]
    return [
        ", ".join(f"{name.rpartition('.')[2]}={config.get(name)}" for name in names) for config in configs
    ]


def _varies(name: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a setting has several values at one number of bits: some defaults depend on the bits."""
    values = {(config["bits"], json.dumps(config.get(name))) for config in configs}
    return name != "seed" and len(values) > len({config["bits"] for config in configs})


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def score_cells(summary: Summary, metric: str, bold: str = "{}") -> dict[tuple[str, str], list[str]]:
    """Return mean ± deviation by bits for each line, with the number of seeds if some are missing; the best in `bold`."""
    scores = summary.runs.groupby([*LINE, "bits"])[metric].agg(["mean", "std", "size"]).dropna(subset="mean")
    best = scores["mean"].groupby("bits").max().map("{:.3f}".format)
    texts = {}
    for (method, variant, bits), (mean, deviation, seeds) in scores.iterrows():
        score = f"{mean:.3f}"
        text = score + (f" ± {deviation:.3f}" if deviation >= 0 else "")
        text += f" (n={seeds:.0f})" if seeds < summary.most_seeds else ""
        texts[method, variant, bits] = (bold if score == best[bits] else "{}").format(text)
    return {line: [texts.get((*line, bits), "") for bits in summary.bits] for line in summary.lines}


def tables(summary: Summary, bold: str = "{}") -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield titles, heads and rows: mAP in both conventions, both forms of the logits, and times."""
    heads, depth = ["method", *(f"{bits} bits" for bits in summary.bits)], f"mAP@{summary.depth:,}"
    lines = summary.lines
    for metric, name in MAPS.items():
        rows = [[lines[line], *cells] for line, cells in score_cells(summary, metric, bold).items()]
        random = ["random ranking", *[f"{summary.random(metric):.3f}"] * len(summary.bits)]
        yield f"{depth} over {name}", heads, [*rows, random]
    for metric, name in MAPS.items():
        for form in FORMS:
            cells_by_line = score_cells(summary, f"{metric}_{form}").items()
            if rows := [[lines[line], *cells] for line, cells in cells_by_line if any(cells)]:
                yield f"{depth} over {name}, logits {form.replace('_', ' ')}", heads, rows
    seconds = summary.runs.pivot_table("train_seconds", LINE, "bits", aggfunc="mean").map("{:,.1f}".format)
    speeds = summary.runs.groupby(LINE)["images_per_second"].mean().map("{:,.0f}".format)
    cells = {line: seconds.loc[line].replace("nan", "") for line in lines}
    rows = [[title, *cells[line], speeds[line]] for line, title in lines.items()]
    yield "Seconds of training, and images encoded per second (from features)", [*heads, "images/s"], rows


def markdown(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """Write the tables in markdown, the best of each column in bold."""
    paragraphs = [f"# {summary.title}", summary.about()]
    for title, heads, rows in tables(summary, "**{}**"):
        paragraphs += [f"## {title}", markdown_table(heads, rows)]
    if failures:
        paragraphs += ["## Failed", "\n".join(f"- {failure_text(row)}" for row in failures)]
    return "\n\n".join(paragraphs) + "\n"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a markdown table of texts; the first cell of a row is its name, all others are aligned right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_LATEX_CHARACTERS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def latex(summary: Summary) -> str:
    """Write the tables of mAP for a paper: booktabs, mean ± standard deviation, the best of each column in bold."""
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
    """Write one line of CSV per method, setting and number of bits, for other programs."""
    groups = summary.runs.groupby([*LINE, "bits"], sort=False)
    frame = groups[list(_METRICS)].agg(["mean", "std"])
    frame.columns = ["_".join(names) for names in frame.columns]
    frame.insert(0, "seeds", groups.size())
    for metric in MAPS:
        frame[metric.replace("map_", "random_")] = summary.random(metric)
    return str(frame.to_csv(float_format="%.6g"))
