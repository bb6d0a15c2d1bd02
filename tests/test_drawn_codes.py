"""Codes for benchmarks that are like a model's."""

from __future__ import annotations

import numpy as np

from benchmarks.drawn_codes import HELD_OUT, drawn_codes, mixture, queries_of
from centerhash.codes import Packed


def different(packed: Packed) -> int:
    return len(np.unique(packed.view(np.uint64)))


def logits() -> np.ndarray:
    centers = np.where(np.random.default_rng(1).random((80, 64)) < 0.5, -1, 1)
    return mixture(centers, HELD_OUT + 13_458, 0)


def test_a_mixture_repeats_codes_about_as_a_model_does() -> None:
    """Of 13,458 photos the built-in model makes 6,679 different codes."""
    packed = np.packbits(logits()[HELD_OUT:] >= 0, axis=1)
    assert 5_000 < different(packed) < 9_000


def test_noise_changes_few_bits_and_adds_codes() -> None:
    rows = logits()
    without = drawn_codes(rows, 20_000, 1, noise=1e-6)
    known = set(np.packbits(rows[HELD_OUT:] >= 0, axis=1).view(np.uint64)[:, 0].tolist())
    assert set(without.view(np.uint64)[:, 0].tolist()) <= known
    noisy = drawn_codes(rows, 20_000, 1)
    changed = np.bitwise_count(noisy ^ without).sum(axis=1)  # the same rows by the same seed
    assert 0.5 < changed.mean() < 4
    assert different(without) < different(noisy) < different(drawn_codes(rows, 20_000, 1, noise=0.5))
    assert np.array_equal(noisy, drawn_codes(rows, 20_000, 1))
    assert queries_of(rows).shape == (HELD_OUT, 8)
