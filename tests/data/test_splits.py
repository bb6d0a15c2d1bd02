from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data.splits import Splits, check_splits, make_splits, splits_from_column


def rows(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# ---------------------------------------------------------------- Splits


def test_splits_are_int64_read_only_copies() -> None:
    source = np.array([3, 1], dtype=np.int32)
    splits = Splits(source, rows(0), rows(1, 2, 3))
    assert splits.train.dtype == np.int64
    assert splits.made == "given"
    source[0] = 9
    assert splits.train.tolist() == [3, 1]
    with pytest.raises(ValueError):
        splits.train[0] = 5
    source[1] = 8  # the caller's own array stays writable


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.array([0.0, 1.0]), "must hold whole row numbers, got float64"),
        (np.array([True, False]), "is a mask of bool"),
        (np.array([[0, 1]]), "got shape (1, 2)"),
        (["a"], "got list of <U1"),
        (None, "got NoneType"),
        ("train.txt", "got str"),
    ],
)
def test_wrong_dtype_or_shape_is_refused(bad: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        Splits(bad, rows(0), rows(1))
    assert "the split 'train'" in str(caught.value)
    assert text in str(caught.value)


def test_without_drops_rows_and_keeps_order_and_origin() -> None:
    splits = Splits(rows(5, 1, 3), rows(0, 2), rows(5, 4, 3, 1), made="files")
    left = splits.without([1, 2, 9])
    assert left.train.tolist() == [5, 3]
    assert left.query.tolist() == [0]
    assert left.database.tolist() == [5, 4, 3]
    assert left.made == "files"
    assert splits.train.tolist() == [5, 1, 3]
    assert splits.without([]).train.tolist() == [5, 1, 3]
    with pytest.raises(DataError, match="'query'"):
        splits.without([0, 2])


# ---------------------------------------------------------------- check_splits


@pytest.mark.parametrize(
    ("splits", "size", "words"),
    [
        (Splits(rows(2, 3), rows(0, 1), rows(2, 3, 4)), 5, []),  # the protocol
        (
            Splits(rows(0, 1, 2), rows(1, 2, 3), rows(3, 4)),
            5,
            ["leak: 2 of 3 queries", "1 of 3 queries are also in the database"],
        ),
        (Splits(rows(1), rows(0), rows(1)), 1000, ["998 of 1,000 rows are in no split"]),
    ],
)
def test_overlaps_and_unused_rows_are_counted(splits: Splits, size: int, words: list[str]) -> None:
    warnings = check_splits(splits, size)
    assert len(warnings) == len(words)
    assert all(warning.startswith(part) for warning, part in zip(warnings, words, strict=True))


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (Splits(rows(), rows(0), rows(1)), "'train' is empty"),
        (Splits(rows(1), rows(0), rows(2, 5, 7)), "'database' points outside the data: 2"),
        (Splits(rows(1), rows(-1), rows(2)), "such as -1, but the rows are 0 to 4"),
        (Splits(rows(1, 3, 1), rows(0), rows(2)), "'train' names 1 row(s) more than once, such as 1"),
    ],
)
def test_unusable_splits_are_refused(splits: Splits, text: str) -> None:
    with pytest.raises(DataError) as caught:
        check_splits(splits, 5)
    assert text in str(caught.value)


# ---------------------------------------------------------------- make_splits


def test_drawn_sizes_follow_the_protocol() -> None:
    sizes = ((2, 1, 1), (9, 1, 8), (100, 10, 90), (11_000, 1_100, 9_900), (60_000, 5_000, 10_000))
    for size, queries, training in sizes:
        splits = make_splits(size, seed=7)
        assert (splits.query.size, splits.train.size) == (queries, training)
        assert splits.database.size == size - queries
        assert splits.made == "drawn with seed 7"


def test_same_seed_same_draw_other_seed_other_draw() -> None:
    first, again, other = make_splits(500), make_splits(500, seed=0), make_splits(500, seed=1)
    assert np.array_equal(first.query, again.query)
    assert not np.array_equal(first.query, other.query)


@pytest.mark.parametrize(
    ("size", "given_splits", "words"),
    [
        (1, {}, r"1 row\(s\) cannot be split: at least 2 are needed"),
        (4, {"train": np.arange(4)}, "the training split holds all 4 rows, so none is left to draw queries"),
        (
            4,
            {"query": rows(0, 1), "database": rows(0, 1)},
            "every row of the database is a query",
        ),
        (4, {"query": rows(4)}, "the split 'query' points outside the data"),  # before anything is drawn
    ],
)
def test_what_cannot_be_split(size: int, given_splits: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_splits(size, given_splits)


def test_bad_arguments() -> None:
    for seed in (-1, 1.5, True, "0"):
        with pytest.raises(InputError, match="seed"):
            make_splits(10, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'test'"):
        make_splits(10, {"test": rows(1)})


def test_all_given_are_kept_as_they_are() -> None:
    given_splits = {"train": rows(4, 2), "query": rows(1, 0), "database": rows(2, 3, 4)}
    splits = make_splits(5, given_splits, source="column")
    assert splits.made == "column"
    assert splits.train.tolist() == [4, 2]
    assert splits.query.tolist() == [1, 0]
    assert splits.database.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("given_splits", "query", "train", "made"),
    [
        ({"query": [5, 0]}, 2, range(1, 5), "; database is all but the queries; train drawn with seed 3"),
        ({"train": range(4)}, 1, range(4), "; database is all but the queries; query drawn with seed 3"),
        ({"database": range(5)}, 1, range(5), "; query and train drawn with seed 3"),
    ],
)
def test_one_split_given_decides_the_others(given_splits: Any, query: int, train: range, made: str) -> None:
    splits = make_splits(
        6, {name: rows(*found) for name, found in given_splits.items()}, seed=3, source="files"
    )
    assert splits.query.size == query
    assert not np.isin(splits.query, [*splits.train, *splits.database]).any()
    assert np.array_equal(splits.database, np.setdiff1d(np.arange(6), splits.query))
    assert splits.train.tolist() == list(train)
    assert splits.made == f"files{made}"


def test_a_database_of_everything_holds_the_queries_and_is_warned_about() -> None:
    splits = make_splits(20, {"database": np.arange(20)})
    assert splits.query.size == 2
    assert not np.isin(splits.train, splits.query).any()
    assert "a query would retrieve itself" in check_splits(splits, 20)[0]


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(2, 300),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@pytest.mark.slow
def test_completed_splits_are_always_usable(size: int, seed: int, data: st.DataObject) -> None:
    subset = st.sets(st.integers(0, size - 1), min_size=1, max_size=size).map(sorted).map(np.array)
    names = data.draw(st.sets(st.sampled_from(["train", "query", "database"])))
    known = {name: data.draw(subset, label=name) for name in names}
    everything = np.arange(size)
    database = known.get("database", np.setdiff1d(everything, known.get("query", rows())))
    nobody_asks = "query" not in known and known.get("train", rows()).size == size
    nothing_to_learn = "train" not in known and "query" in known and np.isin(database, known["query"]).all()
    nothing_to_find = known.get("query", rows()).size == size and "database" not in known
    if nobody_asks or nothing_to_learn or nothing_to_find:
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


def test_a_column_names_splits() -> None:
    cells = ["train|database", "query", " database ", "", "train | database"]
    found = splits_from_column(cells, ["line"] * 5)
    assert {name: indices.tolist() for name, indices in found.items()} == {
        "train": [0, 4],
        "query": [1],
        "database": [0, 2, 4],
    }
    assert list(splits_from_column(["query", ""], ["a", "b"])) == ["query"]
    assert splits_from_column(["", " "], ["a", "b"]) == {}


@pytest.mark.parametrize(
    ("cell", "words"), [("qurey", "line 3: .*'qurey'.*'query'"), ("train|train", "line 3: .*'train'.*twice")]
)
def test_bad_cells_of_a_column(cell: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        splits_from_column(["train", cell], ["line 2", "line 3"])
