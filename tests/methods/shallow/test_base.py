from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.options import read_options
from centerhash.methods.shallow import base
from centerhash.methods.shallow.base import (
    ShallowOptions,
    Training,
    affine,
    mean_features,
    prepare,
    principal_axes,
    project,
)
from centerhash.methods.shallow.kernel import KernelOptions


def random_features(rows: int = 12, width: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def test_rows_come_to_length_one_and_zeros_stay() -> None:
    features = np.array([[3, 4], [0, 0], [0, -2]], dtype=np.float16)
    np.testing.assert_allclose(prepare(features, True), [[0.6, 0.8], [0, 0], [0, -1]], atol=1e-15)
    np.testing.assert_array_equal(prepare(features, False), features)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features = random_features(13)
    weights = np.random.default_rng(1).normal(size=(4, 3))
    whole = project(features, True, weights, np.ones(3))
    axes = principal_axes(features, True)
    monkeypatch.setattr(base, "BLOCK", 5)
    monkeypatch.setattr("centerhash.core.checks.BLOCK", 5)
    np.testing.assert_allclose(mean_features(features, True), prepare(features, True).mean(axis=0))
    np.testing.assert_allclose(project(features, True, weights, np.ones(3)), whole, rtol=1e-12)
    np.testing.assert_allclose(principal_axes(features, True).variances, axes.variances, rtol=1e-10)
    with pytest.raises(InputError, match="first in row 11"):
        check_features(np.where(np.arange(13)[:, None] == 11, np.nan, features))


def test_a_value_that_is_only_rounding_is_zero() -> None:
    # in floating point 0.1 + 0.2 - 0.3 is 5.6e-17
    row, weights = np.array([[0.1, 0.2, 1.0]]), np.array([[1.0], [1.0], [0.0]])
    assert (row @ weights - 0.3).item() != 0
    assert affine(row, weights, np.array([0.3])).item() == 0
    assert affine(row, weights, np.array([0.3 + 1e-9])).item() == pytest.approx(-1e-9)


@pytest.mark.parametrize("rows", [40, 3])  # by the covariance, by the rows
def test_axes_agree_with_a_plain_decomposition(rows: int) -> None:
    features = random_features(rows, 6) * np.array([5, 4, 3, 2, 1, 0], dtype=np.float32)
    found = principal_axes(features, False)
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    rank = min(rows - 1, 5)
    expected = np.linalg.svd(centred, compute_uv=False)[:rank] ** 2 / rows
    np.testing.assert_allclose(found.variances, expected, rtol=1e-6)
    np.testing.assert_allclose(found.axes.T @ found.axes, np.eye(rank), atol=1e-10)
    np.testing.assert_allclose(((centred @ found.axes) ** 2).mean(axis=0), expected, rtol=1e-6)
    assert principal_axes(features, False, most=2).axes.shape == (6, 2)


FEATURES, LABELS = random_features(), np.ones((12, 3), dtype=bool)


def check(
    features: NDArray[Any], labels: NDArray[Any], bits: int = 8, unit: bool = True, method: str | None = None
) -> None:
    Training(features, labels, bits, ShallowOptions(unit=unit), 0).checked(ShallowOptions, method)


@pytest.mark.parametrize(
    ("features", "labels", "bits", "error", "words"),
    [
        (FEATURES, LABELS, 0, ConfigError, "bits"),
        (FEATURES.astype(np.int64), LABELS, 8, InputError, "int64"),
        (FEATURES, LABELS[1:], 8, InputError, r"\(11, 3\)"),
        (FEATURES, LABELS.astype(float), 8, InputError, "float64"),
        (FEATURES[:1], LABELS[:1], 8, DataError, "2 rows"),
        (np.where(np.arange(12)[:, None] == 2, np.inf, FEATURES), LABELS, 8, InputError, "row 2"),
        (FEATURES, LABELS & False, 8, DataError, "KSH"),
    ],
)
def test_training_is_checked_at_the_door(
    features: NDArray[Any], labels: NDArray[Any], bits: int, error: type[Exception], words: str
) -> None:
    check(FEATURES, LABELS, method="KSH")
    with pytest.raises(error, match=words):
        check(features, labels, bits, method="KSH")


def test_equal_rows_teach_nothing() -> None:
    labels = np.ones((5, 1), dtype=bool)
    with pytest.raises(DataError, match="5 rows"):
        check(np.full((5, 3), 0.7, dtype=np.float32), labels, unit=False)
    lengths = np.array([[1.0, 2.0, 3.0]], dtype=np.float32) * np.arange(1, 6, dtype=np.float32)[:, None]
    check(lengths, labels, unit=False)
    with pytest.raises(DataError, match="unit=false"):
        check(lengths, labels)


def test_bandwidths_that_leave_no_kernel_are_refused() -> None:
    with pytest.raises(ConfigError):
        read_options(KernelOptions, {"bandwidth": 0.0}, "it")
