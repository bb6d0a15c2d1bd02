from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.softmax import IcsSoftmax, IcsSoftmaxOptions, step_loss
from centerhash.networks.heads import HeadOutput
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
    assert found.evidence is not None
    assert reference.evidence is not None
    method(found, labels).backward()
    loss(reference.logits, reference.evidence).backward()
    torch.testing.assert_close(found.logits.grad, reference.logits.grad)
    torch.testing.assert_close(found.evidence.grad, reference.evidence.grad)
    assert torch.autograd.gradcheck(loss, (reference.logits, reference.evidence))


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
