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

from centerhash.core.errors import ConfigError
from centerhash.core.files import write_json
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, open_dataset
from centerhash.data.scenes.scenes import write_scenes
from centerhash.encoding.code_files import evaluate_files
from centerhash.evaluation import Evaluation
from centerhash.experiments.agreement import Agreement, measure_agreement
from centerhash.experiments.convergence import Convergence, batch_distances, solver_convergence
from centerhash.methods.table import METHODS
from centerhash.training.config import TrainConfig
from centerhash.training.distributed import Team
from centerhash.training.features import dataset_features
from centerhash.training.folder import versions
from centerhash.training.run import train

DEMO_METHODS = ("csq", "ewcs", "ics", "ics-softmax")
WEIGHTED = ("ewcs", "ics", "ics-softmax")  # whose weights are compared with the true shares


@dataclass(frozen=True)
class DemoResult:
    """Everything that the report shows."""

    report: Path
    dataset: Dataset
    bits: int
    seed: int
    evaluations: dict[str, Evaluation]
    agreements: dict[str, Agreement]
    weights: dict[str, NDArray[np.float32]]  # (Q, C) of the queries, per method
    areas: NDArray[np.float32]  # (Q, C) of the queries
    convergence: Convergence
    logs: dict[str, list[dict[str, float]]]
    seconds: float

    def table(self) -> Table:
        """mAP of every method beside the chance level, for a terminal."""
        first = next(iter(self.evaluations.values()))
        table = Table(
            title=f"emoji scenes, {self.bits} bits, {first.queries:,} queries against {first.database:,} images",
            title_justify="left",
        )
        columns = ("method", "mAP", "over tie orders", "precision@10", "NDCG", "weight vs. area (Pearson)")
        for column in columns:
            table.add_column(column, justify="left" if column == "method" else "right")
        for name, found in self.evaluations.items():
            agreement = self.agreements.get(name)
            table.add_row(
                METHODS[name].title,
                f"{found.map_textbook:.3f}",
                f"{found.map_textbook_expected:.3f}",
                f"{found.precision[10]:.3f}",
                f"{found.ndcg:.3f}",
                "" if agreement is None else f"{agreement.pearson:.2f}",
            )
        table.add_row("chance", f"{first.chance_textbook:.3f}", style="dim")
        return table


def run_demo(
    out: str | Path,
    *,
    scenes: int = 2400,
    bits: int = 64,
    seed: int = 0,
    epochs: int | None = None,
    hard: bool = False,
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
        hard=hard,
        workers=min(2, os.cpu_count() or 1),
        progress=progress,
    )
    dataset = open_dataset(data, seed=seed)
    if dataset.areas is None:
        raise ConfigError(f"'{data}' has no areas: choose another folder.")
    chosen = {} if epochs is None else {"epochs": epochs}
    models, evaluations, logs = {}, {}, {}
    features, _ = dataset_features(
        dataset, TrainConfig().backbone, cache=folder / "cache", team=Team(device), progress=progress
    )
    for number, method in enumerate(DEMO_METHODS):
        run = folder / "runs" / f"{method}-{bits}-{seed}"
        progress("methods", number, len(DEMO_METHODS), METHODS[method].title)
        config = TrainConfig(method=method, bits=bits, seed=seed, **chosen)
        models[method] = train(
            dataset, config=config, out=run, cache=folder / "cache", device=device, progress=False
        )
        depth = len(dataset.splits.database)
        evaluations[method] = evaluate_files([run], k=depth, precision_at=(1, 10, 100))
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


def _raw(result: DemoResult) -> dict[str, Any]:
    return {
        "data": {"name": "emoji scenes", "images": result.dataset.size, "seed": result.seed},
        "versions": versions(),
        "bits": result.bits,
        "evaluations": {name: found.to_dict() for name, found in result.evaluations.items()},
        "weights_against_area": {name: found.to_dict() for name, found in result.agreements.items()},
        "solver": {
            "true": result.convergence.true.tolist(),
            "printed": result.convergence.printed.tolist(),
            "minimum": result.convergence.minimum,
        },
        "seconds": result.seconds,
    }
