from __future__ import annotations

import math

import pytest
import torch

from centerhash.methods.losses.proxy import (
    HyP2,
    code_distance,
    cosine_threshold,
    griesmer_distance,
    irrelevant_pairs,
    proxy_loss,
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


def test_proxies_are_drawn_by_seed_and_trained() -> None:
    first, again, other = (HyP2(CLASSES, BITS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.proxies, again.proxies)
    assert not torch.equal(first.proxies, other.proxies)
    logits, labels = sample()
    first(logits.float(), labels).backward()
    assert first.proxies.grad is not None
    assert float(first.proxies.grad.abs().sum()) > 0
