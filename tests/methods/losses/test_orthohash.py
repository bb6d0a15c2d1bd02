from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.central import center_similarities
from centerhash.methods.losses.orthohash import OrthoHash, margin_logits
from centerhash.methods.losses.softmax import IcsSoftmax
from tests.methods.losses.toys import BITS, CLASSES, sample

CENTERS = torch.from_numpy(hash_centers(CLASSES, BITS, seed=2)).double()


def test_margin_is_taken_from_own_labels_only() -> None:
    labels = torch.tensor([[True, False, True]])
    found = margin_logits(torch.tensor([[0.5, 0.5, -0.25]]), labels, scale=4.0, margin=0.25)
    assert found.tolist() == [[1.0, 2.0, -2.0]]


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_orthohash_by_a_loop(margin: float) -> None:
    logits, labels = sample()
    scale = 5.0
    rows = []
    for row in range(len(logits)):
        norm = math.sqrt(sum(float(z) ** 2 for z in logits[row]) * BITS)
        scores = [
            scale * (float(logits[row] @ CENTERS[j]) / norm - (margin if labels[row, j] else 0))
            for j in range(CLASSES)
        ]
        partition = math.log(sum(math.exp(score) for score in scores))
        own = [j for j in range(CLASSES) if labels[row, j]]
        rows.append(sum(partition - scores[j] for j in own) / len(own))
    objective = OrthoHash(CENTERS, scale=scale, margin=margin).double()
    assert float(objective(logits, labels)) == pytest.approx(sum(rows) / len(rows))


def test_one_label_gives_the_usual_cross_entropy() -> None:
    logits, _ = sample(rows=CLASSES)
    labels = torch.eye(CLASSES, dtype=torch.bool)
    found = OrthoHash(CENTERS, scale=3.0, margin=0.0).double()(logits, labels)
    expected = cross_entropy(3 * center_similarities(logits, CENTERS), torch.arange(CLASSES))
    assert float(found) == pytest.approx(float(expected))


def test_it_is_the_softmax_form_with_equal_weights() -> None:
    logits, labels = sample()
    ours = IcsSoftmax(CENTERS, scale=6.0, entropy=1e9).double()
    theirs = OrthoHash(CENTERS, scale=6.0, margin=0.0).double()
    assert float(ours(logits, labels)) == pytest.approx(float(theirs(logits, labels)))
