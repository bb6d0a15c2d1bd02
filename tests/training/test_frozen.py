from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from centerhash.methods.centers import hash_centers
from centerhash.training.frozen import label_threshold


def best_f1_cut(similarities: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """The best F1 over all cuts at a similarity, and that cut, by a loop."""
    found = []
    for cut in np.unique(similarities):
        chosen = similarities >= cut
        found.append((2 * (chosen & labels).sum() / (chosen.sum() + labels.sum()), cut))
    return max(found)


def test_the_threshold_has_the_best_f1() -> None:
    generator = np.random.default_rng(0)
    centers = torch.from_numpy(hash_centers(5, 16)).float()
    labels = generator.random((30, 5)) < 0.4
    logits = (labels @ centers.numpy() + generator.normal(size=(30, 16)) * 1.5).astype(np.float32)
    lengths = np.linalg.norm(logits, axis=1, keepdims=True) * 4
    score, cut = best_f1_cut(logits @ centers.numpy().T / lengths, labels)
    found = label_threshold(logits, labels, centers)
    assert found == pytest.approx(cut, abs=1e-5)
    chosen = logits @ centers.numpy().T / lengths >= found - 1e-6
    assert 2 * (chosen & labels).sum() / (chosen.sum() + labels.sum()) == pytest.approx(score)


def test_the_threshold_looks_at_no_more_than_it_may() -> None:
    centers = torch.from_numpy(hash_centers(4, 8)).float()
    logits, labels = centers.numpy()[[0, 1, 2, 3]], np.eye(4, dtype=bool)
    spoiled = labels[:, ::-1].copy()
    spoiled[:2] = labels[:2]
    assert label_threshold(logits, spoiled, centers, entries=8) == pytest.approx(1)
