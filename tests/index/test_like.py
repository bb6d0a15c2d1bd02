"""Search by examples: the weights of bits, their exact ranking, and the quality of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.index import Index
from centerhash.index.items import Meta
from centerhash.index.like import ExampleRanking, example_weights
from centerhash.index.store import View


def clusters(seed: int = 0, count: int = 600, bits: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Codes (N, K) around four centers, a fifth of the bits flipped, and the center of each."""
    generator = np.random.default_rng(seed)
    centers = generator.choice([-1, 1], (4, bits))
    family = generator.integers(0, 4, count)
    return np.where(generator.random((count, bits)) < 0.2, -1, 1) * centers[family], family


def test_example_weights() -> None:
    others = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.int8)  # mean 0, covariance I
    likes, unlikes = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1]], np.int8)
    ridge = 1 + 0.5 + 20 / 2
    np.testing.assert_allclose(example_weights(likes, unlikes[:0], others), [1 / ridge, 0])
    np.testing.assert_allclose(example_weights(likes, unlikes, others), [0.75 / ridge, 0.25 / ridge])


@pytest.mark.parametrize("share", [None, 0.3])
def test_example_ranking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float | None) -> None:
    monkeypatch.setattr("centerhash.index.like._ROWS_PER_BLOCK", 7)
    generator = np.random.default_rng(1)
    semantic, general = generator.choice([-1, 1], (90, 13)), generator.choice([-1, 1], (90, 20))
    weights = generator.integers(-2, 3, 33).astype(float)  # whole numbers tie
    has_general = generator.random(90) < 0.7
    flags = np.where(has_general, 0, 4).astype(np.uint8)
    arrays = {"semantic": pack(semantic), "general": pack(general), "flags": flags}
    view = View(Meta(1, 90, 90), arrays)
    scores = semantic @ weights[:13] + np.where(has_general, general @ weights[13:], 0)
    allowed = None if share is None else generator.random(90) < share
    rows = [row for row in range(90) if allowed is None or allowed[row]]
    expected = sorted(rows, key=lambda row: (-scores[row], row))
    for k in (1, 10, 500):
        assert ExampleRanking(weights, 13).top_rows(view, k, allowed).tolist() == expected[:k]


def test_search_like(tmp_path: Path) -> None:
    codes, family = clusters()
    with Index.create(tmp_path / "index", bits=16, general_bits=32) as index:
        index.add(codes=pack(codes[:, :16]), general=pack(codes[:, 16:]))
        examples = [str(row) for row in np.flatnonzero(family == 2)[:5]]
        results = index.search(like=examples, k=50)
        assert not {*examples} & {row.id for row in results}
        assert np.mean([family[int(row.id)] == 2 for row in results]) > 0.9
        mixed = [str(np.flatnonzero(family == center)[9]) for center in (1, 2)]
        unlike = [str(row) for row in np.flatnonzero(family == 1)[:4]]
        shares = [
            np.mean([family[int(row.id)] == 2 for row in index.search(like=mixed, unlike=never, k=60)])
            for never in ([], unlike)
        ]
        assert shares[1] > shares[0]
        only = index.search(like=examples[0], k=3, among=["1", "2", "3"], having="nothing")
        assert len(only) == 0
