"""Splits that are told by the names of folders and files: `train/`, `test/`, `train-00000-of-00002.parquet`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from centerhash.data.splits import Indices

# Where a set has test and validation images, test images ask and validation images are only searched.
_WORDS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "test": "query",
    "query": "query",
    "queries": "query",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "database": "database",
    "gallery": "database",
}
SPLIT_FOLDERS = "train, test (or query, val), database (or gallery)"


def folder_split(name: str) -> str | None:
    """Return train, query, validation or database for a folder such as `train`, `Test`, `val2017`; else None."""
    return _WORDS.get(re.sub(r"[-_]?\d+$", "", name.lower()))


def file_split(stem: str) -> str | None:
    """Return the split that a file's name begins with, as in `train-00000-of-00002`; else None."""
    return _WORDS.get(re.split(r"[-_.\d]", stem.lower(), maxsplit=1)[0])


def splits_from_words(words: Sequence[str | None]) -> dict[str, Indices]:
    """Turn one word per row into the splits that are named.

    A single word on all rows says nothing: much of what is published holds only a `train` part.
    """
    if len(set(words)) < 2:
        return {}
    asking = "query" if "query" in words else "validation"
    kinds = {"train": "train", "query": asking, "database": "database"}
    rows = {split: [row for row, word in enumerate(words) if word == kind] for split, kind in kinds.items()}
    return {split: np.array(members, dtype=np.int64) for split, members in rows.items() if members}
