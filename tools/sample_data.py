"""Build the sample that ships in the wheel: features, labels and box areas of 6,000 photos of COCO train2017.

    python -m tools.sample_data COCO117K COCO6K

COCO117K is the folder that `python -m reproduction coco117k` builds. COCO6K is a folder whose labels.csv lists 6,000 of
these photos with labels and areas: the share of the frame that the union of the boxes of a label covers.
The features are the 256 first principal components of EfficientNet-Lite0's features as int8, fitted on the other photos.
They are not centered, so that their cosines approximate those of all 2,560 features.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.files import atomic
from centerhash.data import open_dataset
from centerhash.data.samples import sample_file
from reproduction.coco117k import image_ids

NAME, COMPONENTS, FITTED_ROWS = "coco6k", 256, 30_000
# The database is all photos but the queries.
QUERIES, TRAINING_PHOTOS = 1_000, 3_000


def principal_components(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the first directions (D, COMPONENTS) of the second moments of features (N, D), which are not centered."""
    _, vectors = np.linalg.eigh((features.T @ features).astype(np.float64))
    return vectors[:, ::-1][:, :COMPONENTS]


def quantize(values: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return values (N, D) as int8 and the scale (D,) of each component."""
    scale = (np.abs(values).max(axis=0) / 127).astype(np.float32)
    return np.rint(values / scale).astype(np.int8), scale


def build(whole: Path, photos: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of the sample."""
    generator = np.random.default_rng(0)
    sample, all_ids = open_dataset(photos), np.load(whole / "image_ids.npy")
    assert sample.areas is not None
    ids = image_ids(sample.names)
    order = np.argsort(ids)
    rows = np.searchsorted(all_ids, ids[order])
    assert np.array_equal(all_ids[rows], ids[order]), "a photo of the sample is not among all photos"

    features = np.load(whole / "features.npy", mmap_mode="r")
    others = np.setdiff1d(np.arange(len(all_ids)), rows)
    fitted = np.sort(generator.choice(others, FITTED_ROWS, replace=False))
    components = principal_components(features[fitted].astype(np.float32))
    quantized, scale = quantize(features[rows].astype(np.float32) @ components)

    labels, areas = sample.labels[order], sample.areas[order]
    shuffled = generator.permutation(len(rows))
    query, database = shuffled[:QUERIES], np.sort(shuffled[QUERIES:])
    train = generator.choice(database, TRAINING_PHOTOS, replace=False)
    return {
        "features": quantized,
        "scale": scale,
        "labels": np.packbits(labels, axis=1),
        "areas": np.rint(areas[labels] * 65_535).astype(np.uint16),  # one per label, row by row
        "classes": np.array(sample.classes),
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
    options = parser.parse_args()
    path = sample_file(NAME)
    arrays: dict[str, Any] = build(options.whole, options.photos)
    with atomic(path) as stream:
        np.savez_compressed(stream, **arrays)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
