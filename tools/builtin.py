"""Train the built-in model "coco": `python -m tools.builtin --data coco117k --images train2017 --photos coco6k`.

`--data` is the folder that `python -m reproduction coco117k` writes (labels, HashNet's split, ids of photos), `--images`
the folder of these photos. EfficientNet-Lite0's last two stages and a head are trained on all photos but the queries, so
that anybody can measure the model on the queries. `--photos` is a dataset of some of these photos with areas, such as
COCO's json. Its queries measure the shares, and its other photos fit typical sizes of the classes.

`--run` stores the run and `--cache` the maps of the photos (13 GB), so that an interrupted run resumes. The model becomes
src/centerhash/builtin/coco/model.onnx, its head in half precision, with results in card.md and figures.json next to it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import centerhash as ch
from benchmarks.quality import by_labels, class_precision, fill
from centerhash.cli import console
from centerhash.data.splits import Splits
from centerhash.index import Index
from centerhash.model.export import export_model
from centerhash.model.model import HashModel
from centerhash.model.spec import PORTABLE
from centerhash.networks.cache import default_cache
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.context import RunContext
from centerhash.training.distributed import join_processes
from centerhash.training.finish import with_sizes
from centerhash.training.pipeline import fit_model
from centerhash.training.run_folder import open_run
from reproduction.agreement import measure_agreement
from reproduction.coco117k import image_ids
from reproduction.instances import areas_of

TARGET = Path(__file__).parents[1] / "src" / "centerhash" / "builtin" / "coco"
CARD = Path(__file__).with_name("builtin_card.md")
SETTINGS: dict[str, Any] = {
    "method": "ics-softmax",
    "bits": 64,
    "backbone": "efficientnet-lite0",
    "finetune": "last",
    "stages": 2,
    "epochs": 3,
    "learning_rate": 2e-3,
    "backbone_rate": 0.05,
    # 112,459 photos train a head within a part of the first epoch.
    "warm_start": False,
    "precision": "bf16",
    # Of three sizes of the layer for probabilities, 1,024 was best on held-out photos. The file stays under 25 MB.
    "head": {"hidden": (672,), "presence_hidden": 1024},
    "options": {"scale": 8.0, "lambda": 2.0},
}


def train(
    data: ch.Dataset, ids: NDArray[np.int64], images: Path, run: Path, cache: Path
) -> tuple[HashModel, NDArray[np.float32]]:
    """Return the model of all photos but the queries, and the features (N, D) of all photos by its network."""
    rest = np.setdiff1d(np.arange(len(data)), data.splits.query)
    photos = dataclasses.replace(
        data,
        splits=Splits(rest, data.splits.query, rest, source="all photos but the queries"),
        features=None,
        image_paths=tuple(images / f"{number:012d}.jpg" for number in ids),
    )
    config = resolve(TrainConfig(**SETTINGS))
    group = join_processes("auto", config.precision)
    with console.progress() as report:
        context = RunContext(group, cache=cache, progress=report)
        with open_run(run, photos, config, context) as context:
            fit = fit_model(photos, config, context)
    return fit.model, fit.features


def export(model: HashModel) -> HashModel:
    """Write model.onnx, its head rounded to half precision, and return the rounded model.

    With a backbone in half precision, 0.11 % of the general bits would change.
    """
    tensors = {
        name: tensor.half().float() if tensor.ndim == 2 and tensor.is_floating_point() else tensor
        for name, tensor in model.tensors().items()
    }
    rounded = HashModel(model.spec, tensors, model.folder)
    export_model(rounded, TARGET / PORTABLE)
    return rounded


def card(figures: dict[str, Any]) -> str:
    """Return the card of the model with its results."""
    largest, photos = figures["shares"]["largest_first"], figures["shares"]["photos"]
    error = 1.96 * (largest * (1 - largest) / photos) ** 0.5  # half of a 95 % interval
    template = CARD.read_text(encoding="utf-8")
    return template.format(**figures, largest_error=error, epochs=SETTINGS["epochs"])


def with_areas(
    data: ch.Dataset,
    features: NDArray[np.float32],
    ids: NDArray[np.int64],
    photos: ch.Dataset,
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]:
    """Return features, labels and areas (n, C) of the photos with several labels among these rows of the data."""
    _, left, right = np.intersect1d(ids[rows], image_ids(photos.names), return_indices=True)
    areas = np.zeros((len(left), len(data.classes)), np.float32)
    areas[:, [data.classes.index(name) for name in photos.classes]] = areas_of(photos)[right]
    several = (areas > 0).sum(axis=1) > 1
    return features[rows[left[several]]], areas[several] > 0, areas[several]


def shares(
    model: HashModel, features: NDArray[np.float32], labels: NDArray[np.bool_], areas: NDArray[np.float32]
) -> dict[str, float]:
    """Measure how the shares of labels agree with the areas of their boxes, on photos with several labels."""
    agreement = measure_agreement(model.weights(features, labels), areas, labels)
    figures = {
        "largest_first": agreement.largest,
        "chance": agreement.chance,
        "centered_pearson": agreement.centered_pearson,
    }
    return {"photos": len(labels), **{name: round(value, 4) for name, value in figures.items()}}


def pairs(
    model: HashModel, features: NDArray[np.float32], labels: NDArray[np.bool_], rows: NDArray[np.int64]
) -> dict[str, float]:
    """Return how many of the first results to a pair of labels have both, over all pairs with enough photos."""
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", model) as index:
        fill(index, features, rows)
        figures = by_labels(index, labels, rows)
    return {"asked": figures["pairs"], "both": round(figures["both_at_equal_weights"], 4)}


def main() -> None:
    """Train, store, measure, and write the card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=Path("builtin-run"))
    parser.add_argument("--cache", type=Path, default=default_cache())
    options = parser.parse_args()
    data = ch.open_dataset(options.data)
    photos, ids = ch.open_dataset(options.photos), np.load(options.data / "image_ids.npy")
    query, rest = data.splits.query, np.setdiff1d(np.arange(len(data)), data.splits.query)
    trained, features = train(data, ids, options.images, options.run, options.cache)
    sized_on = with_areas(data, features, ids, photos, rest)
    model = export(with_sizes(trained, *sized_on))
    result = ch.evaluate_codes(
        ch.pack(model.encode_features(features[query])),
        ch.pack(model.encode_features(features[rest])),
        data.labels[query],
        data.labels[rest],
        bits=model.bits,
    )
    figures: dict[str, Any] = {
        "trained_on": len(rest),
        "queries": len(query),
        "map_retrieved": round(result.map_retrieved, 4),
        "map_all": round(result.map_all, 4),
        "random_retrieved": round(result.random_retrieved, 4),
        "presence_ap": round(class_precision(model, features, data.labels, query)["class_ap"], 4),
        "megabytes": round((TARGET / PORTABLE).stat().st_size / 1e6, 2),
        "pairs": pairs(model, features, data.labels, query),
        "sized_on": len(sized_on[0]),
        "shares": shares(model, *with_areas(data, features, ids, photos, query)),
    }
    (TARGET / "card.md").write_text(card(figures), encoding="utf-8")
    (TARGET / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
