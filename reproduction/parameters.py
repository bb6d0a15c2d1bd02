"""Fig. 4, 5 and 6: mAP and weights against beta and lambda."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from markupsafe import Markup
from pandas import DataFrame

from centerhash.core.files import write_text
from centerhash.experiments.plots import Series, line_plot, line_style, new_figure
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, table, words
from reproduction.weights import BINS, weight_distribution

FORMS = ("ics-printed", "ics")
LETTERS = {"beta": "β", "lambda": "λ"}
COLUMN_FORMATS = {"mAP": "{:.3f}", "variance": "{:.4f}", "corner": "{:.0%}"}


def run(parameter: str, settings: Settings) -> Section:
    """Train ICS as printed and exact with every value of beta (Fig. 5) or lambda (Fig. 4 and 6) of the paper."""
    studies = common.PRINTED["studies"]
    # The paper tunes beta with lambda 1. All other options are those of each form.
    fixed = {"ics-printed": {"lambda": float(studies["lambda_of_beta"])}} if parameter == "beta" else {}
    forms, values = settings.select(parameter, FORMS), sorted(map(float, studies[parameter]))
    tasks = [
        settings.task(form, bits, seed, {parameter: value, **fixed.get(form, {})}, **{parameter: value})
        for seed, bits, form, value in product(range(settings.seeds), settings.bits, forms, values)
    ]
    rows, failures = common.run_part(settings, parameter, tasks, _work)
    runs, path = _frame(rows, parameter), settings.folder(parameter) / "weights"
    pieces = [
        paragraph(words(parameter)),
        _map_plot(settings, parameter, runs),
        heading(f"Weights of the training images, {settings.bits[-1]} bits"),
        _histograms(path, LETTERS[parameter], forms, values, runs[runs["bits"] == settings.bits[-1]]),
        _table(settings, parameter, runs),
    ]
    if parameter == "lambda":
        pieces.append(paragraph(words("unstable")))
    title = f"The parameter {parameter}"
    return Section(parameter, title, (*pieces, note(words("parameters_remark"))), failures)


def _work(setup: EvaluationSetup, task: Task) -> Row:
    """Train one model: its mAP, and the distribution of the weights of its training images."""
    model = setup.train(task)
    scores = setup.evaluate(setup.encode(model))
    found = {name: getattr(scores, name) for name in ("map_retrieved", "map_all", "random_retrieved")}
    return {**found, "weights": weight_distribution(*common.train_weights(setup, model))}


def _frame(rows: Sequence[Row], parameter: str) -> DataFrame:
    """Return a line per run with its form, bits, value and metrics."""
    columns = ["form", "bits", "value", "mAP", "random", "variance", "corner", "histogram"]
    lines = []
    for config, about, result in ((row["config"], row["about"], row["found"]) for row in rows):
        key, weights = (config["method"], config["bits"], about[parameter]), result["weights"]
        metrics = weights["variance_several"], weights["corner"], weights["histogram"]
        lines.append([*key, result["map_retrieved"], result["random_retrieved"], *metrics])
    return DataFrame(lines, columns=columns)


def _table(settings: Settings, parameter: str, runs: DataFrame) -> Markup:
    """Return the means over the seeds behind the plots, as HTML; also written as table.md."""
    letter = LETTERS[parameter]
    heads = [letter, *(f"{bits} bits: {name}" for bits in settings.bits for name in COLUMN_FORMATS)]
    means = runs.groupby(["form", "value", "bits"], sort=False)[list(COLUMN_FORMATS)].mean()
    lines = []
    for form, value in means.index.droplevel("bits").unique():
        cells = [f"{METHODS[form].title}, {letter} = {value:g}"]
        for bits in settings.bits:
            row = means.loc[form, value, bits] if (form, value, bits) in means.index else None
            cells += ["" if row is None else text.format(row[name]) for name, text in COLUMN_FORMATS.items()]
        lines.append(cells)
    write_text(settings.folder(parameter) / "table.md", markdown_table(heads, lines) + "\n")
    return table(heads, lines)


def _map_plot(settings: Settings, parameter: str, runs: DataFrame) -> Markup:
    """Draw mAP against the parameter, one panel per number of bits, one line per form."""
    panels: dict[str, list[Series]] = {f"{bits} bits": [] for bits in settings.bits}
    for (bits, form), group in runs.groupby(["bits", "form"], sort=False):
        scores = group.groupby("value")["mAP"].agg(["mean", "std"]).fillna(0.0)
        values = scores.reset_index().to_numpy().T.tolist()
        panels[f"{bits} bits"].append(Series(METHODS[form].title, form, *values))
    random = [runs.loc[runs["bits"] == bits, "random"].mean() for bits in settings.bits]
    ticks = sorted(runs["value"].unique())
    figure = line_plot(panels, LETTERS[parameter], "mAP over retrieved relevant items", ticks, random)
    return common.write_figure(settings.folder(parameter) / "map", figure)


def _histograms(path: Path, letter: str, forms: list[str], values: list[float], runs: DataFrame) -> Markup:
    """Draw the distribution of the training images' weights: a row of panels per form, a column per value."""
    columns, rows = len(values), len(forms)
    with new_figure(2.1 * columns + 0.6, 2.1 * rows + 0.3, columns, rows) as (figure, axes):
        for axis, (form, value) in zip(axes, product(forms, values), strict=True):
            group = runs[(runs["form"] == form) & (runs["value"] == value)]
            counts = np.sum([[0] * BINS, *group["histogram"]], axis=0)
            common.weight_histogram(axis, counts, line_style(form).color)
            text = f", var {group['variance'].mean():.4f}" if len(group) else ""
            axis.set_title(f"{letter} {value:g}{text}", fontsize=8)
            axis.tick_params(labelsize=7)
            if value == values[0]:
                axis.set_ylabel(f"{METHODS[form].title}\nshare of labels", fontsize=8)
        return common.write_figure(path, figure)
