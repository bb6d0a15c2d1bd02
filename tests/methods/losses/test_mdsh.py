from __future__ import annotations

import math

import pytest
import torch

from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.mdsh import MDSH, MDSHOptions, attraction, choice_loss
from centerhash.training.config import TrainConfig, resolve
from tests.methods.losses.toys import BITS, CLASSES, sample


def test_choice_loss_by_hand() -> None:
    # scores 0, 0 and log 2: probabilities 1/4, 1/4 and 1/2
    similarities = torch.tensor([[0.0, 0.0, math.log(2) / 5]])
    labels = torch.tensor([[True, False, True]])
    expected = (-math.log(1 / 4) - math.log(3 / 4) - math.log(1 / 2)) / 3
    assert float(choice_loss(similarities, labels, scale=5.0)) == pytest.approx(expected, rel=1e-6)


def test_a_wrong_center_that_takes_all_has_a_finite_loss() -> None:
    scores = torch.tensor([[1.0, -1.0]], requires_grad=True)
    choice_loss(scores, torch.tensor([[False, True]]), scale=1000.0).sum().backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert float(scores.grad[0, 0]) > 0 > float(scores.grad[0, 1])


def test_attraction_by_hand() -> None:
    codes = torch.tensor([[1.0, 1.0], [2.0, 2.0], [-1.0, -1.0], [1.0, -1.0]])
    found = attraction(codes)[0]
    expected = [math.log(2), math.log(2), math.log(1 + math.e), math.log(1 + math.sqrt(math.e))]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_mdsh_by_a_loop() -> None:
    logits, labels = sample()
    centers = torch.from_numpy(hash_centers(CLASSES, BITS, kind="mdsh")).double()
    codes = [[math.tanh(z) for z in row] for row in logits.tolist()]

    def cosine(left: list[float], right: list[float]) -> float:
        return sum(a * b for a, b in zip(left, right, strict=True)) / math.hypot(*left) / math.hypot(*right)

    total = 0.0
    for code, truth in zip(codes, labels.tolist(), strict=True):
        powers = [math.exp(4.0 * cosine(code, center)) for center in centers.tolist()]  # sqrt(16) = 4
        for power, there in zip(powers, truth, strict=True):
            chance = power / sum(powers)
            total -= math.log(chance if there else 1 - chance) / CLASSES / len(codes)
        total += 0.01 * sum((abs(u) - 1) ** 2 for u in code) / BITS / len(codes)
    pairs = [
        math.log1p(math.exp((1 - cosine(codes[i], codes[j])) / 2))
        for i in range(len(codes))
        for j in range(len(codes))
        if i != j and bool((labels[i] & labels[j]).any())
    ]
    total += 0.7 * sum(pairs) / len(pairs)
    loss = MDSH(centers, pair=0.7, quantisation=0.01).double()
    assert float(loss(logits, labels)) == pytest.approx(total)


def test_its_centers_and_scale_are_the_authors_unless_others_are_given() -> None:
    assert resolve(TrainConfig(method="mdsh")).centers == "mdsh"
    assert resolve(TrainConfig(method="mdsh", centers="random")).centers == "random"
    assert MDSHOptions().for_bits(64).scale == 8
    assert MDSHOptions(scale=3).for_bits(64).scale == 3
