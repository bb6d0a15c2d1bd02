"""Fig. 3: images with the weight of each label, selected by a rule and not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.data import Dataset, load_image
from centerhash.experiments.plots import line_style, new_figure
from centerhash.experiments.runner import rounded
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, words

PART, TITLE = "weights", "What the weights look like"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
IMAGES, COLUMNS, MAX_PIXELS = 12, 3, 200
FEWEST_LABELS, MOST_LABELS = 2, 4
# The number of bins is odd, so that 1/2 is in the middle of one.
BINS = 41
CORNER = 0.99


def run(settings: Settings) -> Section:
    """Train every form with the most bits; show weights of query images, and the distribution of training weights."""
    bits = max(settings.bits)
    tasks = [settings.task(form, bits) for form in settings.select(PART, FORMS)]
    rows, failures = common.run_part(settings, PART, tasks, partial(_work, settings.out))
    results = {row["config"]["method"]: row["found"] for row in rows}
    if not results:
        return Section(PART, TITLE, (), failures)
    folder, last = settings.folder(PART), list(results)[-1]
    pieces = [paragraph("This dataset has features and no images, so there are no pictures to show.")]
    if queries := results[last]["queries"]:
        selected = pick(queries)
        limits = {"fewest": FEWEST_LABELS, "most": MOST_LABELS}
        text = words("weights", **limits, count=len(selected), last=METHODS[last].title)
        dataset = settings.source.open().dataset
        pieces = [paragraph(text), _pictures(folder, dataset, results, selected)]
    variances = common.PRINTED["weights"]
    captions = ", ".join(f"{row['variance']:.4f} for λ = {row['lambda']:g}" for row in variances)
    pieces += [
        heading(f"Weights of the training images, {bits} bits"),
        _histograms(folder, {form: result["weights"] for form, result in results.items()}),
        note(words("weights_remark", captions=captions)),
    ]
    return Section(PART, TITLE, tuple(pieces), failures)


def _work(out: Path, setup: EvaluationSetup, task: Task) -> Row:
    """Return the distribution of the training weights, and the weights of query images with a few labels."""
    model, dataset = common.train_or_load(out, setup, task), setup.dataset
    row: Row = {"weights": weight_distribution(*common.train_weights(setup, model)), "queries": []}
    if dataset.image_paths is not None:
        counts = dataset.labels[dataset.splits.query].sum(axis=1)
        rows = dataset.splits.query[(counts >= FEWEST_LABELS) & (counts <= MOST_LABELS)]
        weights = model.weights(setup.features[rows], dataset.labels[rows])
        for image, values in zip(rows.tolist(), weights, strict=True):
            by_name = {dataset.classes[j]: float(values[j]) for j in np.flatnonzero(dataset.labels[image])}
            row["queries"].append({"row": image, "weights": rounded(by_name, 4)})
    return row


def weight_distribution(weights: NDArray[Any], labels: NDArray[np.bool_]) -> Row:
    """Describe weights (N, C) of labels (N, C), ready for json.

    `variance` is over all labels of all images, and least for equal weights. The others are over images with several
    labels: `variance_several`, the mean square of w - 1/c, a histogram, and the share with a weight above CORNER.
    """
    counts = labels.sum(axis=1)
    several = counts >= 2
    every, uneven = weights[labels].astype(np.float64), weights[several][labels[several]].astype(np.float64)
    even = np.repeat(1 / np.maximum(counts[several], 1), counts[several])
    largest = np.where(labels, weights, 0).max(axis=1)
    return {
        "variance": float(every.var()) if len(every) else 0.0,
        "variance_several": float(uneven.var()) if len(uneven) else 0.0,
        "variance_uneven": float(((uneven - even) ** 2).mean()) if len(uneven) else 0.0,
        "histogram": np.histogram(uneven, bins=BINS, range=(0, 1))[0].tolist(),
        "corner": float((largest[several] > CORNER).mean()) if several.any() else 0.0,
    }


def evenness(weights: Mapping[str, float]) -> float:
    """Compute the entropy of the weights of c labels over log c: 1 if they are equal, 0 if one has all."""
    values = np.array([value for value in weights.values() if value > 0])
    return float(-(values * np.log(values)).sum() / np.log(len(weights)))


def pick(queries: Sequence[Row], count: int = IMAGES) -> list[int]:
    """Return the positions of `count` images at even quantiles of the weights' evenness, the least even first.

    Ties are ordered by a seeded permutation, so that the order of the file does not matter.
    """
    order = np.random.default_rng(0).permutation(len(queries))
    entropies = np.array([evenness(queries[position]["weights"]) for position in order])
    ranked = order[np.argsort(entropies, kind="stable")]
    quantiles = np.linspace(0, len(queries) - 1, count) if len(queries) else np.empty(0)
    return [int(position) for position in ranked[np.unique(np.round(quantiles).astype(int))]]


def _pictures(folder: Path, dataset: Dataset, results: Mapping[str, Row], positions: list[int]) -> Markup:
    """Draw each image below the weights of its labels, and the shares of the area if they are known."""
    rows = -(-len(positions) // COLUMNS)
    with new_figure(3.4 * COLUMNS, 3.6 * rows, COLUMNS, rows) as (figure, axes):
        for axis in axes:
            axis.set_axis_off()
        for axis, position in zip(axes, positions, strict=False):
            queries = {METHODS[form].title: result["queries"][position] for form, result in results.items()}
            values = {title: query["weights"] for title, query in queries.items()}
            row = next(iter(queries.values()))["row"]
            if dataset.areas is not None and dataset.areas[row].any():
                shares = dataset.areas[row] / dataset.areas[row].sum()
                values["area"] = {dataset.classes[j]: shares[j] for j in np.flatnonzero(dataset.labels[row])}
            lines = []
            for title, by_label in values.items():
                lines.append(
                    f"{title}: " + ", ".join(f"{name} {value:.2f}" for name, value in by_label.items())
                )
            axis.set_title("\n".join(lines), fontsize=7)
            image = load_image((dataset.image_paths or ())[row])
            image.thumbnail((MAX_PIXELS, MAX_PIXELS))
            axis.imshow(np.asarray(image))
        return common.write_figure(folder / "pictures", figure)


def _histograms(folder: Path, distributions: Mapping[str, Row]) -> Markup:
    """Draw the distribution of the weights of images with several labels, one panel per method."""
    with new_figure(2.9 * len(distributions), 2.8, len(distributions)) as (figure, axes):
        for axis, (form, values) in zip(axes, distributions.items(), strict=True):
            common.weight_histogram(axis, np.array(values["histogram"]), line_style(form).color)
            about = "variance {variance_several:.4f}, in a corner {corner:.1%}".format(**values)
            axis.set_title(f"{METHODS[form].title}\n{about}", fontsize=9)
            axis.set_xlabel("weight")
        axes[0].set_ylabel("share of labels")
        return common.write_figure(folder / "histograms", figure)
