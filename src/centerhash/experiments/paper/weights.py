"""The paper's picture of weights: images with the weight of each label, chosen by a rule and not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from centerhash.experiments.grid import Bench
from centerhash.experiments.paper.boxes import read_boxes
from centerhash.experiments.paper.distribution import weight_distribution
from centerhash.experiments.paper.drawing import note, paragraph, table
from centerhash.experiments.paper.printed import printed
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.experiments.paper.tasks import Task, make_task, run_tasks, trained
from centerhash.experiments.paper.weight_figures import Example, example_plot, histogram_plot
from centerhash.experiments.rows import Row
from centerhash.methods.table import METHODS

WHAT, TITLE = "weights", "What the weights look like"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
PICTURES = 12
LABELS = (2, 4)  # fewest and most labels of a picture that is shown


def run(settings: Settings) -> Section:
    """Train every form with the most bits; show weights of query images, and how all training weights are spread."""
    bits, forms = max(settings.bits), settings.chosen(WHAT, FORMS)
    tasks = [make_task(settings, settings.cell(form, bits)) for form in forms]
    rows, failures = run_tasks(settings, WHAT, tasks, work)
    found = {row["task"]["config"]["method"]: row["found"] for row in rows}
    parts, folder = [], settings.folder(WHAT)
    pictures = _examples(settings, found)
    if pictures:
        last = METHODS[list(found)[-1]].title
        parts += [paragraph(_rule(len(pictures), last)), example_plot(pictures).write(folder)]
    elif found:
        parts.append(paragraph("This data set has features and no images, so there are no pictures to show."))
    if found:
        spread = {form: values["weights"] for form, values in found.items()}
        parts += [
            f"<h3>Weights of the training images, {bits} bits</h3>",
            histogram_plot(spread).write(folder),
        ]
        parts += [_table(spread), note(_remark())]
    return Section(WHAT, TITLE, "".join(parts), tuple(failures))


def work(bench: Bench, task: Task) -> Row:
    """How the training weights are spread, and the weights of the query images with a few labels."""
    model, dataset = trained(bench, task), bench.dataset
    train = np.sort(dataset.splits.train)
    labels = dataset.labels[train]
    spread = weight_distribution(model.weights(bench.features[train], labels), labels)
    return {
        "weights": spread,
        "queries": [] if dataset.image_paths is None else _query_weights(bench, model.weights),
    }


def _query_weights(bench: Bench, solve: Any) -> list[Row]:
    """Per query image with a few labels its row, and weight and area share by label."""
    dataset = bench.dataset
    counts = dataset.labels[dataset.splits.query].sum(axis=1)
    rows = dataset.splits.query[(counts >= LABELS[0]) & (counts <= LABELS[1])]
    weights = solve(bench.features[rows], dataset.labels[rows])
    found = []
    for place, row in enumerate(rows.tolist()):
        labels = np.flatnonzero(dataset.labels[row])
        named = {dataset.classes[label]: float(weights[place, label]) for label in labels}
        areas = (
            {}
            if dataset.areas is None
            else {dataset.classes[j]: float(dataset.areas[row, j]) for j in labels}
        )
        total = sum(areas.values())
        shares = {name: area / total for name, area in areas.items()} if total > 0 else {}
        found.append({"row": row, "weights": rounded_values(named), "shares": rounded_values(shares)})
    return found


def rounded_values(values: Mapping[str, float]) -> dict[str, float]:
    """Four digits are enough for a bar."""
    return {name: round(value, 4) for name, value in values.items()}


def evenness(weights: Mapping[str, float]) -> float:
    """Entropy of the weights of c labels over log c: 1 where they are equal, 0 where one has all."""
    values = np.array([value for value in weights.values() if value > 0])
    return float(-(values * np.log(values)).sum() / np.log(len(weights)))


def choose(queries: Sequence[Row], count: int = PICTURES, seed: int = 0) -> list[int]:
    """Places of at most `count` images at even quantiles of the weights' entropy over log c, lowest first.

    Ties are ordered by a seeded permutation, so that the order of the file decides nothing.
    """
    order = np.random.default_rng(seed).permutation(len(queries))
    entropies = np.array([evenness(queries[place]["weights"]) for place in order])
    ranked = order[np.argsort(entropies, kind="stable")]
    quantiles = np.linspace(0, len(queries) - 1, count) if len(queries) else np.empty(0)
    return [int(ranked[place]) for place in np.unique(np.round(quantiles).astype(int))]


def _examples(settings: Settings, found: Mapping[str, Any]) -> list[Example]:
    """The chosen images with what all methods say of them."""
    forms = [form for form, values in found.items() if values["queries"]]
    if not forms:
        return []
    dataset = settings.source.open().dataset
    boxes, paths = read_boxes(dataset.root), dataset.image_paths or ()
    examples = []
    for place in choose(found[forms[-1]]["queries"]):
        query = found[forms[-1]]["queries"][place]
        examples.append(
            Example(
                path=paths[query["row"]],
                weights={form: found[form]["queries"][place]["weights"] for form in forms},
                shares=query["shares"],
                boxes=boxes.get(dataset.names[query["row"]], {}),
            )
        )
    return examples


def _rule(count: int, last: str) -> str:
    return (
        f"Query images with {LABELS[0]} to {LABELS[1]} labels, none trained on: {count} of them at even quantiles of the "
        f"entropy of their weights (over log c) by {last}, most uneven first, ties in a seeded order. "
        "Nobody chose them. Boxes are the data set's own, where it has them; grey bars are each label's share of the "
        "labelled area."
    )


def _table(spread: Mapping[str, Any]) -> str:
    heads = [
        "",
        "labels",
        "variance",
        "variance, two labels or more",
        "mean square of w - 1/c",
        "in a corner",
    ]
    lines = [
        [
            METHODS[form].title,
            f"{values['labels']:,}",
            f"{values['variance']:.4f}",
            f"{values['variance_several']:.4f}",
            f"{values['variance_uneven']:.5f}",
            f"{values['corner']:.1%}",
        ]
        for form, values in spread.items()
    ]
    return table(heads, lines)


def _remark() -> str:
    captions = ", ".join(f"{row['variance']:.4f} for λ = {row['lambda']:g}" for row in printed()["weights"])
    return (
        f"The paper prints a variance of {captions} (COCO, AlexNet, 64 bits) and does not say of which images. Equal "
        "weights have a variance too, since images have different numbers of labels, and over all labels none can have "
        "less: on COCO more than the paper prints, so that its figures are probably of images with two labels or more. "
        "The mean square of w - 1/c is what the solver adds."
    )
