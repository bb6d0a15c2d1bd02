"""Compare the weights with the areas of the instances: the paper claims that they agree, without a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import write_text
from centerhash.data import Dataset
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from centerhash.weights import softmax_weights
from reproduction import common
from reproduction.agreement import DRAWS, METRICS, measure_agreement
from reproduction.classifier import DECAY, classifier_logits
from reproduction.common import Section, Settings, note, paragraph, table, words

PART, TITLE = "instances", "Do the weights follow the instances?"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
# Sources of weights with their titles; "-code" computes them from the code instead of the class logits.
READINGS = {
    "ewcs": "equal weights (E-WCS)",
    "classifier": "linear classifier, softmax over the labels",
    "ics-printed": METHODS["ics-printed"].title,
    "ics": METHODS["ics"].title,
    "ics-softmax-code": "ICS-softmax, from the code",
    "ics-softmax": METHODS["ics-softmax"].title,
}
METRIC_TITLES = ("Pearson", "Pearson, 1/c subtracted", "largest weight on largest object")


def run(settings: Settings) -> Section:
    """Train every form and a classifier, and compare their weights with the areas of images not trained on."""
    forms, setup = settings.select(PART, FORMS), settings.source.open(settings.progress)
    areas_of(setup.dataset)
    tasks = [settings.task("ewcs", max(settings.bits), model="classifier")] + [
        settings.task(form, bits, seed, model=form)
        for seed, bits, form in product(range(settings.seeds), settings.bits, forms)
    ]
    rows, failures = common.run_part(settings, PART, tasks, partial(_work, settings.out))
    if not rows:
        return Section(PART, TITLE, (paragraph("Every training run failed."),), failures)
    images = next(iter(rows[0]["found"].values()))["images"]
    pieces = [
        paragraph(words("instances", data=setup.dataset.name, images=images)),
        *_tables(settings, rows),
        note(words("instances_remark", draws=DRAWS, seeds=settings.seeds)),
    ]
    return Section(PART, TITLE, tuple(pieces), failures)


def _work(out: Path, setup: EvaluationSetup, task: Task) -> Row:
    """Measure the agreement of all readings of one model on the images that were not trained on."""
    splits, areas = setup.dataset.splits, areas_of(setup.dataset)
    rows = np.setdiff1d(np.union1d(splits.query, splits.database), splits.train)
    features, labels = setup.features[rows], setup.dataset.labels[rows]
    weights: dict[str, NDArray[Any]] = {}
    if task.about["model"] == "classifier":
        logits = classifier_logits(setup.features, setup.dataset.labels, splits.train, DECAY)[rows]
        weights["classifier"] = softmax_weights(torch.from_numpy(logits), torch.from_numpy(labels)).numpy()
    else:
        model = common.train_or_load(out, setup, task)
        weights[model.spec.method] = model.weights(features, labels)
        if model.spec.head.evidence:
            outputs = torch.from_numpy(model.logits(features))
            of_code = model.objective.weights(outputs, torch.from_numpy(labels))
            weights[f"{model.spec.method}-code"] = of_code.numpy()
    return {key: measure_agreement(values, areas[rows], labels).to_dict() for key, values in weights.items()}


def areas_of(dataset: Dataset) -> NDArray[np.float32]:
    """Return the areas (N, C) of a dataset, which must have some."""
    if dataset.areas is None:
        raise DataError(
            f"'{dataset.name}' has no areas of objects: use labels.csv with the column 'areas', or COCO's json."
        )
    return dataset.areas


def _tables(settings: Settings, rows: Sequence[Row]) -> list[Markup]:
    """Return one table per number of bits, means over the seeds; also written as table.md."""
    pieces, texts = [], []
    for bits in settings.bits:
        of_bits = [row["found"] for row in rows if row["config"]["bits"] == bits]
        lines, chance = [], 0.0
        for key, title in READINGS.items():
            results = [values[key] for values in of_bits if key in values]
            cells = []
            for name in METRICS if results else ():
                triples = [(values[name], *values["intervals"][name]) for values in results]
                cells.append("{:.3f} ({:.3f} to {:.3f})".format(*np.mean(triples, axis=0)))
                chance = results[0]["chance"]
            lines += [[title, *cells]] if results else []
        heads = [f"{bits} bits", *METRIC_TITLES]
        lines.append(["random guess", "", "", f"{chance:.3f}"])
        texts.append(markdown_table(heads, lines) + "\n")
        pieces.append(table(heads, lines))
    write_text(settings.folder(PART) / "table.md", "\n".join(texts))
    return pieces
