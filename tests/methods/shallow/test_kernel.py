from __future__ import annotations

import math

import numpy as np
import pytest

from centerhash.methods.shallow.base import prepare
from centerhash.methods.shallow.kernel import draw_kernel


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def naive_rbf(inputs: np.ndarray, anchors: np.ndarray, sigma: float) -> list[list[float]]:
    return [
        [math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * sigma**2)) for y in anchors]
        for x in inputs.tolist()
    ]


def test_bandwidth() -> None:
    features = normal(30, 5)
    kernel, rows = draw_kernel(features, 8, 0.5, True, np.random.default_rng(0))
    prepared = prepare(features, True)
    assert len(set(rows.tolist())) == 8
    np.testing.assert_allclose(kernel.anchors, prepared[rows], rtol=1e-6)
    squares = [((x - a) ** 2).sum() for x in prepared for a in prepared[rows]]
    assert kernel.sigma == pytest.approx(0.5 * math.sqrt(np.mean(squares)), rel=1e-5)
    values = kernel(features)
    np.testing.assert_allclose(values, naive_rbf(prepared, prepared[rows], kernel.sigma), rtol=1e-4)
    np.testing.assert_allclose(kernel.mean(features), values.mean(axis=0))


def test_bandwidth_far_from_the_origin() -> None:
    features = (normal(20, 4) * 0.02 + 4000).astype(np.float32)
    kernel, _ = draw_kernel(features, 5, 0.35, False, np.random.default_rng(0))
    assert 0 < kernel.sigma < 1
    assert np.isfinite(kernel(features)).all()
