from __future__ import annotations

import math

import numpy as np
import pytest

from centerhash.methods.shallow.base import prepare
from centerhash.methods.shallow.kernel import Kernel, KernelHash, KernelOptions, draw_kernel, rbf, share_label


class Hash(KernelHash):
    """The shared part alone; fitting is not under test here."""

    @classmethod
    def _fit(cls, given: object) -> Hash:
        raise NotImplementedError


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def naive_rbf(inputs: np.ndarray, anchors: np.ndarray, sigma: float) -> list[list[float]]:
    return [
        [math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * sigma**2)) for y in anchors]
        for x in inputs.tolist()
    ]


def test_rbf_agrees_with_a_loop() -> None:
    inputs, anchors = normal(7, 3).astype(float), normal(4, 3, seed=1).astype(float)
    np.testing.assert_allclose(rbf(inputs, anchors, 0.8), naive_rbf(inputs, anchors, 0.8), rtol=1e-10)
    np.testing.assert_allclose(np.diag(rbf(inputs, inputs, 0.8)), 1, rtol=1e-12)


def test_bandwidth_follows_the_mean_squared_distance() -> None:
    features = normal(30, 5)
    kernel, rows = draw_kernel(features, 8, KernelOptions(bandwidth=0.5), np.random.default_rng(0))
    prepared = prepare(features, True)
    assert len(set(rows.tolist())) == 8
    np.testing.assert_allclose(kernel.anchors, prepared[rows], rtol=1e-6)
    squares = [((x - a) ** 2).sum() for x in prepared for a in prepared[rows]]
    assert kernel.sigma == pytest.approx(0.5 * math.sqrt(np.mean(squares)), rel=1e-5)
    values = kernel(features)
    np.testing.assert_allclose(values, naive_rbf(prepared, prepared[rows], kernel.sigma), rtol=1e-4)
    np.testing.assert_allclose(kernel.mean(features), values.mean(axis=0))


def test_fewer_rows_than_anchors_gives_all_rows() -> None:
    kernel, rows = draw_kernel(normal(6, 3), 300, KernelOptions(), np.random.default_rng(0))
    assert rows.tolist() == list(range(6))
    assert kernel.anchors.shape == (6, 3)


def test_rows_far_from_the_origin_and_near_each_other_have_a_bandwidth() -> None:
    features = (normal(20, 4) * 0.02 + 4000).astype(np.float32)
    kernel, _ = draw_kernel(features, 5, KernelOptions(unit=False), np.random.default_rng(0))
    assert 0 < kernel.sigma < 1
    assert np.isfinite(kernel(features)).all()


def test_a_hash_function_is_its_kernel_weighted() -> None:
    features = normal(9, 3)
    kernel = Kernel(prepare(features[:4], True).astype(np.float32), 0.7, True)
    weights, offset = np.random.default_rng(1).normal(size=(4, 2)), np.array([0.1, -0.2])
    np.testing.assert_allclose(
        Hash.at(kernel, weights, offset).values(features), kernel(features) @ weights - offset, atol=1e-12
    )


def test_shared_labels_by_hand() -> None:
    labels = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    expected = [[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    np.testing.assert_array_equal(share_label(labels, labels), np.array(expected, dtype=bool))
