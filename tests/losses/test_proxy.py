"""The losses with learned vectors per class: HyP2's threshold, and GreedyHash against a loop."""

from __future__ import annotations

import math

import pytest
import torch

from centerhash.losses import GreedyHashLoss, HyP2Loss
from centerhash.losses.hyp2 import code_distance, cosine_threshold
from tests.losses.toys import BITS, CLASSES, sample


def test_cosine_threshold() -> None:
    # [64, 7, 32] and [16, 5, 8] are Reed-Muller codes, [7, 4, 3] is Hamming's, [16, 7, 6] extends a BCH code. For 80
    # classes at 32 and 48 bits the authors' table has these distances.
    known = [(128, 64, 32), (32, 16, 8), (16, 7, 3), (80, 16, 6), (80, 32, 14), (80, 48, 22), (40, 16, 6)]
    for classes, bits, distance in known:
        assert code_distance(classes, bits) == distance
        assert cosine_threshold(classes, bits) == 1 - 2 * distance / bits
    assert cosine_threshold(80, 32) == 0.125
    assert cosine_threshold(80, 48) == pytest.approx(1 / 12)
    assert cosine_threshold(2, 8) == 0
    assert cosine_threshold(10**6, 8) == 1  # no distance is left


def test_hyp2_authors_setting() -> None:
    logits, labels = sample(rows=9, seed=1)
    ours, theirs = HyP2Loss(CLASSES, BITS, seed=4), HyP2Loss(CLASSES, BITS, tanh=False, kaiming=True, seed=4)
    torch.testing.assert_close(theirs.proxies, ours.proxies * math.sqrt(2 / CLASSES))
    # Without tanh the length of the logits does not matter, and tanh is the identity of small ones.
    loss = theirs.double()(logits, labels)
    torch.testing.assert_close(theirs(7 * logits, labels), loss)
    torch.testing.assert_close(ours.double()(1e-4 * logits, labels), loss, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classifier", ["sigmoid", "softmax"])
def test_greedyhash(classifier: str) -> None:
    logits, labels = sample()
    loss = GreedyHashLoss(CLASSES, BITS, classifier=classifier, alpha=0.3, seed=2).double()
    rows = loss.classifier.detach()
    classes, gaps = 0.0, 0.0
    for image, truth in zip(logits.tolist(), labels.tolist(), strict=True):
        code = [1.0 if z >= 0 else -1.0 for z in image]
        scores = [sum(b * float(w) for b, w in zip(code, row, strict=True)) for row in rows]
        gaps += sum(abs(abs(z) - 1) ** 3 for z in image) / BITS
        partition = math.log(sum(math.exp(score) for score in scores))
        for score, labeled in zip(scores, truth, strict=True):
            if classifier == "sigmoid":
                classes += math.log1p(math.exp(-score if labeled else score))
            elif labeled:
                classes += (partition - score) / sum(truth)
    expected = (classes + 0.3 * gaps) / len(logits)
    assert float(loss(logits, labels).detach()) == pytest.approx(expected)
