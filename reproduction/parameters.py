"""Fig. 4, 5 and 6: mAP and weights against beta and lambda."""

from __future__ import annotations

from collections.abc import Sequence

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
# Columns of the table, with their formats.
_MEASURES = {"mAP": "{:.3f}", "variance": "{:.4f}", "corner": "{:.0%}"}


def run(what: str, settings: Settings) -> Section:
    """Train ICS as printed and exact with every value of beta (Fig. 5) or lambda (Fig. 4 and 6) of the paper."""
    studies = common.printed()["studies"]
    # As printed, lambda is 1 while beta is tuned; all else is as each form has it.
    fixed = {"lambda": float(studies["lambda_of_beta"])} if what == "beta" else {}
    forms, values = settings.chosen(what, FORMS), sorted(map(float, studies[what]))
    tasks = [
        settings.task(
            form, bits, seed, {what: value, **(fixed if form == "ics-printed" else {})}, **{what: value}
        )
        for seed in range(settings.seeds)
        for bits in settings.bits
        for form in forms
        for value in values
    ]
    rows, failures = common.run_part(settings, what, tasks, _work)
    runs = _frame(rows, what)
    pieces = [
        paragraph(words(what)),
        _map_plot(settings, what, runs),
        heading(f"Weights of the training images, {settings.bits[-1]} bits"),
        _histograms(settings, what, forms, values, runs[runs["bits"] == settings.bits[-1]]),
        _table(settings, what, runs),
    ]
    if what == "lambda":
        pieces.append(paragraph(words("unstable")))
    return Section(what, f"The parameter {what}", (*pieces, note(words("parameters_remark"))), failures)


def _work(setup: EvaluationSetup, task: Task) -> Row:
    """Train one model: its mAP, and the distribution of the weights of its training images."""
    model = setup.train(task)
    scores = setup.evaluate(setup.encode(model))
    found = {name: getattr(scores, name) for name in ("map_retrieved", "map_all", "random_retrieved")}
    return {**found, "weights": weight_distribution(*common.train_weights(setup, model))}


def _frame(rows: Sequence[Row], what: str) -> DataFrame:
    """A line per run with its form, bits, value, and measures."""
    columns = ["form", "bits", "value", "mAP", "random", "variance", "corner", "histogram"]
    lines = []
    for config, about, found in ((row["config"], row["about"], row["found"]) for row in rows):
        key, weights = (config["method"], config["bits"], about[what]), found["weights"]
        measures = weights["variance_several"], weights["corner"], weights["histogram"]
        lines.append([*key, found["map_retrieved"], found["random_retrieved"], *measures])
    return DataFrame(lines, columns=columns)


def _table(settings: Settings, what: str, runs: DataFrame) -> Markup:
    """Return the means over the seeds behind the plots, as HTML; also written as table.md."""
    heads = [LETTERS[what], *(f"{bits} bits: {name}" for bits in settings.bits for name in _MEASURES)]
    means = runs.groupby(["form", "value", "bits"], sort=False)[list(_MEASURES)].mean()
    lines = []
    for form, value in means.index.droplevel("bits").unique():
        cells = [f"{METHODS[form].title}, {LETTERS[what]} = {value:g}"]
        for bits in settings.bits:
            found = means.loc[form, value, bits] if (form, value, bits) in means.index else None
            cells += ["" if found is None else text.format(found[name]) for name, text in _MEASURES.items()]
        lines.append(cells)
    write_text(settings.folder(what) / "table.md", markdown_table(heads, lines) + "\n")
    return table(heads, lines)


def _map_plot(settings: Settings, what: str, runs: DataFrame) -> Markup:
    """Draw mAP against the parameter, one panel per number of bits, one line per form."""
    panels: dict[str, list[Series]] = {f"{bits} bits": [] for bits in settings.bits}
    for (bits, form), found in runs.groupby(["bits", "form"], sort=False):
        scores = found.groupby("value")["mAP"].agg(["mean", "std"]).fillna(0.0)
        values = scores.reset_index().to_numpy().T.tolist()
        panels[f"{bits} bits"].append(Series(METHODS[form].title, form, *values))
    random = [runs.loc[runs["bits"] == bits, "random"].mean() for bits in settings.bits]
    ticks = sorted(runs["value"].unique())
    figure = line_plot(panels, LETTERS[what], "mAP over retrieved relevant items", ticks, random)
    return common.write_figure(settings.folder(what) / "map", figure)


def _histograms(
    settings: Settings, what: str, forms: Sequence[str], values: Sequence[float], runs: DataFrame
) -> Markup:
    """Draw the distribution of the training images' weights: a row of panels per form, a column per value."""
    across, down = len(values), len(forms)
    with new_figure(2.1 * across + 0.6, 2.1 * down + 0.3, across, down) as (figure, axes):
        for place, axis in enumerate(axes):
            form, value = forms[place // across], values[place % across]
            found = runs[(runs["form"] == form) & (runs["value"] == value)]
            counts = np.sum([[0] * BINS, *found["histogram"]], axis=0)
            common.weight_histogram(axis, counts, line_style(form).color)
            text = f", var {found['variance'].mean():.4f}" if len(found) else ""
            axis.set_title(f"{LETTERS[what]} {value:g}{text}", fontsize=8)
            axis.tick_params(labelsize=7)
            if place % across == 0:
                axis.set_ylabel(f"{METHODS[form].title}\nshare of labels", fontsize=8)
        return common.write_figure(settings.folder(what) / "weights", figure)
