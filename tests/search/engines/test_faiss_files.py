from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.codes import Packed
from centerhash.core.errors import DataError, InputError
from centerhash.search.engines import faiss_files
from centerhash.search.engines.faiss_engine import _faiss
from centerhash.search.engines.faiss_files import export_faiss, ids_file, import_faiss
from centerhash.search.engines.flat import FlatIndex


@pytest.fixture
def faiss() -> Any:
    return _faiss()


@pytest.fixture
def codes() -> Packed:
    return np.random.default_rng(0).integers(0, 256, (20, 6), dtype=np.uint8)


def flat_of(faiss: Any, codes: Packed) -> Any:
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    return index


@pytest.mark.parametrize("mapping", ["IndexBinaryIDMap", "IndexBinaryIDMap2"])
def test_codes_and_ids_that_faiss_wrote(faiss: Any, tmp_path: Path, codes: Packed, mapping: str) -> None:
    index = getattr(faiss, mapping)(faiss.IndexBinaryFlat(48))
    index.add_with_ids(codes, np.arange(100, 120))
    faiss.write_index_binary(index, str(tmp_path / "f"))
    packed, ids = import_faiss(tmp_path / "f")
    assert np.array_equal(packed, codes)
    assert ids == list(range(100, 120))


@pytest.mark.parametrize("count", [0, 20])
def test_a_file_without_ids_has_positions(faiss: Any, tmp_path: Path, codes: Packed, count: int) -> None:
    faiss.write_index_binary(flat_of(faiss, codes[:count]), str(tmp_path / "f"))
    packed, ids = import_faiss(tmp_path / "f")
    assert np.array_equal(packed, codes[:count])
    assert packed.shape == (count, 6)
    assert ids == list(range(count))


@pytest.mark.parametrize("count", [0, 20])
def test_faiss_reads_integer_ids(
    faiss: Any, tmp_path: Path, codes: Packed, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_files, "AT_ONCE", 7)
    ids = [50 - 3 * row for row in range(count)]
    with FlatIndex.create(tmp_path / "index", 48) as index:
        index.add(codes[:count], ids)
        export_faiss(index, tmp_path / "f")
    read = faiss.read_index_binary(str(tmp_path / "f"))
    assert isinstance(faiss.downcast_IndexBinary(read), faiss.IndexBinaryIDMap2)
    assert read.ntotal == count
    if count:
        distances, found = read.search(codes, 1)
        assert not distances.any()
        assert found[:, 0].tolist() == ids
    packed, back = import_faiss(tmp_path / "f")
    assert back == sorted(ids)
    assert np.array_equal(packed, codes[:count][::-1])


def test_string_ids_lie_beside_the_file(faiss: Any, tmp_path: Path, codes: Packed) -> None:
    ids = [f"bild {row:02d} ä" for row in range(20)]
    with FlatIndex.create(tmp_path / "index", 48) as index:
        index.add(codes, ids)
        export_faiss(index, tmp_path / "f")
    assert isinstance(
        faiss.downcast_IndexBinary(faiss.read_index_binary(str(tmp_path / "f"))), faiss.IndexBinaryFlat
    )
    packed, back = import_faiss(tmp_path / "f")
    assert back == ids
    assert np.array_equal(packed, codes)
    ids_file(tmp_path / "f").write_text("one\n")
    with pytest.raises(DataError, match="has 1 lines for 20 codes"):
        import_faiss(tmp_path / "f")


def test_an_id_of_two_lines_cannot_be_exported(tmp_path: Path, codes: Packed) -> None:
    with FlatIndex.create(tmp_path / "index", 48) as index:
        index.add(codes[:1], ["a\nb"])
        with pytest.raises(InputError, match="has a line break"):
            export_faiss(index, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_other_kinds_of_index_are_refused_by_name_of_what_is_allowed(faiss: Any, tmp_path: Path) -> None:
    faiss.write_index_binary(faiss.IndexBinaryHNSW(64, 4), str(tmp_path / "f"))
    with pytest.raises(DataError, match="begins with b'IBHf': only IndexBinaryFlat"):
        import_faiss(tmp_path / "f")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        import_faiss(tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot read"):
        import_faiss(tmp_path)


@pytest.mark.parametrize("offset", [4, 8, 12, 50])
def test_lengths_that_lie_are_refused_before_memory_is_taken(
    faiss: Any, tmp_path: Path, codes: Packed, offset: int
) -> None:
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(48))
    index.add_with_ids(codes, np.arange(20))
    content = bytearray(faiss.serialize_index_binary(index))
    content[offset + 3] = 0x7F
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match="is damaged, or no file of faiss"):
        import_faiss(tmp_path / "f")


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 345), tail=st.binary(max_size=3))
def test_a_cut_or_longer_file_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, tail: bytes
) -> None:
    faiss = _faiss()
    codes = np.random.default_rng(0).integers(0, 256, (20, 6), dtype=np.uint8)
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(48))
    index.add_with_ids(codes, np.arange(20))
    content = bytes(faiss.serialize_index_binary(index))
    assert len(content) == 346
    file = tmp_path_factory.getbasetemp() / "cut.faiss"
    file.write_bytes(content[:cut] if cut < 345 else content + b"x" + tail)
    with pytest.raises(DataError):
        import_faiss(file)
