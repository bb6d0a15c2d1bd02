from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import Packed, pack
from centerhash.core.errors import DataError
from centerhash.search import Added, Index
from tests.toys import separable

faiss: Any = pytest.importorskip("faiss")


@pytest.fixture
def index(feature_run: Path, tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", feature_run) as made:
        yield made


def codes_of(index: Index, count: int = 6) -> Packed:
    return pack(index.model.encode_features(separable(count)[0]))


def written(made: Any, path: Path) -> Path:
    faiss.write_index_binary(made, str(path))
    return path


def stored(index: Index) -> dict[str, list[int]]:
    return {str(item.id): item.code.tolist() for item in index.items()}


@pytest.mark.parametrize("name", ["today.faiss", "today.bin"])
@pytest.mark.parametrize("kind", ["flat", "graph"])
def test_codes_of_a_file_are_called_after_it(index: Index, tmp_path: Path, name: str, kind: str) -> None:
    packed = codes_of(index)
    made = faiss.IndexBinaryFlat(16) if kind == "flat" else faiss.IndexBinaryHNSW(16, 4)
    made.add(packed)
    file = written(made, tmp_path / name)
    assert index.import_codes(file) == Added(6, 0, {})
    assert stored(index) == {f"today-{row}": code.tolist() for row, code in enumerate(packed)}
    assert index.import_codes(file) == Added(0, 6, {})


@pytest.mark.parametrize("kind", ["IndexBinaryIDMap", "IndexBinaryIDMap2"])
def test_ids_of_a_map_are_kept(index: Index, tmp_path: Path, kind: str) -> None:
    packed = codes_of(index)
    made = getattr(faiss, kind)(faiss.IndexBinaryFlat(16))
    made.add_with_ids(packed, np.arange(70, 76))
    index.import_codes(written(made, tmp_path / "some.faiss"))
    assert stored(index) == {str(70 + row): code.tolist() for row, code in enumerate(packed)}


def test_what_was_exported_comes_back(index: Index, feature_run: Path, tmp_path: Path) -> None:
    index.add_codes(codes_of(index), [f"id {row}" for row in range(6)])
    index.export(tmp_path / "out", "faiss")
    with Index.create(tmp_path / "other", feature_run) as other:
        assert other.import_codes(tmp_path / "out").added == 6
        assert stored(other) == stored(index)


def test_kinds_that_cannot_be_imported_say_so(index: Index, tmp_path: Path) -> None:
    hashes = faiss.IndexBinaryMultiHash(16, 2, 8)
    hashes.add(codes_of(index))
    cells = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(16), 16, 2)
    cells.train(codes_of(index, 80))
    long = faiss.IndexBinaryFlat(64)
    for made, reason in [
        (
            cells,
            "holds an IndexBinaryIVF, which does not keep codes in their order: what can be imported is an Ind",
        ),
        (long, "holds codes of 64 bits, the index of 16"),
    ]:
        with pytest.raises(DataError, match=reason):
            index.import_codes(written(made, tmp_path / "other.faiss"))
    with pytest.raises(DataError, match="IndexBinaryMultiHash"):
        index.import_codes(written(hashes, tmp_path / "hashes.faiss"))
    assert len(index) == 0


def test_damaged_files_say_so(index: Index, tmp_path: Path) -> None:
    made = faiss.IndexBinaryFlat(16)
    made.add(codes_of(index))
    content = written(made, tmp_path / "sound.faiss").read_bytes()
    floats = faiss.IndexFlatL2(16)
    for name, damaged in {
        "cut": content[:-5],
        "short": content[:3],
        "empty": b"",
        "float": faiss.serialize_index(floats).tobytes(),
    }.items():
        (tmp_path / f"{name}.faiss").write_bytes(damaged)
        with pytest.raises(DataError, match=f"{name}.faiss' is no binary index of faiss, or it is damaged: "):
            index.import_codes(tmp_path / f"{name}.faiss")
    with pytest.raises(DataError):
        index.import_codes(tmp_path / "none.faiss")


def test_names_that_do_not_fit_are_refused(index: Index, tmp_path: Path) -> None:
    index.add_codes(codes_of(index), [f"id {row}" for row in range(6)])
    index.export(tmp_path / "out", "faiss")
    (tmp_path / "out" / "ids.json").write_text(json.dumps(["a", "b"]))
    with pytest.raises(DataError):
        index.import_codes(tmp_path / "out")
