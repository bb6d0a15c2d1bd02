from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.base import ShallowOptions
from centerhash.methods.shallow.projections import (
    Itq,
    ItqOptions,
    Lsh,
    Modes,
    Sh,
    best_rotation,
    eigenfunctions,
    eigenvalues,
    iterative_quantisation,
    quantisation_error,
    random_rotation,
    smallest_modes,
)

NO_LABELS = np.zeros((50, 1), dtype=bool)


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


# --- LSH


def test_lsh_planes_go_through_the_mean() -> None:
    features = normal(50, 6) + 5
    fitted = Lsh.fit(features, NO_LABELS, 12, ShallowOptions(unit=False), seed=3)
    directions = np.random.default_rng(3).normal(size=(6, 12))
    expected = (features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)) @ directions
    np.testing.assert_allclose(fitted.values(features), expected, atol=1e-9)


def test_lsh_distances_follow_the_angle() -> None:
    """P(bit differs) = angle / pi, the property that LSH is named after."""
    features = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)  # their mean is 0
    fitted = Lsh.fit(features, NO_LABELS[:4], 4000, ShallowOptions(), seed=0)
    angles = np.array([0, math.pi / 4, math.pi / 2])
    signs = fitted.values(np.stack([np.cos(angles), np.sin(angles)], axis=1)) >= 0
    np.testing.assert_allclose((signs[1:] != signs[0]).mean(axis=1), angles[1:] / math.pi, atol=0.03)


def test_a_row_on_all_planes_is_positive_in_every_batch() -> None:
    features, projection = normal(50, 300), np.random.default_rng(1).normal(size=(300, 64))
    planes = Lsh(
        np.array(True), projection, Lsh(np.array(True), projection, np.zeros(64)).values(features)[3]
    )
    for batch in (slice(0, 50), slice(3, 4), slice(2, 5), slice(3, 20)):
        assert (planes.values(features[batch])[3 - batch.start] == 0).all()


# --- SH


def naive_modes(ranges: list[float], bits: int, epsilon: float) -> list[tuple[int, int]]:
    """(axis, mode) by the eigenvalue as the paper prints it, one at a time."""
    found = []
    for axis, length in enumerate(ranges):
        for mode in range(1, bits + 1):
            frequency = mode * math.pi / length
            found.append((1 - math.exp(-(epsilon**2) / 2 * abs(frequency) ** 2), axis, mode))
    return [(axis, mode) for _, axis, mode in sorted(found)[:bits]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=6), st.integers(1, 16))
def test_sh_takes_the_smallest_eigenvalues(ranges: list[float], bits: int) -> None:
    modes = smallest_modes(np.array(ranges), bits)
    numbers = np.rint(modes.frequencies * np.array(ranges)[modes.axes] / math.pi).astype(int)
    chosen = list(zip(modes.axes.tolist(), numbers.tolist(), strict=True))
    naive = naive_modes(ranges, bits, epsilon=0.01)

    def frequencies(pairs: list[tuple[int, int]]) -> list[float]:
        return sorted(mode / ranges[axis] for axis, mode in pairs)

    np.testing.assert_allclose(frequencies(chosen), frequencies(naive), rtol=1e-6)  # the same up to ties
    assert len(set(chosen)) == bits


def test_sh_modes_by_hand() -> None:
    np.testing.assert_allclose(eigenvalues(np.array([math.pi, math.pi / 2]), 3), [[1, 4, 9], [4, 16, 36]])
    modes = smallest_modes(np.array([math.pi, math.pi / 2]), 4)  # 1, then 4 on both axes, then 9
    assert modes.axes.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(modes.frequencies, [1, 2, 2, 3])


def test_sh_eigenfunctions_by_hand() -> None:
    modes = Modes(np.array([0, 0]), np.array([math.pi / 4, math.pi / 2]))  # modes 1 and 2 on [2, 6]
    values = eigenfunctions(np.array([[2.0], [3.0], [4.0], [6.0]]), np.array([2.0]), modes)
    half = math.sqrt(0.5)
    np.testing.assert_allclose(values, [[1, 1], [half, 0], [0, -1], [-1, 1]], atol=1e-12)


def test_sh_cuts_a_line_where_it_should() -> None:
    """On one axis, mode 1 halves the range and mode 2 separates the middle from both ends."""
    line = np.linspace(0, 1, 101, dtype=np.float32)[:, None] * np.array([[3.0, 4.0]], dtype=np.float32)
    fitted = Sh.fit(line, np.zeros((101, 1), dtype=bool), 8, ShallowOptions(unit=False), seed=0)
    assert fitted.projection.shape == (2, 1)  # eight bits from the only axis that there is
    signs = fitted.values(line) >= 0
    assert abs(int(signs[:, 0].sum()) - 50) <= 1
    assert np.flatnonzero(np.diff(signs[:, 0].astype(int))).size == 1
    turns = [np.flatnonzero(np.diff(signs[:, bit].astype(int))).size for bit in range(8)]
    assert turns == list(range(1, 9))


def test_sh_looks_along_the_first_axes_only() -> None:
    """A third axis of little variance is the longest by one outlier: two bits never look at it."""
    generator = np.random.default_rng(0)
    features = np.zeros((1001, 3), dtype=np.float32)
    features[:, 0] = generator.uniform(-1.2, 1.2, 1001)
    features[:, 1] = generator.uniform(-1, 1, 1001)
    features[0, 2] = 10
    fitted = Sh.fit(features, np.zeros((1001, 1), dtype=bool), 2, ShallowOptions(unit=False), seed=0)
    assert np.abs(fitted.projection[2]).max() < 0.1
    third = Sh.fit(features, np.zeros((1001, 1), dtype=bool), 3, ShallowOptions(unit=False), seed=0)
    assert np.abs(third.projection[2]).max() > 0.9


# --- ITQ


def test_itq_by_hand() -> None:
    """Points on the axes are turned by 45 degrees on to the corners; nothing is left but their length."""
    coordinates = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]) * math.sqrt(2)
    rotation, errors = iterative_quantisation(coordinates, 20, random_rotation(2, 2, seed=0))
    np.testing.assert_allclose(np.abs(coordinates @ rotation), 1, atol=1e-9)
    assert errors[-1] == pytest.approx(0, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 5))
def test_itq_error_never_rises(seed: int, axes: int, more: int) -> None:
    coordinates = np.random.default_rng(seed).normal(size=(40, axes)) * np.linspace(2, 0.1, axes)
    rotation, errors = iterative_quantisation(coordinates, 25, random_rotation(axes, axes + more, seed))
    assert len(errors) == 26
    assert (np.diff(errors) <= 1e-9 * errors[0]).all()
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(axes), atol=1e-9)
    codes = np.where(coordinates @ rotation >= 0, 1.0, -1.0)
    assert errors[-1] == pytest.approx(float(((codes - coordinates @ rotation) ** 2).sum()))


def test_itq_error_falls_below_that_of_the_random_rotation() -> None:
    coordinates = np.random.default_rng(0).normal(size=(200, 8)) * np.linspace(2, 0.1, 8)
    _, errors = iterative_quantisation(coordinates, 50, random_rotation(8, 8, seed=0))
    assert errors[-1] < 0.97 * errors[0]


def test_best_rotation_beats_every_other() -> None:
    generator = np.random.default_rng(0)
    coordinates, codes = generator.normal(size=(30, 3)), np.sign(generator.normal(size=(30, 3)))
    best = ((codes - coordinates @ best_rotation(codes, coordinates)) ** 2).sum()
    for _ in range(50):
        other = np.linalg.qr(generator.normal(size=(3, 3)))[0]
        assert best <= ((codes - coordinates @ other) ** 2).sum()


def test_quantisation_error_by_hand() -> None:
    assert quantisation_error(np.array([[0.5, -2.0], [1.0, 0.0]])) == pytest.approx(0.25 + 1 + 0 + 1)


def test_itq_with_more_bits_than_axes_keeps_the_geometry() -> None:
    features = normal(50, 4)
    fitted = Itq.fit(features, NO_LABELS, 16, ItqOptions(unit=False), seed=0)
    values = fitted.values(features)
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(values @ values.T, centred @ centred.T, atol=1e-8)  # only turned
    assert len(np.unique(values >= 0, axis=1).T) > 4  # more different bits than axes
