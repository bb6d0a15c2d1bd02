"""Split the rows of a dataset into training images, queries and database.

The paper's protocol (Sec. 4.1) draws 5,000 random queries; the rest is the database, of which 10,000 random images are
for training. In smaller datasets a tenth of the rows are queries, and the whole database is for training.
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
_MOST_QUERIES, _MOST_TRAINING = 5_000, 10_000
_QUERY_SHARE = 0.1

# These are the names of folders and files. If a dataset has test and validation images, test images are the queries and
# validation images belong to the database only.
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "query", "queries"), "query"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("database", "gallery"), "database"),
}
SPLIT_FOLDERS = "train, test (or query, val), database (or gallery)"


@dataclass(frozen=True, eq=False)
class Splits:
    """The row numbers of the three splits, read-only int64, and their source.

        splits = Splits(train, query, database).without(broken_rows)
        data = data.with_splits(splits)
        sizes = {name: len(rows) for name, rows in data.splits.items()}

    `train` is usually part of `database`.
    """

    train: Indices
    query: Indices
    database: Indices
    source: str = "given"

    def __post_init__(self) -> None:
        for name, rows in self.items():
            indices = as_indices(rows, name).copy()
            # A shuffle in place would silently change the rows of all other users.
            indices.setflags(write=False)
            object.__setattr__(self, name, indices)

    def items(self) -> Iterator[tuple[str, Indices]]:
        """Yield name and rows of train, query and database."""
        return ((name, getattr(self, name)) for name in SPLIT_NAMES)

    def without(self, rows: NDArray[Any] | Sequence[int]) -> Splits:
        """Return the splits without these rows, such as images that cannot be read."""
        remaining = {name: indices[~np.isin(indices, rows)] for name, indices in self.items()}
        for name, indices in remaining.items():
            if not indices.size:
                raise DataError(f"all rows of the split '{name}' must be dropped: none is left.")
        return Splits(**remaining, source=self.source)


def as_indices(values: NDArray[Any] | Sequence[int], name: str) -> Indices:
    """Return row numbers as int64 (n,); masks and fractions are rejected."""
    array = as_array(values, f"the split '{name}'")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"the split '{name}' must hold whole row numbers, got {array.dtype} of shape {array.shape}: of a mask, give "
            "numpy.flatnonzero(mask)."
        )
    return array.astype(np.int64)


def check_indices(indices: Indices, size: int, name: str) -> None:
    """Raise DataError for an empty split, rows outside [0, size) and repeated rows."""
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
    """Check that splits fit `size` rows, and return warnings about overlaps and unused rows.

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
    splits: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    source: str = "given",
    queries: int | None = None,
    training: int = _MOST_TRAINING,
) -> Splits:
    """Draw those of train, query and database that are not in `splits`, for `size` rows.

    `queries` is the number of queries, by default a tenth of the rows and at most 5,000; `training` is the largest number
    of training rows. Queries are drawn outside a known training split, and outside a known database if rows are left
    there. The database is all rows but the queries. Training rows are drawn from the database without the queries.
    """
    whole_number(seed, "the seed", 0)
    known = {name: as_indices(values, name) for name, values in (splits or {}).items()}
    for name, indices in known.items():
        check_indices(indices, size, name)
    if size < 2:
        raise DataError(f"{size} row(s) cannot be split: at least 2 are needed, a query and a database item.")
    generator = np.random.default_rng(seed)
    sources = [source] if known else []
    random_splits = []
    if "query" not in known:
        count = min(_MOST_QUERIES, max(1, round(_QUERY_SHARE * size))) if queries is None else queries
        untrained = np.setdiff1d(np.arange(size), known.get("train", ()))
        unsearched = np.setdiff1d(untrained, known.get("database", ()))
        pool = unsearched if unsearched.size else untrained
        if not pool.size:
            raise DataError(f"the training split holds all {size:,} rows: none is left to draw queries from.")
        known["query"] = np.sort(generator.choice(pool, size=min(count, pool.size), replace=False))
        random_splits.append("query")
    if "database" not in known:
        known["database"] = np.setdiff1d(np.arange(size), known["query"])
        sources += ["database is all but the queries"] if sources else []
    if "train" not in known:
        pool = np.setdiff1d(known["database"], known["query"])
        if not pool.size:
            raise DataError("every row of the database is a query: none is left to train on.")
        if pool.size > training:
            pool = np.sort(generator.choice(pool, size=training, replace=False))
        known["train"] = pool
        random_splits.append("train")
    if random_splits:
        names = f"{' and '.join(random_splits)} " if sources else ""
        sources.append(f"{names}drawn with seed {seed}")
    return Splits(**known, source="; ".join(sources))


def splits_from_column(cells: Sequence[str], locations: Sequence[str]) -> dict[str, Indices]:
    """Read a `split` column: train, query, database or several joined by `|`; an empty cell is in no split.

    Errors cite the `locations` of the cells. Splits that are in no cell are omitted.
    """
    members: dict[str, list[int]] = {name: [] for name in SPLIT_NAMES}
    for row, cell in enumerate(cells):
        for word in dict.fromkeys(word.strip() for word in cell.split("|") if cell.strip()):
            if word not in members:
                raise DataError(
                    f"{locations[row]}: unknown split '{word}'.{did_you_mean(word, SPLIT_NAMES)} "
                    "Allowed: train, query, database, or several joined by '|'."
                )
            members[word].append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in members.items() if rows}


def folder_split(name: str) -> str | None:
    """Return train, query, validation or database for a folder such as `train`, `Test`, `val2017`; else None."""
    return _WORDS.get(re.sub(r"[-_]?\d+$", "", name.lower()))


def file_split(stem: str) -> str | None:
    """Return the split at the beginning of a file's name, as in `train-00000-of-00002`; else None."""
    return _WORDS.get(re.split(r"[-_.\d]", stem.lower(), maxsplit=1)[0])


def splits_from_words(words: Sequence[str | None]) -> dict[str, Indices]:
    """Return the splits of rows from one word per row, or none if all rows have the same word.

    Many published datasets hold only a `train` part, which is then not a split.
    """
    if len(set(words)) < 2:
        return {}
    kinds = {"train": "train", "query": "query" if "query" in words else "validation", "database": "database"}
    rows = {split: [row for row, word in enumerate(words) if word == kind] for split, kind in kinds.items()}
    return {split: np.array(members, dtype=np.int64) for split, members in rows.items() if members}
