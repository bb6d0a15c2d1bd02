from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import HeadOutput
from centerhash.methods.losses.softmax import (
    MDSH,
    IcsSoftmax,
    IcsSoftmaxOptions,
    MDSHOptions,
    OrthoHash,
    attraction,
    choice_loss,
    margin_logits,
    step_loss,
)
from centerhash.training.config import TrainConfig, resolve
from tests.methods.losses.toys import BITS, CLASSES, sample

CENTERS = torch.from_numpy(hash_centers(CLASSES, BITS, seed=2)).double()


def objective(**options: float) -> IcsSoftmax:
    return IcsSoftmax(CENTERS, **options).double()


def with_evidence(seed: int = 3) -> tuple[HeadOutput, Tensor, Tensor]:
    """A head's output, its evidence alone, and labels."""
    logits, labels = sample()
    evidence = 3 * torch.randn(
        len(logits), CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return HeadOutput(logits, evidence), evidence, labels


def looped(surprise: list[float], own: list[int], entropy: float) -> tuple[list[float], float]:
    """Weights of the own classes and the weighted surprise, by the formula."""
    raw = [math.exp(-surprise[j] / entropy) for j in own]
    weights = [value / sum(raw) for value in raw]
    return weights, sum(weight * surprise[j] for weight, j in zip(weights, own, strict=True))


def surprises(scores: list[float]) -> list[float]:
    partition = math.log(sum(math.exp(value) for value in scores))
    return [partition - value for value in scores]


def test_the_loss_of_the_code_by_a_loop() -> None:
    logits, labels = sample()
    found = objective(scale=4.0, entropy=1.5)(logits, labels)
    rows = []
    for row in range(len(logits)):
        norm = math.sqrt(sum(float(z) ** 2 for z in logits[row]) * BITS)
        surprise = surprises([4.0 * float(logits[row] @ CENTERS[j]) / norm for j in range(CLASSES)])
        rows.append(looped(surprise, [j for j in range(CLASSES) if labels[row, j]], 1.5)[1])
    assert float(found) == pytest.approx(sum(rows) / len(rows))


def test_evidence_adds_a_loss_of_its_own_and_leaves_that_of_the_code() -> None:
    outputs, evidence, labels = with_evidence()
    alone = objective().loss_terms(outputs.logits, labels)
    both = objective(evidence_entropy=0.7).loss_terms(outputs, labels)
    rows = [
        looped(surprises(evidence[row].tolist()), [j for j in range(CLASSES) if labels[row, j]], 0.7)[1]
        for row in range(len(labels))
    ]
    assert float(both.parts["center"]) == pytest.approx(float(alone.total))
    assert float(both.parts["evidence"]) == pytest.approx(sum(rows) / len(rows))
    assert float(both.total) == pytest.approx(float(alone.total) + sum(rows) / len(rows))
    assert set(alone.parts) == {"center"}


def test_weights_come_from_the_evidence_where_there_is_some() -> None:
    outputs, evidence, labels = with_evidence()
    weights = objective(share_entropy=2.0).weights(outputs, labels)
    for row in range(len(labels)):
        own = [j for j in range(CLASSES) if labels[row, j]]
        expected, _ = looped(surprises(evidence[row].tolist()), own, 2.0)
        assert weights[row, own].tolist() == pytest.approx(expected)
    by_code = objective().weights(outputs.logits, labels)
    assert not torch.allclose(weights, by_code)
    torch.testing.assert_close(by_code.sum(dim=1), torch.ones(len(labels), dtype=torch.float64))


def test_gradient_is_that_of_the_loss_with_its_weights_held_fixed() -> None:
    (logits, evidence, _), _, labels = with_evidence()
    assert evidence is not None
    method = objective()
    by_code = torch.where(labels, -method.distances(logits) / method.entropy, -math.inf).softmax(dim=1)
    by_evidence = torch.where(labels, evidence / method.options.evidence_entropy, -math.inf).softmax(dim=1)

    def loss(logits: Tensor, evidence: Tensor) -> Tensor:
        surprise = by_code * method.distances(logits) - by_evidence * log_softmax(evidence, dim=1)
        return surprise.sum(dim=1).mean()

    found = HeadOutput(logits, evidence).each(lambda part: part.clone().requires_grad_())
    reference = HeadOutput(logits, evidence).each(lambda part: part.clone().requires_grad_())
    assert found.class_logits is not None
    assert reference.class_logits is not None
    method(found, labels).backward()
    loss(reference.logits, reference.class_logits).backward()
    torch.testing.assert_close(found.logits.grad, reference.logits.grad)
    torch.testing.assert_close(found.class_logits.grad, reference.class_logits.grad)
    assert torch.autograd.gradcheck(loss, (reference.logits, reference.class_logits))


def test_the_weights_of_a_step_are_its_minimiser() -> None:
    """No other weights on the simplex have a smaller sum w d + lambda sum w log w."""
    distances = torch.tensor([[0.3, 1.2, 2.0]], dtype=torch.float64)
    labels, entropy = torch.ones(1, 3, dtype=torch.bool), 0.8
    weights = (-distances / entropy).softmax(dim=1)

    def value(w: Tensor) -> float:
        return float((w * distances + entropy * w * w.log()).sum())

    for seed in range(50):
        other = torch.rand(1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
        assert value(weights) <= value(other / other.sum()) + 1e-12
    assert float(step_loss(distances, labels, entropy)) == pytest.approx(float((weights * distances).sum()))


def test_lambda_follows_the_scale_unless_it_is_given() -> None:
    assert IcsSoftmaxOptions().for_bits(16).entropy == 3.0
    assert IcsSoftmaxOptions(scale=3.0).for_bits(64).entropy == 1.5
    assert IcsSoftmaxOptions(entropy=0.5).for_bits(64).entropy == 0.5


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


def test_it_is_the_softmax_form_with_equal_weights() -> None:
    logits, labels = sample()
    ours = IcsSoftmax(CENTERS, scale=6.0, entropy=1e9).double()
    theirs = OrthoHash(CENTERS, scale=6.0, margin=0.0).double()
    assert float(ours(logits, labels)) == pytest.approx(float(theirs(logits, labels)))


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
