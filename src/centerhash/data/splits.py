"""Split the rows of a dataset: which train, which are queries, and which are the database.

The paper's protocol (Sec. 4.1): 5,000 random queries, the rest is the database, and 10,000 training images
are drawn from the database. Smaller sets give a tenth to the queries and train on the whole database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import as_array, whole_number
from centerhash.core.errors import DataError, did_you_mean

Indices: TypeAlias = NDArray[np.int64]

SPLIT_NAMES = ("train", "query", "database")
MOST_QUERIES = 5_000
MOST_TRAINING = 10_000
QUERY_SHARE = 0.1

# What folders and files are called. If a dataset has test and validation images, test images are the queries and
# validation images are only searched.
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "query", "queries"), "query"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("database", "gallery"), "database"),
}
SPLIT_FOLDERS = "train, test (or query, val), database (or gallery)"


@dataclass(frozen=True, eq=False)
class Splits:
    """Hold the row numbers of the three splits, read-only int64, and their source.

    `train` is usually part of `database`.
    """

    train: Indices
    query: Indices
    database: Indices
    made: str = "given"

    def __post_init__(self) -> None:
        for name, rows in self.items():
            indices = as_indices(rows, name).copy()
            indices.setflags(write=False)  # a shuffle in place would silently change every later user
            object.__setattr__(self, name, indices)

    def items(self) -> Iterator[tuple[str, Indices]]:
        """Yield name and rows of train, query and database."""
        return ((name, getattr(self, name)) for name in SPLIT_NAMES)

    def without(self, rows: NDArray[Any] | Sequence[int]) -> Splits:
        """Return the splits without these rows, such as images that cannot be read."""
        left = {name: indices[~np.isin(indices, rows)] for name, indices in self.items()}
        for name, indices in left.items():
            if not indices.size:
                raise DataError(f"all rows of the split '{name}' must be dropped: none is left.")
        return Splits(**left, made=self.made)


def as_indices(values: NDArray[Any] | Sequence[int], name: str) -> Indices:
    """Turn row numbers into int64 (n,), rejecting masks and fractions."""
    array = as_array(values, f"the split '{name}'")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"the split '{name}' must hold whole row numbers, got {array.dtype} of shape {array.shape}: of a mask, give "
            "numpy.flatnonzero(mask)."
        )
    return array.astype(np.int64)


def check_indices(indices: Indices, size: int, name: str) -> None:
    """Reject an empty split, rows outside [0, size) and repeated rows."""
    rows, counts = np.unique(indices, return_counts=True)
    if not rows.size:
        raise DataError(f"the split '{name}' is empty: it needs at least one row.")
    if rows[0] < 0 or rows[-1] >= size:
        raise DataError(
            f"the split '{name}' has rows from {rows[0]} to {rows[-1]}, but those of the data are 0 to {size - 1}."
        )
    if rows.size < indices.size:
        raise DataError(f"the split '{name}' names rows more than once, such as {rows[counts.argmax()]}.")


def check_splits(splits: Splits, size: int) -> list[str]:
    """Refuse splits that cannot be used with `size` rows; return warnings about overlaps and unused rows.

    Training rows in the database are part of the protocol and give no warning.
    """
    for name, indices in splits.items():
        check_indices(indices, size, name)
    warnings = []
    if leaked := np.intersect1d(splits.train, splits.query).size:
        warnings.append(
            f"leak: {leaked:,} queries are also in the training split: the scores will be too good."
        )
    if searched := np.intersect1d(splits.query, splits.database).size:
        warnings.append(
            f"{searched:,} queries are also in the database, so a query would retrieve itself: evaluate with "
            "`exclude_self=True`."
        )
    used = np.unique(np.concatenate([splits.train, splits.query, splits.database])).size
    if used < size:
        warnings.append(f"{size - used:,} of {size:,} rows are in no split and will not be used.")
    return warnings


def make_splits(
    size: int,
    given: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    source: str = "given",
    queries: int | None = None,
    training: int = MOST_TRAINING,
) -> Splits:
    """Complete the splits that are `given` (any of train, query, database) for `size` rows.

    `queries` are drawn, by default a tenth of the rows and at most 5,000, and at most `training` rows to train on.
    Queries are drawn from outside the given training rows, and outside the given database where rows are left
    there; the database is all but the queries; training rows are drawn from the database without the queries.
    """
    whole_number(seed, "the seed", 0)
    known = {name: as_indices(values, name) for name, values in (given or {}).items()}
    for name, indices in known.items():
        check_indices(indices, size, name)
    if size < 2:
        raise DataError(f"{size} row(s) cannot be split: at least 2 are needed, one to ask and one to find.")
    generator = np.random.default_rng(seed)
    origin = [source] if known else []
    drawn = []
    nothing = np.empty(0, dtype=np.int64)
    if "query" not in known:
        count = min(MOST_QUERIES, max(1, round(QUERY_SHARE * size))) if queries is None else queries
        untrained = np.setdiff1d(np.arange(size), known.get("train", nothing))
        unsearched = np.setdiff1d(untrained, known.get("database", nothing))
        pool = unsearched if unsearched.size else untrained
        if not pool.size:
            raise DataError(f"the training split holds all {size:,} rows: none is left to draw queries from.")
        known["query"] = np.sort(generator.choice(pool, size=min(count, pool.size), replace=False))
        drawn.append("query")
    if "database" not in known:
        known["database"] = np.setdiff1d(np.arange(size), known["query"])
        origin += ["database is all but the queries"] if origin else []
    if "train" not in known:
        pool = np.setdiff1d(known["database"], known["query"])
        if not pool.size:
            raise DataError("every row of the database is a query: none is left to train on.")
        if pool.size > training:
            pool = np.sort(generator.choice(pool, size=training, replace=False))
        known["train"] = pool
        drawn.append("train")
    if drawn:
        origin.append(f"{' and '.join(drawn) + ' ' if origin else ''}drawn with seed {seed}")
    return Splits(**known, made="; ".join(origin))


def splits_from_column(cells: Sequence[str], where: Sequence[str]) -> dict[str, Indices]:
    """Read a `split` column: train, query, database or several joined by `|`; an empty cell is in no split.

    `where` says where each cell stands, for the error text. Splits that no cell names are left out.
    """
    members: dict[str, list[int]] = {name: [] for name in SPLIT_NAMES}
    for row, cell in enumerate(cells):
        for word in dict.fromkeys(word.strip() for word in cell.split("|") if cell.strip()):
            if word not in members:
                raise DataError(
                    f"{where[row]}: unknown split '{word}'.{did_you_mean(word, SPLIT_NAMES)} "
                    "Allowed: train, query, database, or several joined by '|'."
                )
            members[word].append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in members.items() if rows}


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
    kinds = {"train": "train", "query": "query" if "query" in words else "validation", "database": "database"}
    rows = {split: [row for row, word in enumerate(words) if word == kind] for split, kind in kinds.items()}
    return {split: np.array(members, dtype=np.int64) for split, members in rows.items() if members}
