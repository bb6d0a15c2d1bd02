"""Build the sample that ships in the wheel: features, labels and box areas of 6,000 photos of COCO train2017.

    python -m tools.sample_data COCO117K COCO6K

COCO117K is the folder that `python -m reproduction coco117k` builds, COCO6K a folder whose labels.csv lists 6,000 of
these photos with their labels and areas: the shares of the frame that the unions of the boxes of each label cover.
The features are EfficientNet-Lite0's: their 256 first principal components, found on the other photos, as int8. They are
not centered, so that their cosines are those of all 2,560 features.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.files import atomic, make_folder
from centerhash.data import open_dataset
from centerhash.data.samples import SAMPLES, sample_file

NAME, COMPONENTS, FIT = "coco6k", 256, 30_000
SPLIT = {"query": 1_000, "train": 3_000}  # photos; the database is all but the queries


def principal_components(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the first directions (D, COMPONENTS) of the second moments of features (N, D), which are not centered."""
    _, vectors = np.linalg.eigh((features.T @ features).astype(np.float64))
    return vectors[:, ::-1][:, :COMPONENTS]


def quantize(values: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return values (N, D) as int8 and the scale (D,) of each component."""
    scale = (np.abs(values).max(axis=0) / 127).astype(np.float32)
    return np.rint(values / scale).astype(np.int8), scale


def build(whole: Path, photos: Path) -> dict[str, NDArray]:
    """Return the arrays of the sample."""
    generator = np.random.default_rng(0)
    listed = open_dataset(photos)
    assert listed.areas is not None
    ids = np.array([int(Path(name).stem) for name in listed.names])
    every = np.load(whole / "image_ids.npy")
    order = np.argsort(ids)
    rows = np.searchsorted(every, ids[order])
    assert np.array_equal(every[rows], ids[order]), "a photo of the sample is not among all photos"

    features = np.load(whole / "features.npy", mmap_mode="r")
    others = np.setdiff1d(np.arange(len(every)), rows)
    fitted = np.sort(generator.choice(others, FIT, replace=False))
    components = principal_components(features[fitted].astype(np.float32))
    quantized, scale = quantize(features[rows].astype(np.float32) @ components)

    labels, areas = listed.labels[order], listed.areas[order]
    shuffled = generator.permutation(len(rows))
    query, database = shuffled[: SPLIT["query"]], np.sort(shuffled[SPLIT["query"] :])
    train = generator.choice(database, SPLIT["train"], replace=False)
    return {
        "features": quantized,
        "scale": scale,
        "labels": np.packbits(labels, axis=1),
        "areas": np.rint(areas[labels] * 65_535).astype(np.uint16),  # of the labels, row by row
        "classes": np.array(listed.classes),
        "ids": ids[order].astype(np.int32),
        "train": np.sort(train).astype(np.int16),
        "query": np.sort(query).astype(np.int16),
        "database": database.astype(np.int16),
    }


def main() -> None:
    """Write the file of the sample into the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("whole", type=Path, metavar="COCO117K")
    parser.add_argument("photos", type=Path, metavar="COCO6K")
    given = parser.parse_args()
    assert NAME in SAMPLES
    path = sample_file(NAME)
    make_folder(path.parent)
    with atomic(path) as stream:
        np.savez_compressed(stream, **build(given.whole, given.photos))
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
