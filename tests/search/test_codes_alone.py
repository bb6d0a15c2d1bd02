"""Search by a code, and an index without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, InputError
from centerhash.search import Index, verify_index
from centerhash.search.query import query_by_code, without_model
from centerhash.serve import create_app
from tests.toys import cli


@given(bits=st.integers(2, 70), seed=st.integers(0, 99))
def test_all_forms_of_a_code_mean_the_same(bits: int, seed: int) -> None:
    code = np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), bits)
    packed = pack(code[None])[0]
    forms: list[Any] = [code, code.tolist(), code > 0, (code > 0).astype(int), packed, packed.tobytes().hex()]
    for form in forms:
        assert query_by_code(without_model(bits), form).code.tolist() == code.tolist()


@pytest.mark.parametrize(
    "code", ["xy", "00", [1, 2] * 8, [1, 1], np.zeros(3, np.uint8), [[1] * 16], object()]
)
def test_what_is_no_code_is_refused(code: Any) -> None:
    with pytest.raises(InputError, match="16 values"):
        query_by_code(without_model(16), code)


def test_an_index_without_a_model_holds_codes_of_other_programs(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    codes = generator.choice(np.array([-1, 1], np.int8), (50, 20))
    np.save(tmp_path / "signs.npy", codes[:30])
    np.save(tmp_path / "packed.npy", pack(codes[30:]))
    place = tmp_path / "codes.index"
    assert cli("index", "create", place, "--bits", "20").code == 0
    for name in ("signs", "packed"):
        done = cli("index", "import", place, tmp_path / f"{name}.npy")
        assert done.code == 0, done.err
    assert verify_index(place) == []
    with Index.open(place) as index:
        distances = (codes != codes[3]).sum(axis=1)
        found = index.search(code=codes[3], k=50)
        assert found[0].id == "signs-3"
        assert [row.distance for row in found] == sorted(distances.tolist())
        assert [row.id for row in index.search(id="signs-3", k=49)] == [row.id for row in found[1:]]
        assert index.search(code=codes[3], within=0)[0].distance == 0
        assert index.info()["method"] is None
        for search in ({"labels": "cat"}, {"image": tmp_path / "photo.jpg"}):
            with pytest.raises(ConfigError, match="no model"):
                index.search(**search)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no model"):
            index.add(tmp_path, progress=False)
        with TestClient(create_app(index), base_url="http://localhost") as client:
            assert client.get("/health").json()["method"] is None
            assert client.get("/labels").json() == {"labels": []}
        assert index.backup(tmp_path / "copy", progress=False) == 50
    done = cli("search", place, "--code", pack(codes[:1]).tobytes().hex(), "--json")
    assert '"signs-0"' in done.out


def test_a_model_and_bits_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bits"):
        Index.create(tmp_path / "index", "coco", bits=8)
    assert cli("index", "create", tmp_path / "index", "--bits", "0").code == 2
