"""Train the built-in model "coco": `python -m tools.builtin --data coco117k --images train2017 --photos coco6k`.

`--data` is the folder that `python -m reproduction coco117k` writes: labels, HashNet's split and ids of photos, and
`--images` the folder of these photos. EfficientNet-Lite0's last two stages and a head are trained on all photos but the
queries, so that anybody can measure the model on them. `--photos` is a dataset of some of these photos with areas, such
as COCO's own folder: typical sizes of the classes are learned from those that are no queries, shares are measured on
those that are. The run is kept in `--run` and maps of the photos in `--cache` (13 GB), so that a killed training resumes;
the model goes to src/centerhash/builtin/coco as model.onnx, its head in half precision, with its figures in card.md and
figures.json.
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
from benchmarks.quality import LEAST, by_labels, class_precision, fill
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
# 1,024 hidden units for probabilities were the best of three sizes on held-out photos; the file stays under 25 MB
HEAD = {"hidden": (672,), "presence_hidden": 1024}
SETTINGS: dict[str, Any] = {
    "method": "ics-softmax",
    "bits": 64,
    "backbone": "efficientnet-lite0",
    "finetune": "last",
    "stages": 2,
    "epochs": 3,
    "learning_rate": 2e-3,
    "backbone_rate": 0.05,
    "warm_start": False,  # 112,459 photos train a head within a part of the first epoch
    "precision": "bf16",
    "head": HEAD,
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


def shipped(model: HashModel) -> HashModel:
    """Return the model as it is shipped: the head in half precision, the backbone in single precision.

    With a backbone in half precision 0.11 % of the general bits would change.
    """
    tensors = {
        name: tensor.half().float() if tensor.ndim == 2 and tensor.is_floating_point() else tensor
        for name, tensor in model.tensors().items()
    }
    rounded = HashModel(model.spec, tensors, model.folder)
    export_model(rounded, TARGET / PORTABLE)
    return rounded


CARD = Path(__file__).with_name("builtin_card.md")


def card(figures: dict[str, Any]) -> str:
    """Return the card with its results."""
    found, asked = figures["shares"], figures["pairs"]
    largest, photos = found["largest_first"], found["photos"]
    error = 1.96 * (largest * (1 - largest) / photos) ** 0.5  # 95 % interval of a share of so many photos
    rest = (
        f"| first 20 answers to two labels that have both, {asked['asked']} pairs | {asked['both']:.3f} | |\n"
        f"| largest share on the largest object, {photos:,} queries with several labels, 95 % interval | "
        f"{largest:.3f} ± {error:.3f} | {found['chance']:.3f} |\n"
        "| Pearson correlation of shares and areas, 1/c subtracted, same queries | "
        f"{found['centered_pearson']:.3f} | |\n"
    )
    return CARD.read_text(encoding="utf-8").format(**figures, rest=rest, epochs=SETTINGS["epochs"])


def with_areas(
    data: ch.Dataset,
    features: NDArray[np.float32],
    ids: NDArray[np.int64],
    photos: ch.Dataset,
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]:
    """Return features, labels and areas (n, C) of the photos with several labels among these rows of the data."""
    _, own, other = np.intersect1d(ids[rows], image_ids(photos.names), return_indices=True)
    areas = np.zeros((len(own), len(data.classes)), np.float32)
    areas[:, [data.classes.index(name) for name in photos.classes]] = areas_of(photos)[other]
    several = (areas > 0).sum(axis=1) > 1
    return features[rows[own[several]]], areas[several] > 0, areas[several]


def shares(
    model: HashModel, images: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any]]
) -> dict[str, float]:
    """Measure how the shares of labels agree with the areas of their boxes, on photos with several labels."""
    features, labels, areas = images
    found = measure_agreement(model.weights(features, labels), areas, labels)
    figures = {
        "largest_first": found.largest,
        "chance": found.chance,
        "centered_pearson": found.centered_pearson,
    }
    return {"photos": len(labels), **{name: round(value, 4) for name, value in figures.items()}}


def pairs(
    model: HashModel, features: NDArray[np.float32], labels: NDArray[np.bool_], rows: NDArray[np.int64]
) -> dict[str, float]:
    """Return how many of the first results to two labels have both, over all pairs that as many of these photos carry."""
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", model) as index:
        fill(index, features, rows)
        found = by_labels(index, labels, rows, LEAST)
    return {"asked": found["pairs"], "both": round(found["both_at_equal_weights"], 4)}


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
    chosen = parser.parse_args()
    data = ch.open_dataset(chosen.data)
    photos, ids = ch.open_dataset(chosen.photos), np.load(chosen.data / "image_ids.npy")
    query, rest = data.splits.query, np.setdiff1d(np.arange(len(data)), data.splits.query)
    trained, features = train(data, ids, chosen.images, chosen.run, chosen.cache)
    sized_on = with_areas(data, features, ids, photos, rest)
    model = shipped(with_sizes(trained, *sized_on))
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
        "megabytes": round((TARGET / "model.onnx").stat().st_size / 1e6, 2),
    }
    figures["pairs"] = pairs(model, features, data.labels, query)
    figures["sized_on"] = len(sized_on[0])
    figures["shares"] = shares(model, with_areas(data, features, ids, photos, query))
    (TARGET / "card.md").write_text(card(figures), encoding="utf-8")
    (TARGET / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
