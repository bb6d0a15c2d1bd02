"""The demo: embedded data to a report, one working line through the whole package."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from centerhash.codes import Codes
from centerhash.core.errors import ConfigError
from centerhash.core.files import write_json
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import text_table
from centerhash.data import Dataset, open_dataset
from centerhash.encoding.code_files import evaluate_files
from centerhash.evaluation import Evaluation, evaluate
from centerhash.experiments.agreement import Agreement, measure_agreement
from centerhash.experiments.convergence import Convergence, batch_distances, solver_convergence
from centerhash.methods.registry import METHODS
from centerhash.model.model import HashModel
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.distributed import ProcessGroup
from centerhash.training.run import train
from centerhash.training.run_folder import versions
from centerhash.training.session import Session, dataset_features
from reproduction.scenes import write_scenes

BUILT_IN = "coco"
DEMO_METHODS = ("csq", "ewcs", "ics", "ics-softmax")
PRECISION_AT = (1, 10, 100)
WEIGHTED = ("ewcs", "ics", "ics-softmax")  # whose weights are compared with the true shares


@dataclass(frozen=True, eq=False)
class Seen:
    """What a model that was not trained on the scenes makes of them."""

    codes: Codes  # (N, K) of all scenes
    names: list[tuple[str, ...]]  # the labels that it predicts, of all scenes
    evaluation: Evaluation
    precision: float  # of the labels that it predicts for the queries
    recall: float  # of the labels that the queries have


@dataclass(frozen=True)
class DemoResult:
    """Everything that the report shows."""

    report: Path
    dataset: Dataset
    bits: int
    seed: int
    evaluations: dict[str, Evaluation]
    built_in: Seen
    agreements: dict[str, Agreement]
    weights: dict[str, NDArray[np.float32]]  # (Q, C) of the queries, per method
    areas: NDArray[np.float32]  # (Q, C) of the queries
    convergence: Convergence
    logs: dict[str, list[dict[str, float]]]
    seconds: float

    def table(self) -> Table:
        """mAP of every method beside the chance level, for a terminal."""
        first = next(iter(self.evaluations.values()))
        title = f"emoji scenes, {self.bits} bits, {first.queries:,} queries against {first.database:,} images"
        columns = (
            "method",
            ">mAP",
            ">over tie orders",
            ">precision@10",
            ">NDCG",
            ">weight vs. area (Pearson)",
        )
        agreed = {name: f"{found.pearson:.2f}" for name, found in self.agreements.items()}
        rows = [
            [METHODS[name].title, *_figures(found), agreed.get(name, "")]
            for name, found in self.evaluations.items()
        ]
        rows.append(["built-in model", *_figures(self.built_in.evaluation)])
        rows.append(["chance", f"{first.chance_textbook:.3f}"])
        return text_table(title, columns, rows, dim=("chance",))


def _figures(found: Evaluation) -> list[str]:
    figures = (found.map_textbook, found.map_textbook_expected, found.precision[10], found.ndcg)
    return [f"{figure:.3f}" for figure in figures]


def run_demo(
    out: str | Path,
    *,
    scenes: int = 2400,
    bits: int = 64,
    seed: int = 0,
    epochs: int | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> DemoResult:
    """Make scenes, compute features, train, evaluate, and write `out`/report.html with raw `results.json`.

    Everything finished is kept: a second run reuses scenes, features and models.
    """
    from centerhash.experiments.demo_report import write_report

    started, folder = time.monotonic(), Path(out)
    data = write_scenes(
        folder / "scenes",
        scenes,
        seed=seed,
        workers=min(2, os.cpu_count() or 1),
        progress=progress,
    )
    dataset = open_dataset(data, seed=seed)
    if dataset.areas is None:
        raise ConfigError(f"'{data}' has no areas: choose another folder.")
    chosen = {} if epochs is None else {"epochs": epochs}
    models, evaluations, logs = {}, {}, {}
    session = Session(ProcessGroup(device), cache=folder / "cache", progress=progress)
    features, _ = dataset_features(dataset, backbone_of(TrainConfig()), session)
    depth = len(dataset.splits.database)
    for number, method in enumerate(DEMO_METHODS):
        run = folder / "runs" / f"{method}-{bits}-{seed}"
        progress("methods", number, len(DEMO_METHODS), METHODS[method].title)
        # the report compares weights with areas, so they must not have seen any
        config = TrainConfig(method=method, bits=bits, seed=seed, sizes=False, **chosen)
        models[method] = train(
            dataset, config=config, out=run, cache=folder / "cache", device=device, progress=False
        )
        evaluations[method] = evaluate_files([run], k=depth, precision_at=PRECISION_AT)
        logs[method] = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    progress("methods", len(DEMO_METHODS), len(DEMO_METHODS), "done")

    queries = dataset.splits.query
    labels, areas = dataset.labels[queries], dataset.areas[queries]
    weights = {name: models[name].weights(features[queries], labels) for name in WEIGHTED}
    agreements = {name: measure_agreement(weights[name], areas, labels) for name in WEIGHTED}
    result = DemoResult(
        report=folder / "report.html",
        dataset=dataset,
        bits=bits,
        seed=seed,
        evaluations=evaluations,
        built_in=seen_by(HashModel.load(BUILT_IN), dataset, cache=folder / "cache", device=device),
        agreements=agreements,
        weights=weights,
        areas=areas,
        convergence=solver_convergence(*batch_distances(models["ics"], features, dataset, 256)),
        logs=logs,
        seconds=time.monotonic() - started,
    )
    write_json(folder / "results.json", _raw(result))
    write_report(result)
    return result


def seen_by(model: HashModel, dataset: Dataset, *, cache: Path, device: str = "auto") -> Seen:
    """Codes and labels that `model` gives to the images of `dataset`, and how good they are."""
    features, splits = dataset_features(dataset, model.backbone(), Session(ProcessGroup(device), cache=cache))
    codes, names, queries = model.encode_features(features), model.label_names(features), splits.query
    given = [{dataset.classes[j] for j in np.flatnonzero(dataset.labels[row])} for row in queries]
    right = sum(len(labels & set(names[row])) for row, labels in zip(queries, given, strict=True))
    return Seen(
        codes=codes,
        names=names,
        evaluation=evaluate(
            codes[queries],
            codes[splits.database],
            dataset.labels[queries],
            dataset.labels[splits.database],
            k=len(splits.database),
            precision_at=PRECISION_AT,
        ),
        precision=right / max(1, sum(len(names[row]) for row in queries)),
        recall=right / sum(map(len, given)),
    )


def _raw(result: DemoResult) -> dict[str, Any]:
    return {
        "data": {"name": "emoji scenes", "images": result.dataset.size, "seed": result.seed},
        "versions": versions(),
        "bits": result.bits,
        "evaluations": {name: found.to_dict() for name, found in result.evaluations.items()},
        "built_in": {
            "model": BUILT_IN,
            "evaluation": result.built_in.evaluation.to_dict(),
            "labels": {"precision": result.built_in.precision, "recall": result.built_in.recall},
        },
        "weights_against_area": {name: found.to_dict() for name, found in result.agreements.items()},
        "solver": {
            "true": result.convergence.true.tolist(),
            "printed": result.convergence.printed.tolist(),
            "minimum": result.convergence.minimum,
        },
        "seconds": result.seconds,
    }
