from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.projections import ITQ, LSH, SH, iterative_quantization


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


# --- LSH


def test_lsh() -> None:
    features = normal(50, 6) + 5
    fitted = LSH(12, seed=3).fit(features)
    directions = np.random.default_rng(3).normal(size=(6, 12))
    expected = (features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)) @ directions
    np.testing.assert_allclose(fitted.transform(features), expected, atol=1e-9)


def test_row_on_all_planes() -> None:
    features, projection = normal(50, 300), np.random.default_rng(1).normal(size=(300, 64))
    arrays = {"normalize": np.array(True), "projection": projection, "offset": np.zeros(64)}
    arrays["offset"] = LSH.from_arrays(arrays).transform(features)[3]
    planes = LSH.from_arrays(arrays)
    for batch in (slice(0, 50), slice(3, 4), slice(2, 5), slice(3, 20)):
        assert (planes.transform(features[batch])[3 - batch.start] == 0).all()


# --- SH


def test_sh_transform() -> None:
    """Modes 1 and 2 on [2, 6]."""
    arrays = {"normalize": np.array(False), "projection": np.eye(1), "minima": np.array([2.0])}
    modes = {"axes": np.array([0, 0]), "frequencies": np.array([math.pi / 4, math.pi / 2])}
    values = SH.from_arrays({**arrays, **modes}).transform(np.array([[2.0], [3.0], [4.0], [6.0]]))
    half = math.sqrt(0.5)
    np.testing.assert_allclose(values, [[1, 1], [half, 0], [0, -1], [-1, 1]], atol=1e-12)


def test_sh_on_a_line() -> None:
    """On one axis, mode 1 halves the range and mode 2 separates the middle from both ends."""
    line = np.linspace(0, 1, 101, dtype=np.float32)[:, None] * np.array([[3.0, 4.0]], dtype=np.float32)
    fitted = SH(8, normalize=False).fit(line)
    assert fitted.projection.shape == (2, 1)  # eight bits from one axis
    signs = fitted.transform(line) >= 0
    assert abs(int(signs[:, 0].sum()) - 50) <= 1
    assert np.flatnonzero(np.diff(signs[:, 0].astype(int))).size == 1
    turns = [np.flatnonzero(np.diff(signs[:, bit].astype(int))).size for bit in range(8)]
    assert turns == list(range(1, 9))


def test_sh_axes() -> None:
    """A third axis of little variance is the longest by one outlier: two bits do not use it."""
    generator = np.random.default_rng(0)
    features = np.zeros((1001, 3), dtype=np.float32)
    features[:, 0] = generator.uniform(-1.2, 1.2, 1001)
    features[:, 1] = generator.uniform(-1, 1, 1001)
    features[0, 2] = 10
    fitted = SH(2, normalize=False).fit(features)
    assert np.abs(fitted.projection[2]).max() < 0.1
    third = SH(3, normalize=False).fit(features)
    assert np.abs(third.projection[2]).max() > 0.9


# --- ITQ


def random_rotation(axes: int, bits: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(bits, bits)))[0][:axes]


def error(coordinates: np.ndarray, rotation: np.ndarray) -> float:
    """||B - V R||^2 with the signs B of V R."""
    rotated = coordinates @ rotation
    return float(((np.where(rotated >= 0, 1.0, -1.0) - rotated) ** 2).sum())


def test_itq_rotation() -> None:
    """Points on the axes are rotated by 45 degrees to the corners."""
    coordinates = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]) * math.sqrt(2)
    rotation = iterative_quantization(coordinates, 20, random_rotation(2, 2, seed=0))
    np.testing.assert_allclose(np.abs(coordinates @ rotation), 1, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 5))
def test_itq_error(seed: int, axes: int, more: int) -> None:
    coordinates = np.random.default_rng(seed).normal(size=(40, axes)) * np.linspace(2, 0.1, axes)
    rotation = random_rotation(axes, axes + more, seed)
    errors = [error(coordinates, rotation)]
    for _ in range(10):
        rotation = iterative_quantization(coordinates, 1, rotation)
        errors.append(error(coordinates, rotation))
    assert (np.diff(errors) <= 1e-9 * errors[0]).all()
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(axes), atol=1e-9)


def test_itq_with_more_bits_than_axes() -> None:
    features = normal(50, 4)
    fitted = ITQ(16, normalize=False).fit(features)
    values = fitted.transform(features)
    centered = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(values @ values.T, centered @ centered.T, atol=1e-8)  # only rotated
    assert len(np.unique(values >= 0, axis=1).T) > 4  # more different bits than axes
