from __future__ import annotations

import math

import pytest
import torch

from centerhash.methods.losses.greedyhash import GreedyHash, class_loss, cubic_gap, straight_through_sign
from tests.methods.losses.toys import BITS, CLASSES, sample


def test_the_sign_is_exact_and_its_gradient_passes_unchanged() -> None:
    logits = torch.tensor([[1e4 / 3, 0.0, -1e-6, -7.1]], requires_grad=True)
    signs = straight_through_sign(logits)
    assert signs.tolist() == [[1, 1, -1, -1]]
    factors = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    (signs * factors).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == factors.tolist()


def test_the_penalty_by_hand() -> None:
    assert cubic_gap(torch.tensor([[3.0, -1.0], [0.5, 0.0]])).tolist() == [4.0, (0.125 + 1) / 2]


def test_class_losses_by_hand() -> None:
    # two classes with the odds 3 to 1 for the first
    scores = torch.tensor([[math.log(3), 0.0]])
    both, first = torch.tensor([[True, True]]), torch.tensor([[True, False]])
    assert float(class_loss(scores, first, "softmax")) == pytest.approx(-math.log(0.75))
    assert float(class_loss(scores, both, "softmax")) == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)
    assert float(class_loss(scores, both, "sigmoid")) == pytest.approx(-math.log(0.75) - math.log(0.5))


@pytest.mark.parametrize("classifier", ["sigmoid", "softmax"])
def test_greedyhash_by_a_loop(classifier: str) -> None:
    logits, labels = sample()
    objective = GreedyHash(CLASSES, BITS, classifier=classifier, penalty=0.3, seed=2).double()
    rows = objective.classifier.detach()
    classes, gaps = 0.0, 0.0
    for image, truth in zip(logits.tolist(), labels.tolist(), strict=True):
        code = [1.0 if z >= 0 else -1.0 for z in image]
        scores = [sum(b * float(w) for b, w in zip(code, row, strict=True)) for row in rows]
        gaps += sum(abs(abs(z) - 1) ** 3 for z in image) / BITS
        whole = math.log(sum(math.exp(score) for score in scores))
        for score, there in zip(scores, truth, strict=True):
            if classifier == "sigmoid":
                classes += math.log1p(math.exp(-score if there else score))
            elif there:
                classes += (whole - score) / sum(truth)
    expected = (classes + 0.3 * gaps) / len(logits)
    assert float(objective(logits, labels).detach()) == pytest.approx(expected)


def test_the_classifier_is_drawn_by_the_seed_and_trained() -> None:
    first, again, other = (GreedyHash(CLASSES, BITS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.classifier, again.classifier)
    assert not torch.equal(first.classifier, other.classifier)
    assert float(first.classifier.detach().abs().max()) <= 1 / math.sqrt(BITS)
    logits, labels = sample()
    first(logits.float(), labels).backward()
    assert first.classifier.grad is not None
    assert float(first.classifier.grad.abs().sum()) > 0
