"""Splits: drawn, completed, checked, and read from a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.core.errors import DataError, InputError
from centerhash.data.splits import Splits, check_splits, make_splits, splits_from_column


def rows(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# ---------------------------------------------------------------- Splits


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.array([0.0, 1.0]), "got float64"),
        (np.array([True, False]), "bool"),
        (np.array([[0, 1]]), "shape (1, 2)"),
        (["a"], "got list of <U1"),
        (None, "got NoneType"),
        ("train.txt", "got str"),
    ],
)
def test_splits_error(bad: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        Splits(bad, rows(0), rows(1))
    assert "the split 'train'" in str(caught.value)
    assert text in str(caught.value)


def test_splits_without() -> None:
    splits = Splits(rows(5, 1, 3), rows(0, 2), rows(5, 4, 3, 1), source="files")
    remaining = splits.without([1, 2, 9])
    assert (remaining.train.tolist(), remaining.query.tolist(), remaining.source) == ([5, 3], [0], "files")
    with pytest.raises(DataError, match="'query'"):
        splits.without([0, 2])
    with pytest.raises(ValueError):
        splits.train[0] = 5


# ---------------------------------------------------------------- check_splits


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (Splits(rows(), rows(0), rows(1)), "'train' is empty"),
        (Splits(rows(1), rows(0), rows(2, 5, 7)), "'database' has rows from 2 to 7"),
        (Splits(rows(1), rows(-1), rows(2)), "from -1 to -1"),
        (Splits(rows(1, 3, 1), rows(0), rows(2)), "'train' names rows more than once, such as 1"),
    ],
)
def test_check_splits_error(splits: Splits, text: str) -> None:
    with pytest.raises(DataError) as caught:
        check_splits(splits, 5)
    assert text in str(caught.value)


# ---------------------------------------------------------------- make_splits


def test_make_splits_seeds() -> None:
    first, again, other = make_splits(500), make_splits(500, seed=0), make_splits(500, seed=1)
    assert np.array_equal(first.query, again.query)
    assert not np.array_equal(first.query, other.query)
    # Stored results depend on these draws.
    assert first.query[:6].tolist() == [1, 2, 4, 7, 10, 13]


@pytest.mark.parametrize(
    ("known_splits", "query", "train", "source"),
    [
        ({"query": [5, 0]}, 2, range(1, 5), "; database is all but the queries; train drawn with seed 3"),
        ({"train": range(4)}, 1, range(4), "; database is all but the queries; query drawn with seed 3"),
        ({"database": range(5)}, 1, range(5), "; query and train drawn with seed 3"),
    ],
)
def test_make_splits_completion(known_splits: Any, query: int, train: range, source: str) -> None:
    known = {name: rows(*values) for name, values in known_splits.items()}
    splits = make_splits(6, known, seed=3, source="files")
    assert splits.query.size == query
    assert not np.isin(splits.query, [*splits.train, *splits.database]).any()
    assert np.array_equal(splits.database, np.setdiff1d(np.arange(6), splits.query))
    assert splits.train.tolist() == list(train)
    assert splits.source == f"files{source}"


@settings(max_examples=150, deadline=None)
@given(size=st.integers(2, 300), seed=st.integers(0, 2**32 - 1), data=st.data())
@pytest.mark.slow
def test_make_splits(size: int, seed: int, data: st.DataObject) -> None:
    subset = st.sets(st.integers(0, size - 1), min_size=1, max_size=size).map(sorted).map(np.array)
    names = data.draw(st.sets(st.sampled_from(["train", "query", "database"])))
    known = {name: data.draw(subset, label=name) for name in names}
    everything = np.arange(size)
    database = known.get("database", np.setdiff1d(everything, known.get("query", rows())))
    no_query = "query" not in known and known.get("train", rows()).size == size
    no_training = "train" not in known and "query" in known and np.isin(database, known["query"]).all()
    no_database = known.get("query", rows()).size == size and "database" not in known
    if no_query or no_training or no_database:
        with pytest.raises(DataError, match=r"none is left|the split 'database' is empty"):
            check_splits(make_splits(size, known, seed=seed), size)
        return
    splits = make_splits(size, known, seed=seed)
    warnings = check_splits(splits, size)
    for name, indices in known.items():
        assert np.array_equal(getattr(splits, name), indices)
    if "train" not in known or "query" not in known:
        assert not any(text.startswith("leak") for text in warnings)
        assert not np.isin(splits.train, splits.query).any()
    if "train" not in known:
        assert np.isin(splits.train, splits.database).all()
    if "database" not in known:
        assert not np.isin(splits.query, splits.database).any()
        assert splits.query.size + splits.database.size == size


# ---------------------------------------------------------------- the column


def test_splits_from_column() -> None:
    cells = ["train|database", "query", " database ", "", "train | database"]
    splits = splits_from_column(cells, ["line"] * 5)
    assert {name: indices.tolist() for name, indices in splits.items()} == {
        "train": [0, 4],
        "query": [1],
        "database": [0, 2, 4],
    }
    assert list(splits_from_column(["query", ""], ["a", "b"])) == ["query"]
    assert splits_from_column(["", " "], ["a", "b"]) == {}
