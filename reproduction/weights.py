"""The paper's picture of weights: images with the weight of each label, picked by a rule and not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.data import load_image
from centerhash.experiments.plots import line_style, new_figure
from centerhash.experiments.runner import rounded
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, words

WHAT, TITLE = "weights", "What the weights look like"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
IMAGES = 12
LABELS = (2, 4)  # fewest and most labels of an image that is shown
COLUMNS, PIXELS = 3, 200  # examples side by side, and the longer side of an image
BINS = 41  # of histograms; odd, so that 1/2 is in the middle of a bin
CORNER = 0.99  # above this weight, one center has all


def run(settings: Settings) -> Section:
    """Train every form with the most bits; show weights of query images, and the distribution of training weights."""
    bits, forms = max(settings.bits), settings.chosen(WHAT, FORMS)
    tasks = [settings.task(form, bits) for form in forms]
    rows, failures = common.run_part(settings, WHAT, tasks, partial(_work, settings.models))
    found = {row["config"]["method"]: row["found"] for row in rows}
    if not found:
        return Section(WHAT, TITLE, (), failures)
    folder, last = settings.folder(WHAT), list(found)[-1]
    pieces = [paragraph("This dataset has features and no images, so there are no pictures to show.")]
    if found[last]["queries"]:
        places = pick(found[last]["queries"])
        about = words(
            "weights", fewest=LABELS[0], most=LABELS[1], count=len(places), last=METHODS[last].title
        )
        pieces = [paragraph(about), _pictures(folder, settings, found, places)]
    spread = {form: values["weights"] for form, values in found.items()}
    captions = ", ".join(
        f"{row['variance']:.4f} for λ = {row['lambda']:g}" for row in common.printed()["weights"]
    )
    pieces += [
        heading(f"Weights of the training images, {bits} bits"),
        _histograms(folder, spread),
        note(words("weights_remark", captions=captions)),
    ]
    return Section(WHAT, TITLE, tuple(pieces), failures)


def _work(models: Path, setup: EvaluationSetup, task: Task) -> Row:
    """Return the distribution of the training weights, and the weights of query images with a few labels."""
    model, dataset = common.trained(models, setup, task), setup.dataset
    row: Row = {"weights": weight_distribution(*common.train_weights(setup, model)), "queries": []}
    if dataset.image_paths is not None:
        counts = dataset.labels[dataset.splits.query].sum(axis=1)
        rows = dataset.splits.query[(counts >= LABELS[0]) & (counts <= LABELS[1])]
        weights = model.weights(setup.features[rows], dataset.labels[rows])
        for image, values in zip(rows.tolist(), weights, strict=True):
            named = {dataset.classes[j]: float(values[j]) for j in np.flatnonzero(dataset.labels[image])}
            row["queries"].append({"row": image, "weights": rounded(named, 4)})
    return row


def weight_distribution(weights: NDArray[Any], labels: NDArray[np.bool_]) -> Row:
    """Describe weights (N, C) of labels (N, C), ready for json.

    `variance` is over all labels of all images, and least for equal weights; the others are over images with two labels
    or more: `variance_several`, the mean square of w - 1/c, a histogram, and the share with one weight above CORNER.
    """
    counts = labels.sum(axis=1)
    several = counts >= 2
    every, some = weights[labels].astype(np.float64), weights[several][labels[several]].astype(np.float64)
    even = np.repeat(1 / np.maximum(counts[several], 1), counts[several])
    largest = np.where(labels, weights, 0).max(axis=1)
    return {
        "variance": float(every.var()) if len(every) else 0.0,
        "variance_several": float(some.var()) if len(some) else 0.0,
        "variance_uneven": float(((some - even) ** 2).mean()) if len(some) else 0.0,
        "histogram": np.histogram(some, bins=BINS, range=(0, 1))[0].tolist(),
        "corner": float((largest[several] > CORNER).mean()) if several.any() else 0.0,
    }


def evenness(weights: Mapping[str, float]) -> float:
    """Compute the entropy of the weights of c labels over log c: 1 where they are equal, 0 where one has all."""
    values = np.array([value for value in weights.values() if value > 0])
    return float(-(values * np.log(values)).sum() / np.log(len(weights)))


def pick(queries: Sequence[Row], count: int = IMAGES) -> list[int]:
    """Return the positions of `count` images at even quantiles of the weights' evenness, the least even first.

    Ties are ordered by a seeded permutation, so that the order of the file decides nothing.
    """
    order = np.random.default_rng(0).permutation(len(queries))
    entropies = np.array([evenness(queries[place]["weights"]) for place in order])
    ranked = order[np.argsort(entropies, kind="stable")]
    quantiles = np.linspace(0, len(queries) - 1, count) if len(queries) else np.empty(0)
    return [int(ranked[place]) for place in np.unique(np.round(quantiles).astype(int))]


def _pictures(folder: Path, settings: Settings, found: Mapping[str, Row], places: Sequence[int]) -> Markup:
    """Draw each image below the weights of its labels, and the shares of the area where they are known."""
    dataset = settings.source.open().dataset
    rows = -(-len(places) // COLUMNS)
    with new_figure(3.4 * COLUMNS, 3.6 * rows, COLUMNS, rows) as (figure, axes):
        for axis in axes:
            axis.set_axis_off()
        for axis, place in zip(axes, places, strict=False):
            query = {form: values["queries"][place] for form, values in found.items()}
            row = next(iter(query.values()))["row"]
            lines = {METHODS[form].title: values["weights"] for form, values in query.items()}
            if dataset.areas is not None and dataset.areas[row].any():
                shares = dataset.areas[row] / dataset.areas[row].sum()
                present = np.flatnonzero(dataset.labels[row])
                lines["area"] = {dataset.classes[column]: shares[column] for column in present}
            texts = [f"{title}: {_text(values)}" for title, values in lines.items()]
            axis.set_title("\n".join(texts), fontsize=7)
            image = load_image((dataset.image_paths or ())[row])
            image.thumbnail((PIXELS, PIXELS))
            axis.imshow(np.asarray(image))
        return common.write_figure(folder / "pictures", figure)


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def _histograms(folder: Path, spread: Mapping[str, Row]) -> Markup:
    """Draw the distribution of the weights of images with several labels, one panel per method."""
    with new_figure(2.9 * len(spread), 2.8, len(spread)) as (figure, axes):
        for axis, (form, values) in zip(axes, spread.items(), strict=True):
            common.weight_histogram(axis, np.array(values["histogram"]), line_style(form).color)
            about = "variance {variance_several:.4f}, in a corner {corner:.1%}".format(**values)
            axis.set_title(f"{METHODS[form].title}\n{about}", fontsize=9)
            axis.set_xlabel("weight")
        axes[0].set_ylabel("share of labels")
        return common.write_figure(folder / "histograms", figure)
