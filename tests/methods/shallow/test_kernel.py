from __future__ import annotations

import math

import numpy as np
import pytest

from centerhash.methods.shallow.base import prepare
from centerhash.methods.shallow.ksh import KSH


def normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def naive_rbf(inputs: np.ndarray, anchors: np.ndarray, sigma: float) -> list[list[float]]:
    return [
        [math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * sigma**2)) for y in anchors]
        for x in inputs.tolist()
    ]


def test_sample_anchors() -> None:
    features, ksh = normal(30, 5), KSH()
    rows = ksh.sample_anchors(features, 8, 0.5, np.random.default_rng(0))
    prepared = prepare(features, True)
    assert len(set(rows.tolist())) == 8
    np.testing.assert_allclose(ksh.anchors, prepared[rows], rtol=1e-6)
    squares = [((x - a) ** 2).sum() for x in prepared for a in prepared[rows]]
    assert float(ksh.sigma) == pytest.approx(0.5 * math.sqrt(np.mean(squares)), rel=1e-5)
    values = ksh.kernel(features)
    np.testing.assert_allclose(values, naive_rbf(prepared, prepared[rows], float(ksh.sigma)), rtol=1e-4)
    np.testing.assert_allclose(ksh.mean_kernel(features), values.mean(axis=0))


def test_sigma_far_from_origin() -> None:
    features, ksh = (normal(20, 4) * 0.02 + 4000).astype(np.float32), KSH(normalize=False)
    ksh.sample_anchors(features, 5, 0.35, np.random.default_rng(0))
    assert 0 < ksh.sigma < 1
    assert np.isfinite(ksh.kernel(features)).all()
