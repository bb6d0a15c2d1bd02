from __future__ import annotations

import math

import pytest
import torch

from centerhash.methods.losses.proxy import (
    GreedyHash,
    HyP2,
    class_loss,
    code_distance,
    cosine_threshold,
    cubic_gap,
    griesmer_distance,
    irrelevant_pairs,
    proxy_loss,
    straight_through_sign,
)
from tests.methods.losses.toys import BITS, CLASSES, sample


def test_irrelevant_pairs_need_several_labels_on_both_sides() -> None:
    labels = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)
    expected = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert irrelevant_pairs(labels).int().tolist() == expected


def test_proxy_loss_by_hand() -> None:
    cosines = torch.tensor([[0.5, 0.25, -0.5], [0.0, 1.0, 0.75]])
    labels = torch.tensor([[1, 0, 0], [0, 1, 1]], dtype=torch.bool)
    near, far = proxy_loss(cosines, labels, threshold=0.125)
    assert float(near) == pytest.approx((0.5 + 0 + 0.25) / 3)
    assert float(far) == pytest.approx((0.125 + 0 + 0) / 3)


def test_griesmer_by_hand() -> None:
    # [7, 4, 3] is Hamming's: 3 + 2 + 1 + 1 = 7
    assert griesmer_distance(4, 7) == 3
    assert griesmer_distance(7, 32) == 15  # 15 + 8 + 4 + 2 + 1 + 1 + 1 = 32, which no code meets


def test_threshold_follows_codes_that_exist() -> None:
    # [64, 7, 32] and [16, 5, 8] are Reed-Muller codes, [7, 4, 3] Hamming's, [16, 7, 6] extends a BCH code;
    # 80 classes at 32 and 48 bits have the distances of the authors' table
    known = [(128, 64, 32), (32, 16, 8), (16, 7, 3), (80, 16, 6), (80, 32, 14), (80, 48, 22), (40, 16, 6)]
    for classes, bits, distance in known:
        assert code_distance(classes, bits) == distance
        assert cosine_threshold(classes, bits) == 1 - 2 * distance / bits
    assert cosine_threshold(80, 32) == 0.125
    assert cosine_threshold(80, 48) == pytest.approx(1 / 12)
    assert cosine_threshold(2, 8) == 0
    assert cosine_threshold(10**6, 8) == 1  # no distance is left: nothing is pushed apart


def test_more_classes_never_keep_more_distance() -> None:
    for bits in range(8, 65):
        distances = [code_distance(2**dimension, bits) for dimension in range(1, 9)]
        assert distances == sorted(distances, reverse=True)


def test_hyp2_as_its_authors_have_it() -> None:
    logits, labels = sample(rows=9, seed=1)
    ours, theirs = HyP2(CLASSES, BITS, seed=4), HyP2(CLASSES, BITS, squash=False, kaiming=True, seed=4)
    torch.testing.assert_close(theirs.proxies, ours.proxies * math.sqrt(2 / CLASSES))
    # without tanh the length of the logits does not matter, and tanh is the identity of small ones
    found = theirs.double()(logits, labels)
    torch.testing.assert_close(theirs(7 * logits, labels), found)
    torch.testing.assert_close(ours.double()(1e-4 * logits, labels), found, rtol=1e-4, atol=1e-6)


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
