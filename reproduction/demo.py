"""The demo: emoji scenes, features, training, evaluation, and a report in one HTML file.

The settings of each method are those of demo.json, chosen on a quarter of the scenes' training images with the same
number of trials for every method; queries were never used. After a first demo:

    centerhash tune demo/scenes --methods csq,ewcs,ics,ics-softmax --bits 64 --trials 6 --full 1 --cache demo/cache \\
        --out demo/tuned && cp demo/tuned/best.json reproduction/demo.json
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from rich.table import Table

from centerhash.codes import Codes, unpack
from centerhash.core.errors import ConfigError
from centerhash.core.files import write_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import new_figure, svg_text, text_table
from centerhash.core.version import __version__
from centerhash.data import Dataset, open_dataset
from centerhash.encoding.code_files import evaluate_files, read_run_codes
from centerhash.evaluation import Evaluation, evaluate, ranking
from centerhash.experiments.figures import look
from centerhash.experiments.tune import read_best
from centerhash.methods.registry import METHODS, get_method, training_options
from centerhash.model.base import Model
from centerhash.model.loading import load
from centerhash.search.results import thumbnail
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.distributed import ProcessGroup
from centerhash.training.run import train
from centerhash.training.run_folder import versions
from centerhash.training.session import Session, dataset_features
from reproduction.agreement import Agreement, measure_agreement
from reproduction.common import SOLVERS, area_scatter, templates
from reproduction.scenes import write_scenes
from reproduction.solver import Convergence, batch_distances, solver_convergence

BUILT_IN = "coco"
DEMO_METHODS = ("csq", "ewcs", "ics", "ics-softmax")
WEIGHTED = ("ewcs", "ics", "ics-softmax")  # their weights are compared with the true shares
SHOWN = "ics-softmax"  # its search results and weights are shown
SETTINGS = Path(__file__).with_name("demo.json")  # best.json of `centerhash tune`
PRECISION_AT = (1, 10, 100)
GRID_QUERIES, FEW_QUERIES, GRID_NEAREST, EXAMPLES = 6, 4, 8, 12


@dataclass(frozen=True, eq=False)
class BuiltIn:
    """The results of the built-in model, which was not trained on scenes."""

    codes: Codes  # (N, K) of all scenes
    names: list[tuple[str, ...]]  # predicted labels of all scenes
    evaluation: Evaluation
    precision: float  # of the predicted labels of the queries
    recall: float


@dataclass(frozen=True)
class DemoResult:
    """Everything that the report shows."""

    report: Path
    dataset: Dataset
    bits: int
    seed: int
    evaluations: dict[str, Evaluation]
    built_in: BuiltIn
    agreements: dict[str, Agreement]
    weights: dict[str, NDArray[np.float32]]  # (Q, C) of the queries, per method
    areas: NDArray[np.float32]  # (Q, C) of the queries
    convergence: Convergence
    logs: dict[str, list[dict[str, float]]]
    runs: dict[str, Path]
    seconds: float

    def table(self) -> Table:
        """The results of every method and of a random ranking, for a terminal."""
        first = next(iter(self.evaluations.values()))
        title = f"emoji scenes, {self.bits} bits, {first.queries:,} queries against {first.database:,} images"
        numbers = ("mAP", "over ties", "precision@10", "NDCG", "r with area")  # r: of the weights, Pearson
        agreed = {name: f"{found.pearson:.2f}" for name, found in self.agreements.items()}

        def line(title: str, found: Evaluation, agreement: str = "") -> list[str]:
            values = (found.map_textbook, found.map_textbook_expected, found.precision[10], found.ndcg)
            return [title, *(f"{value:.3f}" for value in values), agreement]

        rows = [
            line(METHODS[name].title, found, agreed.get(name, "")) for name, found in self.evaluations.items()
        ]
        rows.append(line("built-in model", self.built_in.evaluation))
        rows.append(["random ranking", f"{first.chance_textbook:.3f}"])
        return text_table(title, ("method", *(f">{name}" for name in numbers)), rows, dim=("random ranking",))


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
    """Draw scenes, compute features, train, evaluate, and write `out`/report.html with raw `results.json`.

    A second run reuses finished scenes, features and models.
    """
    started, folder = time.monotonic(), Path(out)
    workers = min(2, os.cpu_count() or 1)
    data = write_scenes(folder / "scenes", scenes, seed=seed, workers=workers, progress=progress)
    dataset = open_dataset(data, seed=seed)
    if dataset.areas is None:
        raise ConfigError(f"'{data}' has no areas: choose another folder.")
    cache: dict[str, Any] = {"cache": folder / "cache"}
    session = Session(ProcessGroup(device), **cache, progress=progress)
    features, _ = dataset_features(dataset, backbone_of(TrainConfig()), session)
    chosen = {} if epochs is None else {"epochs": epochs}
    points = read_best(SETTINGS, DEMO_METHODS)
    models, evaluations, logs, runs = {}, {}, {}, {}
    for number, method in enumerate(DEMO_METHODS):
        progress("methods", number, len(DEMO_METHODS), METHODS[method].title)
        # the report compares weights with areas, so training must not have used any
        own = training_options(get_method(method), points[method], bits)
        config = TrainConfig(
            **{**own, "method": method, "bits": bits, "seed": seed, "sizes": False, **chosen}
        )
        runs[method] = run = folder / "runs" / _run_name(config)
        models[method] = train(dataset, config=config, out=run, **cache, device=device, progress=False)
        depth = len(dataset.splits.database)
        evaluations[method] = evaluate_files([run], k=depth, precision_at=PRECISION_AT)
        logs[method] = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    progress("methods", len(DEMO_METHODS), len(DEMO_METHODS), "done")

    queries = dataset.splits.query
    labels, areas = dataset.labels[queries], dataset.areas[queries]
    weights = {name: models[name].weights(features[queries], labels) for name in WEIGHTED}
    result = DemoResult(
        report=folder / "report.html",
        dataset=dataset,
        bits=bits,
        seed=seed,
        evaluations=evaluations,
        built_in=evaluate_built_in(load(BUILT_IN), dataset, **cache, device=device),
        agreements={name: measure_agreement(weights[name], areas, labels) for name in WEIGHTED},
        weights=weights,
        areas=areas,
        convergence=solver_convergence(*batch_distances(models["ics"], features, dataset, 256)),
        logs=logs,
        runs=runs,
        seconds=time.monotonic() - started,
    )
    write_json(folder / "results.json", _raw(result))
    write_text(result.report, _report(result))
    return result


def _run_name(config: TrainConfig) -> str:
    """Name a run by its settings, so that an older demo with others is left alone."""
    digest = hashlib.blake2b(config.model_dump_json().encode(), digest_size=4).hexdigest()
    return f"{config.method}-{config.bits}-{config.seed}-{digest}"


def evaluate_built_in(model: Model, dataset: Dataset, *, cache: Path, device: str = "auto") -> BuiltIn:
    """Encode and label the images of `dataset` by `model`, and evaluate both."""
    features, splits = dataset_features(dataset, model.backbone(), Session(ProcessGroup(device), cache=cache))
    codes, names, queries = model.encode_features(features), model.label_names(features), splits.query
    given = [{dataset.classes[j] for j in np.flatnonzero(dataset.labels[row])} for row in queries]
    right = sum(len(labels & set(names[row])) for row, labels in zip(queries, given, strict=True))
    evaluation = evaluate(
        codes[queries],
        codes[splits.database],
        dataset.labels[queries],
        dataset.labels[splits.database],
        k=len(splits.database),
        precision_at=PRECISION_AT,
    )
    predicted = max(1, sum(len(names[row]) for row in queries))
    return BuiltIn(codes, names, evaluation, right / predicted, right / sum(map(len, given)))


def _raw(result: DemoResult) -> dict[str, Any]:
    built_in, solver = result.built_in, result.convergence
    return {
        "data": {"name": "emoji scenes", "images": result.dataset.size, "seed": result.seed},
        "versions": versions(),
        "bits": result.bits,
        "evaluations": {name: found.to_dict() for name, found in result.evaluations.items()},
        "built_in": {
            "model": BUILT_IN,
            "evaluation": built_in.evaluation.to_dict(),
            "labels": {"precision": built_in.precision, "recall": built_in.recall},
        },
        "weights_against_area": {name: found.to_dict() for name, found in result.agreements.items()},
        "solver": {
            "true": solver.true.tolist(),
            "printed": solver.printed.tolist(),
            "minimum": solver.minimum,
        },
        "seconds": result.seconds,
    }


# The report


def _report(result: DemoResult) -> str:
    splits, seen = result.dataset.splits, result.built_in
    query, database = (unpack(found.packed, found.bits) for found in read_run_codes(result.runs[SHOWN]))
    built_in = _search_results(result, seen.codes[splits.query], seen.codes[splits.database], FEW_QUERIES)
    for line in built_in:
        names = seen.names[line[0]["row"]]
        line[0] |= {"caption": "it sees", "labels": [(name, False) for name in names]}
    best = max(result.evaluations, key=lambda name: result.evaluations[name].map_textbook)
    found, agreement = result.evaluations[best], result.agreements[SHOWN]
    titles = {name: METHODS[name].title for name in result.agreements} | {"ewcs": "equal weights (E-WCS)"}
    return (
        templates()
        .get_template("demo.html")
        .render(
            title=f"centerhash: {result.bits}-bit codes of emoji scenes",
            result=result,
            first=next(iter(result.evaluations.values())),
            best=found.map_textbook,
            methods=METHODS,
            shown=SHOWN,
            cards=[
                (
                    f"{found.map_textbook:.3f}",
                    f"mAP of {METHODS[best].title}; chance is {found.chance_textbook:.3f}",
                ),
                (
                    f"{result.bits // 8} bytes",
                    f"per image: {result.bits}-bit codes, compared by Hamming distance",
                ),
                (
                    f"r = {agreement.pearson:.2f}",
                    "correlation of learned weight and visible area, images not trained on",
                ),
            ],
            answers=_search_results(result, query, database, GRID_QUERIES),
            built_in=built_in,
            examples=_examples(result),
            titles=titles,
            scatter=_scatter(result, titles),
            convergence=_convergence(result.convergence),
            losses=_losses(result.logs),
            facts=[
                f"centerhash {__version__}",
                f"seed {result.seed}",
                f"{result.seconds:.0f} s for this run",
                "drawings: OpenMoji (CC BY-SA 4.0)",
                "raw figures: results.json",
            ],
        )
    )


def _search_results(
    result: DemoResult, query: Codes, database: Codes, most: int
) -> list[list[dict[str, Any]]]:
    """Evenly spaced queries, each followed by its nearest images, by the codes of the splits' rows."""
    splits = result.dataset.splits
    spread = np.linspace(0, len(query) - 1, num=min(most, len(query))).astype(int)
    nearest, distances = ranking(query[spread], database, min(GRID_NEAREST, len(database)))
    lines = []
    for place, row in enumerate(splits.query[spread].tolist()):
        wanted = result.dataset.labels[row]
        line = [{"kind": "query", "caption": "query", **_image(result, row, np.zeros_like(wanted))}]
        for item, distance in zip(nearest[place].tolist(), distances[place].tolist(), strict=True):
            found = _image(result, int(splits.database[item]), wanted)
            kind = "hit" if any(shared for _, shared in found["labels"]) else "miss"
            line.append({"kind": kind, "caption": f"{distance} bit{'s' * (distance != 1)}", **found})
        lines.append(line)
    return lines


def _image(result: DemoResult, row: int, wanted: Any) -> dict[str, Any]:
    """An image, and its labels with whether they are `wanted`."""
    labels = [
        (result.dataset.classes[j], bool(wanted[j])) for j in np.flatnonzero(result.dataset.labels[row])
    ]
    return {"row": row, "source": _thumbnail(result, row, 128), "labels": labels}


def _thumbnail(result: DemoResult, row: int, size: int) -> str:
    return thumbnail((result.dataset.image_paths or ())[row], size)


def _examples(result: DemoResult) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """The first queries with three labels or more: image, and weight and area share per label, largest first."""
    dataset, examples = result.dataset, []
    queries = dataset.splits.query
    for place in np.flatnonzero(dataset.labels[queries].sum(axis=1) >= 3)[:EXAMPLES].tolist():
        row = int(queries[place])
        labels = np.flatnonzero(dataset.labels[row])
        shares = result.areas[place, labels] / result.areas[place, labels].sum()
        weights = result.weights[SHOWN][place, labels]
        order = np.argsort(-shares)
        lines = [(dataset.classes[labels[j]], float(weights[j]), float(shares[j])) for j in order]
        examples.append((_thumbnail(result, row, 160), lines))
    return examples


def _scatter(result: DemoResult, titles: dict[str, str]) -> Markup:
    """Weight against area share, one panel per method, with its correlations."""
    agreements = result.agreements
    with new_figure(3.5 * len(agreements), 3.7, len(agreements)) as (figure, axes):
        for axis, (method, found) in zip(axes, agreements.items(), strict=True):
            area_scatter(axis, found.shares, found.weights, look(method).color)
            metrics = f"Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f}"
            axis.set_title(f"{titles[method]}\n{metrics}", fontsize=10)
            axis.set_xlabel("true share of the labelled area")
        axes[0].set_ylabel("learned weight")
        return Markup(svg_text(figure))


def _convergence(found: Convergence) -> Markup:
    """Objective above its minimum against the number of steps, both gradients."""
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for key, (name, color, mark) in SOLVERS.items():
            above = np.maximum(getattr(found, key) - found.minimum, 1e-9)
            axis.semilogy(above, label=name, color=color, marker=mark, markersize=3, linewidth=1.5)
        axis.set(xlabel="steps of projected gradient descent", ylabel="objective above its minimum")
        axis.legend(frameon=False)
        return Markup(svg_text(figure))


def _losses(logs: dict[str, list[dict[str, float]]]) -> Markup:
    """Training loss per epoch, each method's relative to its first epoch."""
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for method, rows in logs.items():
            losses = np.array([row["loss"] for row in rows])
            epochs = [row["epoch"] for row in rows]
            axis.plot(epochs, losses / losses[0], label=METHODS[method].title, color=look(method).color)
        axis.set(xlabel="epoch", ylabel="loss relative to the first epoch")
        axis.legend(frameon=False)
        return Markup(svg_text(figure))
