"""The losses of pairs and triplets against loops over images."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.losses import (
    DCHLoss,
    DHNLoss,
    DNNHLoss,
    DPSHLoss,
    HashingLoss,
    HashNetLoss,
    HyP2Loss,
    IDHNLoss,
)
from centerhash.losses.dnnh import piecewise_threshold, triplet_loss
from centerhash.losses.functional import different_images, shared_labels, squared_distance
from centerhash.losses.hashnet import continuation

BITS, CLASSES = 8, 5


def sample(rows: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and labels, the last image without any."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, BITS, generator=generator, dtype=torch.float64)
    labels = torch.rand(rows, CLASSES, generator=generator) < 0.3
    labels[0, 0] = labels[1, 0] = True
    labels[-1] = False
    return logits, labels


def loops(
    logits: Tensor, labels: Tensor, activation: Callable[[float], float]
) -> tuple[list[list[float]], Tensor]:
    """Relaxed codes as lists, and the pairs that share a label, compared label by label."""
    codes = [[activation(float(z)) for z in row] for row in logits]
    count = len(labels)
    similar = torch.zeros(count, count, dtype=torch.bool)
    for i in range(count):
        for j in range(count):
            similar[i, j] = any(bool(labels[i, c]) and bool(labels[j, c]) for c in range(labels.shape[1]))
    return codes, similar


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def cosine(left: list[float], right: list[float]) -> float:
    return dot(left, right) / math.sqrt(dot(left, left) * dot(right, right))


def test_continuation() -> None:
    betas = [continuation(step / 100, stages=4, last=7.0) for step in range(100)]
    assert betas == sorted(betas)
    assert sorted(set(betas)) == pytest.approx([1.0, math.sqrt(17), math.sqrt(33), 7.0])
    assert [betas.count(value) for value in sorted(set(betas))] == [25, 25, 25, 25]
    assert continuation(0.0, stages=1, last=3.0) == 3.0


@pytest.mark.parametrize(
    ("loss", "activation", "gap"),
    [
        (DPSHLoss(quantization=0.3), lambda z: z, lambda z: (z - math.copysign(1, z)) ** 2),
        (DHNLoss(slope=0.5, quantization=0.3), math.tanh, lambda u: math.log(math.cosh(abs(u) - 1))),
    ],
)
def test_dpsh_and_dhn(
    loss: HashingLoss, activation: Callable[[float], float], gap: Callable[[float], float]
) -> None:
    logits, labels = sample()
    codes, similar = loops(logits, labels, activation)
    losses = []
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i != j:
                probability = 1 / (1 + math.exp(-0.5 * dot(codes[i], codes[j])))
                losses.append(-math.log(probability if similar[i, j] else 1 - probability))
    quantization = [gap(u) for row in codes for u in row]
    expected = sum(losses) / len(losses) + 0.3 * sum(quantization) / len(quantization)
    assert float(loss(logits, labels)) == pytest.approx(expected)


def test_idhn() -> None:
    logits, labels = sample()
    labels[1] = labels[0]  # all labels in common
    codes, _ = loops(logits, labels, lambda z: z / (1 + abs(z)))
    kinds, losses = set(), []
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i == j:
                continue
            first, second = (set(labels[k].nonzero().flatten().tolist()) for k in (i, j))
            agreement = len(first & second) / math.sqrt(max(1, len(first) * len(second)))
            product = dot(codes[i], codes[j])
            kinds.add("hard" if first == second else "soft" if agreement else "none")
            if first == second or not agreement:
                scaled = 5 / BITS * product
                losses.append(math.log1p(math.exp(scaled)) - agreement * scaled)
            else:
                losses.append(0.1 * BITS * ((product + BITS) / 2 / BITS - agreement) ** 2)
    assert kinds == {"hard", "soft", "none"}
    quantization = [1 - abs(u) for row in codes for u in row]
    expected = sum(losses) / len(losses) + 0.1 * sum(quantization) / len(quantization)
    assert float(IDHNLoss(alpha=5.0, gamma=0.1)(logits, labels)) == pytest.approx(expected)


@pytest.mark.parametrize(("continuous", "class_num"), [(False, 0.0), (True, 0.0), (True, 1.0), (False, 3.0)])
def test_hashnet(continuous: bool, class_num: float) -> None:
    logits, labels = sample()
    beta = math.sqrt(1 + 15 * 2 / 4)  # third of five stages
    codes, similar = loops(logits, labels, lambda z: math.tanh(beta * z))
    positives = int(similar.sum() - similar.diagonal().sum())
    count = len(codes) * (len(codes) - 1)
    total = weights = 0.0
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i == j:
                continue
            scaled = 0.7 * dot(codes[i], codes[j])
            value = math.log1p(math.exp(scaled)) - float(similar[i, j]) * scaled
            if continuous and similar[i, j]:
                first, second = (set(labels[k].nonzero().flatten().tolist()) for k in (i, j))
                value *= 4 * len(first & second) ** 2 / (len(first) * len(second))
            weight = class_num if similar[i, j] else 1.0
            if not class_num:
                weight = count / positives if similar[i, j] else count / (count - positives)
            total, weights = total + weight * value, weights + weight
    options = {"alpha": 0.7, "last_beta": 4.0, "class_num": class_num}
    loss = HashNetLoss(stages=5, continuous=continuous, **options)(logits, labels, progress=0.5)
    assert float(loss) == pytest.approx(total / (weights if class_num else count))


@pytest.mark.parametrize("released", [False, True])
def test_dch(released: bool) -> None:
    logits, labels = sample()
    gamma = 1.5
    codes, similar = loops(logits, labels, math.tanh)
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i != j:
                squared = sum((a - b) ** 2 for a, b in zip(codes[i], codes[j], strict=True))
                distance = squared if released else BITS / 2 * (1 - cosine(codes[i], codes[j]))
                probability = gamma / (gamma + distance + 0.01)
                kind = bool(similar[i, j])
                by_kind[kind].append(-math.log(probability if kind else 1 - probability))
    ones, count = [1.0] * BITS, len(codes) * (len(codes) - 1)
    quantization = [math.log1p(BITS / 2 * (1 - cosine([abs(u) for u in row], ones)) / gamma) for row in codes]
    expected = sum(by_kind[True]) / len(by_kind[True])
    expected += sum(by_kind[False]) / (count if released else len(by_kind[False]))
    expected += 0.2 * sum(quantization) / len(quantization)
    kinds = {"distance": "squared", "weights": "similar"} if released else {}
    loss = DCHLoss(gamma=gamma, quantization=0.2, **kinds)  # type: ignore[arg-type]
    assert float(loss(logits, labels)) == pytest.approx(expected)


def test_hyp2() -> None:
    logits, labels = sample(rows=9, seed=1)
    loss = HyP2Loss(CLASSES, BITS, zeta=0.1, beta=0.6, seed=4).double()
    codes, similar = loops(logits, labels, math.tanh)
    proxies = [[float(p) for p in row] for row in loss.proxies.detach()]
    near, far, apart = list[float](), list[float](), list[float]()
    for i, code in enumerate(codes):
        for c, proxy in enumerate(proxies):
            value = cosine(code, proxy)
            (near if labels[i, c] else far).append(1 - value if labels[i, c] else max(0.0, value - 0.1))
        for j, other in enumerate(codes):
            if i != j and labels[i].sum() > 1 and labels[j].sum() > 1 and not similar[i, j]:
                apart.append(max(0.0, cosine(code, other) - 0.1))
    assert apart, "the sample must have irrelevant pairs"
    expected = sum(near) / len(near) + sum(far) / len(far) + 0.6 * sum(apart) / len(apart)
    assert float(loss(logits, labels).detach()) == pytest.approx(expected)


def naive_loss(codes: Tensor, labels: Tensor, margin: float) -> float:
    """Three loops over anchor, positive and negative."""
    losses = []
    for i in range(len(codes)):
        for p in range(len(codes)):
            for n in range(len(codes)):
                near, far = bool((labels[i] & labels[p]).any()), not bool((labels[i] & labels[n]).any())
                if i not in (p, n) and near and far:
                    gap = (codes[i] - codes[p]).square().sum() - (codes[i] - codes[n]).square().sum()
                    losses.append(max(0.0, float(gap) + margin))
    return sum(losses) / max(1, len(losses))


def test_piecewise_threshold() -> None:
    values = torch.tensor([0.0, 0.2, 0.3, 0.5, 0.7, 0.8, 1.0])
    expected = [0.0, 0.0, 0.3, 0.5, 0.7, 1.0, 1.0]
    np.testing.assert_allclose(piecewise_threshold(values, 0.25), expected, rtol=1e-6)
    assert torch.equal(piecewise_threshold(values, 0.5), values)
    values = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    (gradient,) = torch.autograd.grad(piecewise_threshold(values, 0.25).sum(), values)
    assert gradient.tolist() == [0, 1, 0]


def test_dnnh() -> None:
    for seed in range(4):
        for epsilon in (0.5, 0.1):
            logits, labels = sample(seed=seed)
            codes = piecewise_threshold(torch.sigmoid(logits), epsilon)
            loss = DNNHLoss(margin=1.3, epsilon=epsilon)(logits, labels)
            assert float(loss) == pytest.approx(naive_loss(codes, labels, 1.3), abs=1e-12)
            assert float(loss) > 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=7),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_triplet_loss_ties(images: list[tuple[int, int]], margin: float) -> None:
    """Codes that are whole numbers have many distances that differ by exactly the margin."""
    codes = torch.tensor([[float(code >> bit & 1) for bit in range(3)] for code, _ in images])
    labels = torch.tensor([[bool(label >> c & 1) for c in range(3)] for _, label in images])
    similar, pairs = shared_labels(labels), different_images(labels)
    loss = triplet_loss(squared_distance(codes, codes), pairs & similar, pairs & ~similar, margin)
    assert float(loss) == pytest.approx(naive_loss(codes, labels, margin), rel=1e-5, abs=1e-6)
