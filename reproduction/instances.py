"""Do the weights follow the instances? What the paper claims and never measures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from centerhash.core.errors import DataError, did_you_mean
from centerhash.core.files import write_text
from centerhash.core.rendering import new_figure
from centerhash.data import Dataset, open_dataset
from centerhash.data.layouts.contents import normal_name, read_lines
from centerhash.experiments.figures import CHANCE, LOOKS, Look
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.losses.central import center_distances
from centerhash.methods.registry import METHODS
from centerhash.methods.weights import class_sizes, resized, softmax_weights
from centerhash.model.model import HashModel
from centerhash.training.config import TrainConfig
from centerhash.training.loop import fit_head
from reproduction import common
from reproduction.agreement import METRICS, bootstrap_intervals, measure_agreement
from reproduction.common import Section, Settings, heading, note, paragraph, table, words

WHAT, TITLE = "instances", "Do the weights follow the instances?"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
SCALE = 0.3  # of softmax(-d / (SCALE K)): about what makes weights as uneven as areas
POINTS, DRAWS = 1500, 1000
_CHUNK = 4096  # rows per pass through a classifier


@dataclass(frozen=True)
class Reading:
    """One way to get weights from a trained network."""

    key: str
    title: str
    method: str  # whose color it has
    hollow: bool = False


READINGS = (
    Reading("ewcs", "equal weights (E-WCS)", "ewcs"),
    Reading("ewcs-distance", f"E-WCS, softmax(-d / ({SCALE} K))", "ewcs", hollow=True),
    Reading("classifier", "classifier, softmax of its logits", "classifier"),
    Reading("ics-printed", METHODS["ics-printed"].title, "ics-printed"),
    Reading("ics", METHODS["ics"].title, "ics"),
    Reading("ics-distance", f"ICS, softmax(-d / ({SCALE} K))", "ics", hollow=True),
    Reading(
        "ics-softmax-code", "ICS-softmax, by the code instead of the evidence", "ics-softmax", hollow=True
    ),
    Reading("ics-softmax", METHODS["ics-softmax"].title, "ics-softmax"),
    Reading("ics-softmax-sizes", "ICS-softmax, and typical sizes of classes from areas", "ics-softmax"),
)


def possible(settings: Settings) -> bool:
    """Whether there are areas to compare with."""
    return settings.test_images is not None or open_dataset(settings.source.path).areas is not None


def run(settings: Settings) -> Section:
    """Train every form and a classifier, and compare their weights with the areas of images not trained on."""
    source, forms = source_of_test(settings), settings.chosen(WHAT, FORMS)
    test = source.about(settings.source.open(settings.progress))
    longest = max(settings.bits)
    tasks = []
    for seed in range(settings.seeds):
        tasks.append(settings.task("ewcs", longest, seed, model="classifier", test=test))
        tasks += [
            settings.task(form, bits, seed, model=form, test=test) for bits in settings.bits for form in forms
        ]
    rows, failures = common.run_part(settings, WHAT, tasks, partial(_work, source, settings.models))
    if not rows:
        return Section(WHAT, TITLE, (paragraph("Every training run failed."),), failures)
    folder, shown = settings.folder(WHAT), summarize(rows, longest)
    measured = next(iter(rows[0]["found"].values()))["images"]
    own, other = "that are in no training split", "of another dataset than trained on"
    which = own if settings.test_images is None else other
    pieces = (
        paragraph(words("instances", data=test["data"], images=measured, which=which)),
        _agreement_plot(folder, shown, longest),
        heading("One point per label"),
        _scatter_plot(folder, shown),
        *_tables(settings, rows),
        note(words("instances_remark", draws=DRAWS, seeds=settings.seeds)),
    )
    return Section(WHAT, TITLE, pieces, failures)


def _work(source: TestSource, models: Path, setup: EvaluationSetup, task: Task) -> Row:
    """All readings of one model, each with its intervals and a sample of its points."""
    images = source.open(setup)
    if task.about["model"] == "classifier":
        head = fit_classifier(setup, task.config)
        found = {"classifier": classifier_weights(head, images.features, images.labels)}
    else:
        found = _model_readings(common.trained(models, setup, task), images)
    return {key: _compare(weights, images) for key, weights in found.items()}


def _model_readings(model: HashModel, images: HeldOut) -> dict[str, NDArray[np.float32]]:
    """Weights (N, C) by the model's own solver, and others that its logits allow."""
    method = model.spec.method
    found = {method: model.weights(images.features, images.labels)}
    logits, labels = torch.from_numpy(model.logits(images.features)), torch.from_numpy(images.labels.copy())
    if method in ("ewcs", "ics"):
        scores = -center_distances(logits, model.centers) / (SCALE * model.bits)
        found[f"{method}-distance"] = softmax_weights(scores, labels).numpy()
    if model.spec.head.evidence:
        found[f"{method}-code"] = model.objective.weights(logits, labels).numpy()
        found[f"{method}-sizes"] = _with_sizes(found[method], images)
    return found


def _with_sizes(weights: NDArray[np.float32], images: HeldOut) -> NDArray[np.float32]:
    """Weights (N, C) with typical sizes of the classes, those of each half of the images from the other half's areas."""
    halves = np.array_split(np.random.default_rng(0).permutation(len(weights)), 2)
    sized = np.empty_like(weights)
    for own, other in (halves, halves[::-1]):
        seen, labels, areas = (
            torch.from_numpy(part[other]) for part in (weights, images.labels, images.areas)
        )
        sized[own] = resized(torch.from_numpy(weights[own]), class_sizes(seen, labels, areas).float()).numpy()
    return sized


def _compare(weights: NDArray[Any], images: HeldOut) -> Row:
    """Agreement with the areas, its intervals over images, and a seeded sample of shares and weights."""
    found = measure_agreement(weights, images.areas, images.labels)
    chosen = np.random.default_rng(0).permutation(len(found.weights))[:POINTS]
    points = np.stack([found.shares[chosen], found.weights[chosen]], axis=1).round(4).tolist()
    intervals = bootstrap_intervals(weights, images.areas, images.labels, DRAWS)
    return {**found.to_dict(), "intervals": {k: list(v) for k, v in intervals.items()}, "points": points}


# Images to measure on


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Features (N, D), labels (N, C) and areas (N, C), the C classes being those of the training data."""

    features: NDArray[Any]
    labels: NDArray[np.bool_]
    areas: NDArray[np.float32]


@dataclass(frozen=True)
class TestSource:
    """Where the images come from: the training data itself, or another dataset with the same class names."""

    __test__ = False  # it is no test of ours, whatever its name begins with

    source: Source  # of the training data, for cache and device
    path: Path | None = None
    exclude: frozenset[str] = frozenset()  # names or ids of images to leave out

    def rows(self, dataset: Dataset) -> NDArray[np.int64]:
        """The images of the dataset, which is the other one if there is one, that were not trained on."""
        splits = dataset.splits
        if self.path is None:
            pool = np.setdiff1d(np.union1d(splits.query, splits.database), splits.train)
        else:
            pool = np.arange(dataset.size)
        kept = [row for row in pool.tolist() if not self.exclude & _names(dataset.names[row])]
        return np.array(kept, dtype=np.int64)

    def open(self, setup: EvaluationSetup) -> HeldOut:
        """The images with their features; DataError if areas are unknown or classes do not match."""
        dataset, features = setup.dataset, setup.features
        rows = self.rows(dataset)
        if self.path is not None:
            dataset = open_dataset(self.path)
            features, splits = self.source.features(dataset)
            if features.shape[1] != setup.features.shape[1]:
                raise DataError(
                    f"'{self.path}' gives {features.shape[1]} features per image, the training data "
                    f"{setup.features.shape[1]}: both must come from the same backbone."
                )
            whole = np.concatenate([splits.train, splits.query, splits.database])  # without broken images
            rows = np.intersect1d(self.rows(dataset), whole)
        columns, areas = class_columns(dataset, setup.dataset.classes), areas_of(dataset)
        shape = (len(rows), len(setup.dataset.classes))
        labels, wide = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.float32)
        labels[:, columns], wide[:, columns] = dataset.labels[rows], areas[rows]
        return HeldOut(features[rows], labels, wide)

    def about(self, setup: EvaluationSetup) -> dict[str, Any]:
        """What tells these images from others, ready for json."""
        dataset = setup.dataset if self.path is None else open_dataset(self.path)
        rows, areas = self.rows(dataset), areas_of(dataset)
        class_columns(dataset, setup.dataset.classes)
        digest = hashlib.blake2b("\n".join(dataset.names[row] for row in rows).encode(), digest_size=8)
        digest.update(areas[rows].tobytes())
        return {"data": dataset.name, "images": len(rows), "digest": digest.hexdigest()}


def source_of_test(settings: Settings) -> TestSource:
    """The images that the settings ask for."""
    listed = () if settings.exclude is None else read_lines(settings.exclude)
    exclude = frozenset(name for line in listed if line for name in _names(line))
    return TestSource(settings.source, settings.test_images, exclude)


def _names(name: str) -> set[str]:
    """All that an image may be called: its path, its file's name, that without ending, and as a number."""
    path = PurePosixPath(normal_name(name))
    return {str(path), path.name, path.stem, path.stem.lstrip("0") or "0"}


def areas_of(dataset: Dataset) -> NDArray[np.float32]:
    """The areas (N, C) of a dataset, which must have some."""
    if dataset.areas is None:
        raise DataError(
            f"'{dataset.name}' has no areas of objects. Use a dataset with areas (the column 'areas' of labels.csv, or "
            "COCO's json), or name one for the test images."
        )
    return dataset.areas


def class_columns(dataset: Dataset, classes: tuple[str, ...]) -> list[int]:
    """The place of each class of a dataset among `classes`, by name."""
    places = {name: place for place, name in enumerate(classes)}
    for name in dataset.classes:
        if name not in places:
            raise DataError(
                f"the class '{name}' of the test images '{dataset.name}' is not one of the training data."
                f"{did_you_mean(name, classes)} Every class must be there under the same name."
            )
    return [places[name] for name in dataset.classes]


# A plain classifier with the same head: what instance weights have to be better than


class Classification(Objective):
    """Binary cross entropy of every class, one logit each."""

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Mean over images and classes of logits (B, C) against labels (B, C)."""
        targets = batch.labels.to(batch.logits.dtype)
        return {"class": binary_cross_entropy_with_logits(batch.logits, targets)}


def fit_classifier(setup: EvaluationSetup, config: TrainConfig) -> nn.Module:
    """Train the head of `config` with one output per class on the training images; returned in eval mode."""
    labels, rows = setup.dataset.labels, setup.dataset.splits.train
    as_wide = config.model_copy(update={"bits": labels.shape[1]})
    head, _ = fit_head(setup.features, rows, labels[rows], Classification(), as_wide, setup.session)
    return head


def classifier_weights(
    head: nn.Module, features: NDArray[Any], labels: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Softmax (N, C) of a classifier's logits over the labels (N, C) of images with features (N, D)."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(features), _CHUNK):
            rows = slice(start, start + _CHUNK)
            logits = head(torch.from_numpy(features[rows].astype(np.float32))).logits
            parts.append(softmax_weights(logits, torch.from_numpy(labels[rows].copy())).numpy())
    return np.concatenate(parts) if parts else np.zeros(labels.shape, dtype=np.float32)


# What is shown

_CLASSIFIER = Look("#444444", mark="*")  # no hashing method: neither its color nor its mark is one of theirs
TITLES = {
    "largest": "largest weight on largest object",
    "centred_pearson": "Pearson, 1/c subtracted",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
_COLUMNS = 4  # panels of points side by side


@dataclass(frozen=True)
class Shown:
    """A reading with what was found, as a line of figures and tables."""

    reading: Reading
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    chance: float
    points: Sequence[tuple[float, float]]  # area share and weight of some labels

    @property
    def look(self) -> Look:
        """Colour and mark."""
        return LOOKS.get(self.reading.method, _CLASSIFIER)


def summarize(rows: Sequence[Row], bits: int) -> list[Shown]:
    """What was found with so many bits, in the order of the READINGS, means over the seeds."""
    shown = []
    for reading in READINGS:
        found = [
            row["found"][reading.key]
            for row in rows
            if row["task"]["config"]["bits"] == bits and reading.key in row["found"]
        ]
        if found:
            values = {name: float(np.mean([item[name] for item in found])) for name in METRICS}
            intervals = {
                name: tuple(np.mean([item["intervals"][name] for item in found], axis=0).tolist())
                for name in METRICS
            }
            shown.append(Shown(reading, values, intervals, found[0]["chance"], found[0]["points"]))
    return shown


def _tables(settings: Settings, rows: Sequence[Row]) -> list[Markup]:
    """One table per number of bits; also written as table.md."""
    parts, texts = [], []
    for bits in settings.bits:
        shown = summarize(rows, bits)
        lines = []
        for item in shown:
            ends = [(item.values[name], *item.intervals[name]) for name in METRICS]
            cells = (f"{value:.3f} ({low:.3f} to {high:.3f})" for value, low, high in ends)
            lines.append([item.reading.title, *cells])
        heads = [f"{bits} bits", *(TITLES[name] for name in METRICS)]
        if shown:
            lines.append(["random guess", "", "", "", f"{shown[0].chance:.3f}"])
        texts.append(markdown_table(heads, lines) + "\n")
        parts.append(table(heads, lines))
    write_text(settings.folder(WHAT) / "table.md", "\n".join(texts))
    return parts


def _agreement_plot(folder: Path, shown: Sequence[Shown], bits: int) -> Markup:
    """One panel per measure: every reading with its interval."""
    with new_figure(12.5, 1.3 + 0.36 * len(shown), len(TITLES)) as (figure, axes):
        for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
            for place, item in enumerate(reversed(shown)):
                color, _, mark = item.look
                value, (low, high) = item.values[name], item.intervals[name]
                axis.plot([low, high], [place, place], color=color, linewidth=2, solid_capstyle="butt")
                fill = "white" if item.reading.hollow else color
                axis.plot(value, place, mark, color=color, markerfacecolor=fill, markersize=7)
            if name == "largest":
                axis.axvline(shown[0].chance, **CHANCE)
                place_of = (shown[0].chance, 1)
                axis.annotate(
                    "random guess", place_of, xycoords=("data", "axes fraction"), fontsize=8, va="bottom"
                )
            titles = [item.reading.title for item in reversed(shown)]
            axis.set_yticks(range(len(shown)), titles if axis is axes[0] else [""] * len(shown))
            axis.set_xlabel(title)
        figure.suptitle(f"{bits} bits, 95 % intervals over images", fontsize=10)
        return common.write_figure(folder / "agreement", figure)


def _scatter_plot(folder: Path, shown: Sequence[Shown]) -> Markup:
    """Weight against area share, one panel per reading."""
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    with new_figure(3.1 * columns, 3.4 * rows, columns, rows) as (figure, axes):
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        for place, (axis, item) in enumerate(zip(axes, shown, strict=False)):
            shares, weights = np.array(item.points).reshape(-1, 2).T
            common.area_scatter(axis, shares, weights, item.look.color)
            axis.set_title(f"{item.reading.title}\nr = {item.values['pearson']:.2f}", fontsize=9)
            axis.set_xlabel("share of the labelled area")
            if place % columns == 0:
                axis.set_ylabel("weight")
        return common.write_figure(folder / "points", figure)
