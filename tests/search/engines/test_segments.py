from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.search.engines import idcolumns, merging, ragged
from centerhash.search.engines.base import Batch
from centerhash.search.engines.idcolumns import IntegerIds, TextIds, raw_ids, sorted_ids
from centerhash.search.engines.mapped import damage, map_arrays, write_arrays
from centerhash.search.engines.merging import merge
from centerhash.search.engines.ragged import Ragged, decoded, encoded, joined, text_rows, texts
from centerhash.search.engines.segments import Segment, build, stored_segment
from tests.search.engines.flat_toys import codes

INTEGERS = st.integers(-(2**63), 2**63 - 1)
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)  # lone surrogates, too


def rows(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=30), st.data())
def test_ragged_rows_are_taken_in_any_order(parts: list[bytes], data: st.DataObject) -> None:
    stored = texts(parts)
    assert len(stored) == len(parts)
    assert stored.lengths().tolist() == [len(part) for part in parts]
    chosen = data.draw(st.lists(st.integers(0, len(parts) - 1), max_size=40) if parts else st.just([]))
    assert text_rows(stored, rows(*chosen)) == [parts[row] for row in chosen]


def test_ragged_rows_are_gathered_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "BLOCK", 3)
    stored = texts([bytes([65 + row]) * (row % 4) for row in range(10)])
    taken = stored.take(np.arange(10)[::-1])
    assert taken.values.tobytes() == b"JHHHGGFDDDCCB"
    both = joined([stored, taken])
    assert len(both) == 20
    assert both[19].tobytes() == b""
    assert both[10].tobytes() == b"J"


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT)
def test_stored_text_has_the_order_of_code_points(first: str, second: str) -> None:
    assert decoded(encoded(first)) == first
    assert (encoded(first) < encoded(second)) == (first < second)


@settings(deadline=None)
@given(st.lists(INTEGERS, unique=True, min_size=1) | st.lists(STRINGS, unique=True, min_size=1), st.data())
def test_ids_are_sorted_and_found(ids: list[Any], data: st.DataObject) -> None:
    column, order = sorted_ids(raw_ids(ids))
    assert column.at(np.arange(len(ids))) == sorted(ids)
    assert [ids[place] for place in order] == sorted(ids)
    others = data.draw(st.lists(STRINGS if isinstance(ids[0], str) else INTEGERS))
    wanted = [*others, *ids]
    expected = [sorted(ids).index(id) if id in ids else -1 for id in wanted]
    assert column.find(wanted).tolist() == expected


def test_ids_with_equal_checksums_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idcolumns, "crc32", lambda text: len(text))
    column, _ = sorted_ids(raw_ids(["d", "b", "aa", "a"]))
    assert isinstance(column, TextIds)
    assert column.checksums.tolist() == [1, 1, 1, 2]
    assert column.find(["a", "aa", "b", "c", "d", "ccc"]).tolist() == [0, 1, 2, -1, 3, -1]


@pytest.fixture
def animals() -> Segment:
    labels = [("dog",), ("cat", "dog"), (), ("cat",)]
    return build(Batch(codes(4), [30, 10, 40, 20], labels, ["d.jpg", None, "", "c.jpg"]))


def test_a_segment_is_in_the_order_of_ids(animals: Segment) -> None:
    assert isinstance(animals.ids, IntegerIds)
    assert animals.ids.values.tolist() == [10, 20, 30, 40]
    assert animals.codes.tolist() == codes(4)[[1, 3, 0, 2]].tolist()
    items = animals.items(rows(2, 0, 3))
    assert [(item.id, item.labels, item.path) for item in items] == [
        (30, ("dog",), "d.jpg"),
        (10, ("cat", "dog"), None),
        (40, (), ""),
    ]


def test_items_that_carry_all_labels_are_found(animals: Segment) -> None:
    assert animals.carrying(["dog"]).tolist() == [0, 2]
    assert animals.carrying(["dog", "cat"]).tolist() == [0]
    assert animals.carrying(["dog", "emu"]).tolist() == []
    assert animals.label_counts(rows()) == {"cat": 2, "dog": 2}
    assert animals.label_counts(rows(0, 1)) == {"dog": 1}


def test_segments_are_merged_row_by_row(animals: Segment, tmp_path: Path) -> None:
    others = build(Batch(codes(2, seed=1), [25, 5], [("ant", "cat"), ("dog",)], [None, "e.jpg"]))
    write_arrays(tmp_path / "both", merge([(animals, rows(0, 1, 3)), (others, rows(0, 1))]))
    both = stored_segment(map_arrays(tmp_path / "both").arrays)
    assert both.ids.at(np.arange(5)) == [5, 10, 20, 25, 40]
    assert both.label_names == ["ant", "cat", "dog"]
    found = {item.id: (item.code.tolist(), item.labels, item.path) for item in both.items(np.arange(5))}
    for segment, taken in ((animals, rows(0, 1, 3)), (others, rows(0, 1))):
        for item in segment.items(taken):
            assert found.pop(item.id) == (item.code.tolist(), item.labels, item.path)
    assert not found
    assert both.carrying(["cat"]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [int, str])
def test_segments_merged_in_blocks_are_what_is_built_at_once(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "BLOCK", 7)
    random = np.random.default_rng(3)
    ids = [kind(number) for number in random.permutation(60).tolist()]
    labels = [tuple("abcdef"[j] for j in random.choice(6, size, replace=False)) for size in [0, 1, 3] * 20]
    looks = [random.bytes(16) if row % 3 else None for row in range(60)]
    seen = [{"xyz"[row % 3]: (row, 255 - row), "a": (0, 1)} if row % 2 else {} for row in range(60)]
    paths = [None if row % 5 == 0 else f"/p/{'é' * row}.jpg" for row in range(60)]

    def some(first: int, last: int) -> Segment:
        part = slice(first, last)
        columns = (ids[part], labels[part], paths[part], looks[part], seen[part])
        return build(Batch(codes(60)[part], *columns))

    segments = [some(0, 20), some(20, 25), some(25, 60)]
    whole = some(0, 60).arrays()
    write_arrays(tmp_path / "merged", merge([(each, np.arange(len(each))) for each in segments]))
    merged = map_arrays(tmp_path / "merged").arrays
    assert merged.keys() == whole.keys()
    for name, array in whole.items():
        assert merged[name].dtype == array.dtype, name
        assert np.array_equal(np.asarray(merged[name]), np.asarray(array)), name


@pytest.mark.parametrize("ids", [[3, 1], ["b", "a"]])
def test_a_segment_comes_back_from_its_file(tmp_path: Path, ids: list[Any]) -> None:
    segment = build(Batch(codes(2), ids, [(), ("x",)], [None, "p"]))
    checksum = write_arrays(tmp_path / "segment", segment.arrays())
    mapped = map_arrays(tmp_path / "segment")
    assert mapped.checksum == checksum
    stored = stored_segment(mapped.arrays)
    assert not np.asarray(stored.codes).flags.writeable
    for name, array in segment.arrays().items():
        assert stored.arrays()[name].dtype == array.dtype
        assert np.asarray(stored.arrays()[name]).tolist() == np.asarray(array).tolist()
    assert damage(tmp_path / "segment", checksum) is None


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_changed_or_cut_file_of_arrays_is_never_taken_for_sound(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("mapped") / "arrays"
    checksum = write_arrays(path, {"one": np.arange(data.draw(st.integers(0, 40))), "none": np.empty((0, 3))})
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    path.write_bytes(content)
    problem = damage(path, checksum)
    assert problem is not None
    assert problem.startswith(f"'{path}' is damaged: ")


def test_a_file_that_cannot_be_mapped_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        map_arrays(tmp_path / "nothing")
    with pytest.raises(DataError):
        map_arrays(tmp_path)


def test_large_starts_need_64_bits() -> None:
    assert ragged.ends_of(rows(2**31, 2**31 - 1)).dtype == np.uint32
    assert ragged.ends_of(rows(2**31, 2**31)).tolist() == [0, 2**31, 2**32]
    assert len(Ragged(ragged.ends_of(rows()), np.empty(0, np.uint8))) == 0
