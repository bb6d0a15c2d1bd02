"""Untrusted arrays and models: reading them succeeds or raises CenterhashError."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from centerhash.core.errors import CenterhashError
from centerhash.encoding.code_files import read_codes
from centerhash.model.model import HashModel
from tests.mutations import changed_json, damaged, damages, seeded

NAMES = ("packed", "bits", "codes", "names", "paths", "labels", "classes", "ids", "general", "shares")


def npz(**stored: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **stored)
    return stream.getvalue()


GOOD = npz(packed=np.zeros((3, 2), np.uint8), bits=np.array(16), names=np.array(["a", "b", "c"]))


@seeded
@given(damages)
@example(([(607_877, 0)], 1_000_000))  # A stream that zlib refuses.
def test_read_codes_damaged(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "codes.npz").write_bytes(damaged(GOOD, damage))
    with suppress(CenterhashError):
        read_codes(tmp_path / "codes.npz")


values = st.sampled_from([0, 1, 16, -1, 2**62]).map(np.array) | arrays.arrays(
    arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)


@seeded
@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=6))
def test_read_codes_arrays(tmp_path: Path, stored: dict[str, Any]) -> None:
    good = {"packed": np.zeros((3, 2), np.uint8), "bits": np.array(16)}
    (tmp_path / "codes.npz").write_bytes(npz(**{**good, **stored}))
    with suppress(CenterhashError):
        read_codes(tmp_path / "codes.npz")


@pytest.fixture(scope="module")
def model(feature_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for name in ("model.json", "model.safetensors"):
        shutil.copy(feature_run / name, folder / name)
    return folder


@seeded
@given(st.data())
def test_load_model_json(model: Path, feature_run: Path, data: st.DataObject) -> None:
    document = json.loads((feature_run / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(data.draw(changed_json(document))))
    with suppress(CenterhashError):
        HashModel.load(model)


@seeded
@given(damages, damages)
def test_load_model_damaged(model: Path, feature_run: Path, first: Any, second: Any) -> None:
    for name, damage in (("model.json", first), ("model.safetensors", second)):
        (model / name).write_bytes(damaged((feature_run / name).read_bytes(), damage))
    with suppress(CenterhashError):
        HashModel.load(model)
