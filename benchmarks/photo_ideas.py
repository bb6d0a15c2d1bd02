"""Ideas that need photos, not features: places in the picture for the weights, mirrored copies for the training.

    python -m benchmarks.photo_ideas --data coco117k --photos coco6k [--out benchmarks/results/photo_ideas.json]

`--photos` are photos with labels.csv and areas of boxes, whose file names are image ids of `--data` (image_ids.npy).

Places: our method learns from the features of `--data`, none of these photos among them. Its evidence is then read from
windows of the backbone's 8 x 8 map, each pooled by mean and maximum as the whole frame is, and the weights of a photo
are the mean over its windows. Mirrored copies: half of the photos train, as they are or with a mirrored copy of each
beside them; the other half is searched by itself. The backbone stays frozen in all of it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import centerhash as ch
from benchmarks.reporting import arguments_of, show, store
from centerhash.data.splits import Splits
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import pixels_of
from reproduction.agreement import measure_agreement

SIDE, BATCH = 8, 32  # places of the map in a row; photos per pass through the network
WINDOWS = {"whole frame": (8, 8), "6 x 6": (6, 2), "4 x 4": (4, 2), "3 x 3": (3, 1)}  # side and step
SEEDS = 3


def read_photos(
    folder: Path, classes: tuple[str, ...]
) -> tuple[list[Path], NDArray[np.int64], NDArray[np.float32]]:
    """Paths, image ids (N,) and areas (N, C) of all photos."""
    column = {name: place for place, name in enumerate(classes)}
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    areas = np.zeros((len(lines), len(classes)), np.float32)
    for row, line in zip(areas, lines, strict=True):
        row[[column[name] for name in line["labels"].split("|")]] = [*map(float, line["areas"].split("|"))]
    paths = [folder / line["file_name"] for line in lines]
    return paths, np.array([int(path.stem) for path in paths]), areas


def maps_of(paths: list[Path], mirrored: bool = False) -> NDArray[np.float16]:
    """Maps (N, SIDE, SIDE, width) of the backbone's last layer before it is pooled."""
    backbone, seen = get_backbone(DEFAULT_BACKBONE), list[torch.Tensor]()
    network = backbone.load()
    network.network.global_pool.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))  # type: ignore[union-attr]
    maps = np.empty((len(paths), SIDE, SIDE, backbone.width), np.float16)
    for start in range(0, len(paths), BATCH):
        pixels = np.stack([pixels_of(path, backbone) for path in paths[start : start + BATCH]])
        with torch.inference_mode():
            network(torch.from_numpy(np.ascontiguousarray(pixels[:, :, ::-1]) if mirrored else pixels))
        maps[start : start + BATCH] = seen.pop().permute(0, 2, 3, 1).numpy()
    return maps


def pooled(maps: NDArray[np.float16]) -> NDArray[np.float32]:
    """Features (N, 2 width) of maps: mean, then maximum, over all places."""
    wide = maps.reshape(len(maps), -1, maps.shape[-1]).astype(np.float32)
    return np.concatenate([wide.mean(axis=1), wide.max(axis=1)], axis=1)


def places(
    data: ch.Dataset, ids: NDArray[np.int64], photos: NDArray[np.int64], maps: Any, areas: Any
) -> dict[str, Any]:
    """How the weights agree with the areas, read from windows of different sizes."""
    several = (areas > 0).sum(axis=1) >= 2
    rest = np.setdiff1d(data.splits.train, np.flatnonzero(np.isin(ids, photos)))
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in WINDOWS}
    for seed in range(SEEDS):
        own = Splits(rest, data.splits.query, data.splits.database, made="without the photos")
        model = ch.train(data.with_splits(own), bits=64, seed=seed, sizes=False)
        for name, (side, step) in WINDOWS.items():
            found = np.zeros_like(areas[several])
            starts = range(0, SIDE - side + 1, step)
            for top in starts:
                for left in starts:
                    window = maps[several, top : top + side, left : left + side]
                    found += model.weights(pooled(window), areas[several] > 0) / len(starts) ** 2
            agreement = measure_agreement(found, areas[several], areas[several] > 0)
            figures[name].append((agreement.largest, agreement.centred_pearson))
    means = {name: np.mean(values, axis=0) for name, values in figures.items()}
    return {
        name: {"largest": round(float(mean[0]), 4), "centred_pearson": round(float(mean[1]), 4)}
        for name, mean in means.items()
    }


def mirrors(
    features: NDArray[np.float32], mirrored: NDArray[np.float32], labels: NDArray[np.bool_]
) -> dict[str, Any]:
    """mAP at 64 bits with and without mirrored copies of the training half, over seeds."""
    count, query = len(mirrored), np.arange(len(mirrored), len(features))  # the first ones train
    copies = np.arange(count) + len(features)
    doubled = np.concatenate([features, mirrored]), np.concatenate([labels, labels[:count]])
    train = np.arange(count)
    plain = ch.Dataset.from_arrays(features, labels, train=train, query=query, database=query)
    both = ch.Dataset.from_arrays(*doubled, train=np.append(train, copies), query=query, database=query)
    found: dict[str, Any] = {}
    for name, data, epochs in (
        ("as they are", plain, 30),
        ("as they are, twice the epochs", plain, 60),
        ("and mirrored", both, 30),
    ):
        scores = []
        for seed in range(SEEDS):
            model = ch.train(data, bits=64, seed=seed, epochs=epochs)
            result = ch.evaluate(model, data, k=500, exclude_self=True)
            scores.append((result.map_peers, result.map_textbook))
        mean, spread = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
        found[name] = {
            "map_peers": round(float(mean[0]), 4),
            "map_textbook": round(float(mean[1]), 4),
            "deviation_peers": round(float(spread[0]), 4),
        }
    return found


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    chosen = parser.parse_args()
    data = ch.open_dataset(chosen.data)
    paths, photos, areas = read_photos(chosen.photos, data.classes)
    maps = maps_of(paths)
    measured: dict[str, Any] = {
        "photos": len(paths),
        "places": places(data, np.load(chosen.data / "image_ids.npy"), photos, maps, areas),
    }
    for name, figures in measured["places"].items():
        show(name, figures)
    store(chosen.out, measured)
    copies = pooled(maps_of(paths[: len(paths) // 2], mirrored=True))
    measured["mirrored"] = mirrors(
        np.concatenate([*map(pooled, np.array_split(maps, 20))]), copies, areas > 0
    )
    for name, figures in measured["mirrored"].items():
        show(name, figures)
    store(chosen.out, measured)


if __name__ == "__main__":
    main()
