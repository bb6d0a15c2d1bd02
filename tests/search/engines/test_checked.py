from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import DataError
from centerhash.search.engines import checked, mapped
from centerhash.search.engines.checked import BLOCK, Checked, block_sum, block_sums
from centerhash.search.engines.mapped import damage, map_arrays, write_arrays


def damaged() -> Exception:
    return DataError("damaged")


def made(values: Any, touched: int | None = None) -> Checked:
    """A checked array, of which a byte was changed after its sums were made."""
    array = np.array(values)
    content = array.reshape(-1).view(np.uint8)
    sums = block_sums(content)
    if touched is not None:
        content[touched] ^= 1
    return Checked(array, content, sums, damaged)


@pytest.mark.parametrize("size", [0, 1, 63, 512, BLOCK - 8, BLOCK, BLOCK + 520, 40 * BLOCK + 3])
def test_sums_are_those_of_the_single_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    sums = block_sums(content)
    assert sums.tolist() == [block_sum(content[at : at + BLOCK]) for at in range(0, size, BLOCK)]
    monkeypatch.setattr(checked, "_LARGE", 1)
    assert block_sums(content).tolist() == sums.tolist()


@given(st.integers(0, 3 * BLOCK - 1), st.integers(1, 255))
def test_every_changed_byte_changes_the_sum_of_its_block(place: int, change: int) -> None:
    content = np.arange(3 * BLOCK, dtype=np.uint64).view(np.uint8)[: 3 * BLOCK].copy()
    before = block_sums(content)
    content[place] ^= change
    assert np.flatnonzero(block_sums(content) != before).tolist() == [place // BLOCK]


@given(st.lists(st.integers(0, 49_999), max_size=20), st.integers(0, 50_000), st.integers(0, 50_000))
def test_rows_come_as_they_are(rows: list[int], start: int, stop: int) -> None:
    values = np.arange(150_000, dtype=np.int64).reshape(-1, 3)  # rows lie across the edges of blocks
    array = made(values)
    wanted = np.array(rows, np.uint32)
    np.testing.assert_array_equal(array[wanted], values[wanted])
    np.testing.assert_array_equal(array[start:stop], values[start:stop])
    assert array[7].tolist() == [21, 22, 23]
    assert np.asarray(array) is array.whole
    assert np.array(array).flags.owndata
    assert (len(array), array.shape, array.dtype) == (50_000, (50_000, 3), np.int64)


def test_only_what_is_read_is_checked() -> None:
    values = np.arange(100_000)
    array = made(values, touched=5 * BLOCK + 17)
    row = BLOCK // 8
    assert array[5 * row - 1] == 5 * row - 1
    assert array[6 * row] == 6 * row
    assert array[: 5 * row].tolist() == values[: 5 * row].tolist()
    for wrong in (
        5 * row + 2,
        slice(5 * row - 1, 5 * row + 1),
        np.array([3, 6 * row - 1]),
        np.arange(100_000),
    ):
        for _ in range(2):  # it is not forgotten
            with pytest.raises(DataError):
                array[wrong]
    with pytest.raises(DataError):
        np.asarray(array)
    with pytest.raises(DataError):
        np.asarray(made(values, touched=5))


def test_all_is_checked_once_there_were_as_many_questions_as_blocks() -> None:
    values = np.arange(40 * BLOCK // 8)
    array, broken = made(values), made(values, touched=5 * BLOCK)
    for question in range(40):
        assert not array._sound
        assert array[question] == broken[question] == question
    assert array._sound
    with pytest.raises(DataError):
        broken[5 * BLOCK // 8]
    assert broken[6 * BLOCK // 8] == 6 * BLOCK // 8


@pytest.mark.parametrize("side", ["left", "right"])
def test_values_are_found_as_numpy_finds_them(side: Any) -> None:
    generator = np.random.default_rng(0)
    values = np.sort(generator.integers(0, 100_000, 300_000))
    wanted = np.concatenate([[-1, 0, 99_999, 100_000], values[:5], generator.integers(0, 100_000, 10)])
    array = made(values)
    assert array.searchsorted(wanted, side).tolist() == values.searchsorted(wanted, side).tolist()
    assert not array._sound  # few questions read few blocks
    for _ in range(5):
        found = array.searchsorted(wanted, side)
    assert found.tolist() == values.searchsorted(wanted, side).tolist()
    assert array._sound
    with pytest.raises(DataError):
        made(values, touched=values.nbytes // 2).searchsorted(wanted)  # where each bisection begins


def test_files_of_earlier_versions_are_checked_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"a": np.arange(70_000), "b": np.arange(5, dtype=np.uint8), "c": np.empty((0, 2), np.uint8)}
    path = tmp_path / "file"
    with monkeypatch.context() as patched:
        patched.setattr(mapped, "MAGIC", mapped.UNSUMMED)
        checksum = write_arrays(path, arrays)
    stored = map_arrays(path).arrays
    assert damage(path, checksum) is None
    for name, array in arrays.items():
        assert np.asarray(stored[name]).tolist() == array.tolist()
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(9, 12).tobytes())] ^= 1
    path.write_bytes(content)
    stored = map_arrays(path).arrays
    assert stored["b"][3] == 3
    with pytest.raises(DataError, match=r"file' is damaged: `a` does not match its checksum\. Next: restore"):
        stored["a"][69_999]
