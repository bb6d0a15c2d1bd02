"""Fig. 4, 5 and 6: mAP and weights against beta and lambda."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any

import numpy as np
from markupsafe import Markup

from centerhash.core.files import write_text
from centerhash.experiments.plots import RANDOM_LINE, look, new_figure
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, table, words
from reproduction.weights import BINS, weight_distribution

FORMS = ("ics-printed", "ics")
LETTERS = {"beta": "β", "lambda": "λ"}


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
    select = partial(_select, rows, what)
    pieces = [
        paragraph(words(what)),
        _map_plot(settings, what, forms, values, select),
        heading(f"Weights of the training images, {settings.bits[-1]} bits"),
        _histograms(settings, what, forms, values, select),
        _table(settings, what, forms, values, select),
    ]
    if what == "lambda":
        pieces.append(paragraph(words("unstable")))
    return Section(what, f"The parameter {what}", (*pieces, note(words("parameters_remark"))), failures)


class _Selection(list[Row]):
    """Rows of one form, number of bits and value."""

    def mean(self, *keys: str) -> float:
        """Return the mean of something that was measured, over the seeds."""
        return float(np.mean([reduce(getitem, keys, row["found"]) for row in self]))


def _select(rows: Sequence[Row], what: str, form: str, bits: int, value: float) -> _Selection:
    return _Selection(
        row
        for row in rows
        if (row["task"]["config"]["method"], row["task"]["config"]["bits"], row["task"][what])
        == (form, bits, value)
    )


Select = partial[_Selection]


def _work(setup: EvaluationSetup, task: Task) -> Row:
    """Train one model: its mAP, and the distribution of the weights of its training images."""
    model, splits = setup.train(task), setup.dataset.splits
    scores = setup.evaluate(
        model.bits, setup.encode(model, splits.query), setup.encode(model, splits.database)
    )
    found = {name: getattr(scores, name) for name in ("map_retrieved", "map_all", "random_retrieved")}
    return {**found, "weights": weight_distribution(*common.train_weights(setup, model))}


def _table(
    settings: Settings, what: str, forms: Sequence[str], values: Sequence[float], select: Select
) -> Markup:
    """Return the figures behind the plots, as HTML; also written as table.md."""
    columns = {
        "mAP": ("{:.3f}", "map_retrieved"),
        "variance": ("{:.4f}", "weights", "variance_several"),
        "corner": ("{:.0%}", "weights", "corner"),
    }
    heads = [LETTERS[what], *(f"{bits} bits: {name}" for bits in settings.bits for name in columns)]
    lines = []
    for form in forms:
        for value in values:
            cells = [f"{METHODS[form].title}, {LETTERS[what]} = {value:g}"]
            for bits in settings.bits:
                found = select(form, bits, value)
                cells += [text.format(found.mean(*keys)) if found else "" for text, *keys in columns.values()]
            lines.append(cells)
    write_text(settings.folder(what) / "table.md", markdown_table(heads, lines) + "\n")
    return table(heads, lines)


def _map_plot(
    settings: Settings, what: str, forms: Sequence[str], values: Sequence[float], select: Select
) -> Markup:
    """Draw mAP against the parameter, one panel per number of bits, one line per form."""
    with new_figure(3.7 * len(settings.bits), 3.5, len(settings.bits)) as (figure, axes):
        for axis, bits in zip(axes, settings.bits, strict=True):
            for form in forms:
                found = {value: rows for value in values if (rows := select(form, bits, value))}
                scores = [[row["found"]["map_retrieved"] for row in rows] for rows in found.values()]
                spread = [float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0 for seeds in scores]
                color, style, mark = look(form)
                drawn: dict[str, Any] = {
                    "color": color,
                    "linestyle": style,
                    "marker": mark,
                    "label": METHODS[form].title,
                }
                axis.errorbar(list(found), list(map(np.mean, scores)), yerr=spread, capsize=2, **drawn)
                for rows in list(found.values())[:1]:
                    axis.axhline(rows.mean("random_retrieved"), **RANDOM_LINE)
            axis.set_xscale("log")
            axis.set_title(f"{bits} bits", fontsize=10, loc="left")
            axis.set(xlabel=LETTERS[what])
        axes[0].set_ylabel("mAP over retrieved relevant items")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return common.write_figure(settings.folder(what) / "map", figure)


def _histograms(
    settings: Settings, what: str, forms: Sequence[str], values: Sequence[float], select: Select
) -> Markup:
    """Draw the distribution of the training images' weights: a row of panels per form, a column per value."""
    across, down = len(values), len(forms)
    with new_figure(2.1 * across + 0.6, 2.1 * down + 0.3, across, down) as (figure, axes):
        for place, axis in enumerate(axes):
            form, value = forms[place // across], values[place % across]
            found = select(form, settings.bits[-1], value)
            counts = [row["found"]["weights"]["histogram"] for row in found] or [[0] * BINS]
            common.weight_histogram(axis, np.sum(counts, axis=0), look(form).color)
            text = f", var {found.mean('weights', 'variance_several'):.4f}" if found else ""
            axis.set_title(f"{LETTERS[what]} {value:g}{text}", fontsize=8, loc="left")
            axis.tick_params(labelsize=7)
            if place % across == 0:
                axis.set_ylabel(f"{METHODS[form].title}\nshare of labels", fontsize=8)
        return common.write_figure(settings.folder(what) / "weights", figure)
