"""Do the weights follow the instances? What the paper claims and never measures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.core.files import write_text
from centerhash.data import open_dataset
from centerhash.experiments.grid import Bench
from centerhash.experiments.instances import MEASURES, bootstrap_intervals, measure_agreement
from centerhash.experiments.paper.classifier import classifier_weights, fit_classifier
from centerhash.experiments.paper.drawing import markdown_table, note, paragraph, table
from centerhash.experiments.paper.heldout import HeldOut, TestSource, source_of_test
from centerhash.experiments.paper.instance_figures import Shown, agreement_plot, scatter_plot
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.experiments.paper.tasks import Task, make_task, run_tasks, trained
from centerhash.experiments.rows import Row
from centerhash.methods.losses.central import center_distances
from centerhash.methods.table import METHODS
from centerhash.methods.weights import softmax_weights
from centerhash.model import HashModel

WHAT, TITLE = "instances", "Do the weights follow the instances?"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
SCALE = 0.3  # of softmax(-d / (SCALE K)): about what makes weights as uneven as areas
POINTS, DRAWS = 1500, 1000


@dataclass(frozen=True)
class Reading:
    """One way to get weights from a trained network."""

    key: str
    title: str
    method: str  # whose colour it has
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
)


def possible(settings: Settings) -> bool:
    """Whether there are areas to compare with."""
    return settings.test_images is not None or open_dataset(settings.source.path).areas is not None


def run(settings: Settings) -> Section:
    """Train every form and a classifier, and compare their weights with the areas of images not trained on."""
    source, forms = source_of_test(settings), settings.chosen(WHAT, FORMS)
    test = source.about(settings.source.open(settings.report))
    longest = max(settings.bits)
    tasks = []
    for seed in range(settings.seeds):
        plain = settings.cell("ewcs", longest, seed)
        tasks.append(make_task(settings, plain, model="classifier", test=test))
        for bits in settings.bits:
            tasks += [
                make_task(settings, settings.cell(form, bits, seed), model=form, test=test) for form in forms
            ]
    rows, failures = run_tasks(settings, WHAT, tasks, partial(work, source))
    if not rows:
        return Section(WHAT, TITLE, paragraph("Every training failed."), tuple(failures))
    folder, shown = settings.folder(WHAT), summarise(rows, longest)
    parts = [
        paragraph(_about(settings, test, rows)),
        agreement_plot(shown, longest).write(folder),
        "<h3>One point per label</h3>",
        scatter_plot(shown).write(folder),
        _tables(settings, rows),
        note(_remark(settings)),
    ]
    return Section(WHAT, TITLE, "".join(parts), tuple(failures))


def work(source: TestSource, bench: Bench, task: Task) -> Row:
    """All readings of one model, each with its intervals and a sample of its points."""
    images = source.open(bench)
    if task.about["model"] == "classifier":
        head = fit_classifier(bench, task.cell.config)
        found = {"classifier": classifier_weights(head, images.features, images.labels)}
    else:
        found = model_readings(trained(bench, task), images)
    return {key: compare(weights, images) for key, weights in found.items()}


def model_readings(model: HashModel, images: HeldOut) -> dict[str, NDArray[np.float32]]:
    """Weights (N, C) by the model's own solver, and others that its logits allow."""
    method = model.spec.method
    found = {method: model.weights(images.features, images.labels)}
    logits, labels = torch.from_numpy(model.logits(images.features)), torch.from_numpy(images.labels.copy())
    if method in ("ewcs", "ics"):
        scores = -center_distances(logits, model.centers) / (SCALE * model.bits)
        found[f"{method}-distance"] = softmax_weights(scores, labels).numpy()
    if model.spec.head.evidence:
        found[f"{method}-code"] = model.objective.weights(logits, labels).numpy()
    return found


def compare(weights: NDArray[Any], images: HeldOut, draws: int = DRAWS, seed: int = 0) -> Row:
    """Agreement with the areas, its intervals over images, and a seeded sample of shares and weights."""
    found = measure_agreement(weights, images.areas, images.labels)
    chosen = np.random.default_rng(seed).permutation(len(found.weights))[:POINTS]
    points = np.stack([found.shares[chosen], found.weights[chosen]], axis=1).round(4).tolist()
    intervals = bootstrap_intervals(weights, images.areas, images.labels, draws, seed)
    return {**found.to_dict(), "intervals": {k: list(v) for k, v in intervals.items()}, "points": points}


def summarise(rows: Sequence[Row], bits: int) -> list[Shown]:
    """What was found with so many bits, in the order of the READINGS, means over the seeds."""
    shown = []
    for reading in READINGS:
        found = [
            row["found"][reading.key]
            for row in rows
            if row["task"]["config"]["bits"] == bits and reading.key in row["found"]
        ]
        if found:
            values = {name: float(np.mean([item[name] for item in found])) for name in MEASURES}
            intervals = {
                name: tuple(np.mean([item["intervals"][name] for item in found], axis=0).tolist())
                for name in MEASURES
            }
            shown.append(
                Shown(
                    reading.title,
                    reading.method,
                    reading.hollow,
                    values,
                    intervals,
                    found[0]["chance"],
                    found[0]["points"],
                )
            )
    return shown


MEASURE_TITLES = {
    "pearson": "Pearson",
    "spearman": "Spearman",
    "centred_pearson": "Pearson, 1/c subtracted",
    "largest": "largest weight on largest object",
}


def _tables(settings: Settings, rows: Sequence[Row]) -> str:
    """One table per number of bits; also written as table.md."""
    parts, texts = [], []
    for bits in settings.bits:
        shown = summarise(rows, bits)
        lines = [[item.title, *(_cell(item, name) for name in MEASURES)] for item in shown]
        heads = [f"{bits} bits", *MEASURE_TITLES.values()]
        if shown:
            lines.append(["chance", "", "", "", f"{shown[0].chance:.3f}"])
        texts.append(markdown_table(heads, lines))
        parts.append(table(heads, [[html.escape(cell) for cell in line] for line in lines]))
    write_text(settings.folder(WHAT) / "table.md", "\n".join(texts))
    return "".join(parts)


def _cell(item: Shown, name: str) -> str:
    low, high = item.intervals[name]
    return f"{item.values[name]:.3f} ({low:.3f} to {high:.3f})"


def _about(settings: Settings, test: dict[str, Any], rows: Sequence[Row]) -> str:
    measured = next(iter(rows[0]["found"].values()))["images"]
    own = (
        "that are in no training split"
        if settings.test_images is None
        else "of another data set than trained on"
    )
    return (
        "The paper says that the weights reflect how much of the picture each object is, and shows a few images. Here it "
        f"is measured on {test['data']}: {measured:,} images with two labels or more and known areas, {own}."
    )


def _remark(settings: Settings) -> str:
    return (
        f"In brackets 95 % intervals over {DRAWS:,} seeded draws of images with replacement; values and ends are means "
        f"over {settings.seeds} seed(s) of training. Subtracting 1/c from weight and share leaves nothing of what the "
        "number of labels alone explains. Ties of the largest weight count as a random choice among them, so that equal "
        "weights score chance. Points are a seeded sample of labels, first seed."
    )
