from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.methods.shallow import base
from centerhash.methods.shallow.base import affine, prepare
from centerhash.methods.shallow.ksh import KSH
from centerhash.methods.shallow.projections import LSH, SH


def random_features(rows: int = 12, width: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def test_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    features, lsh = random_features(13), LSH(4, normalize=True)
    weights = np.random.default_rng(1).normal(size=(4, 3))
    project = partial(lsh.apply, lambda rows: affine(rows, weights, np.ones(3)), features, 3)
    values, (_, axes) = project(), lsh.principal_axes(features)
    monkeypatch.setattr(base, "BLOCK_ROWS", 5)
    np.testing.assert_allclose(lsh.mean_features(features), prepare(features, True).mean(axis=0))
    np.testing.assert_allclose(project(), values, rtol=1e-12)
    np.testing.assert_allclose(lsh.principal_axes(features)[1], axes, rtol=1e-8)
    with pytest.raises(InputError, match="first in row 11"):
        check_features(np.where(np.arange(13)[:, None] == 11, np.nan, features))


@pytest.mark.parametrize("rows", [40, 3])
def test_principal_axes(rows: int) -> None:
    features = random_features(rows, 6) * np.array([5, 4, 3, 2, 1, 0], dtype=np.float32)
    mean, axes = LSH(6).principal_axes(features)
    variances = np.linalg.svd(features.astype(float) - mean, compute_uv=False)[: min(rows - 1, 5)] ** 2
    np.testing.assert_allclose(axes.T @ axes, np.eye(len(variances)), atol=1e-10)
    np.testing.assert_allclose((((features - mean) @ axes) ** 2).sum(axis=0), variances, rtol=1e-6)
    assert LSH(2).principal_axes(features)[1].shape == (6, 2)


def test_affine_rounding() -> None:
    # In floating point 0.1 + 0.2 - 0.3 is 5.6e-17.
    row, weights = np.array([[0.1, 0.2, 1.0]]), np.array([[1.0], [1.0], [0.0]])
    assert (row @ weights - 0.3).item() != 0
    assert affine(row, weights, np.array([0.3])).item() == 0
    assert affine(row, weights, np.array([0.3 + 1e-9])).item() == pytest.approx(-1e-9)


FEATURES, LABELS = random_features(), np.ones((12, 3), dtype=bool)


@pytest.mark.parametrize(
    ("features", "labels", "bits", "error", "words"),
    [
        (FEATURES, LABELS, 0, ConfigError, "bits"),
        (FEATURES.astype(np.int64), LABELS, 8, InputError, "int64"),
        (FEATURES, LABELS[1:], 8, InputError, r"\(11, 3\)"),
        (FEATURES, LABELS.astype(float), 8, InputError, "float64"),
        (FEATURES[:1], LABELS[:1], 8, DataError, "2 different rows"),
        (np.where(np.arange(12)[:, None] == 2, np.inf, FEATURES), LABELS, 8, InputError, "row 2"),
        (FEATURES, LABELS & False, 8, DataError, "KSH"),
    ],
)
def test_wrong_training_data(
    features: NDArray[Any], labels: NDArray[Any], bits: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        KSH(bits).fit(features, labels)


def test_equal_rows() -> None:
    with pytest.raises(DataError, match="5 are the same"):
        SH(8, normalize=False).fit(np.full((5, 3), 0.7, dtype=np.float32))
    lengths = np.array([[1.0, 2.0, 3.0]], dtype=np.float32) * np.arange(1, 6, dtype=np.float32)[:, None]
    SH(8, normalize=False).fit(lengths)
    with pytest.raises(DataError, match="normalize=false"):
        SH(8).fit(lengths)
