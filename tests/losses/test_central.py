"""The central losses against loops over images, labels and bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from centerhash.centers import hash_centers
from centerhash.losses import (
    Batch,
    CSQLoss,
    DPNLoss,
    EWCSLoss,
    HeadOutput,
    ICSLoss,
    ICSSoftmaxLoss,
    MDSHLoss,
    OrthoHashLoss,
)
from centerhash.losses.functional import center_distances, majority_center, quantization_loss
from centerhash.losses.ics import central_loss
from centerhash.weights import exact_weights, label_slots, printed_weights
from tests.losses.toys import BITS, CLASSES, labels_of, sample

CENTERS = torch.from_numpy(hash_centers(CLASSES, BITS, seed=2)).double()


def rounding(logits: Tensor, squared: bool = False) -> float:
    """Quantization of one image (K,), by a loop."""
    gaps = [abs(math.tanh(float(z) / 2)) - 1 for z in logits]
    return sum(gap**2 if squared else math.log(math.cosh(gap)) for gap in gaps)


def test_center_distances() -> None:
    logits, _ = sample()
    distances = center_distances(logits, CENTERS)
    for row in range(len(logits)):
        for j in range(CLASSES):
            total = 0.0
            for z, v in zip(logits[row].tolist(), CENTERS[j].tolist(), strict=True):
                b = 1 / (1 + math.exp(-z))
                total -= math.log(b if v > 0 else 1 - b)
            assert float(distances[row, j]) == pytest.approx(total)
    huge = center_distances(torch.tensor([[1e4, -1e4]]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    assert huge[0].tolist() == pytest.approx([0, 2e4])


def test_central_loss_forms() -> None:
    weights, distances = torch.tensor([[0.25, 0.75]]), torch.tensor([[2.0, 4.0]])
    mask, beta = torch.ones(1, 2, dtype=torch.bool), 0.5
    omega = 0.25 * 2 + 0.75 * 4

    def softplus(value: float) -> float:
        return math.log1p(math.exp(value))

    expected = {
        ("joint", True): (softplus(beta * omega) - math.log(2)) / beta,
        ("joint", False): softplus(beta * omega),
        ("per_center", True): (softplus(beta * 0.5) + softplus(beta * 3.0) - 2 * math.log(2)) / beta,
        ("per_center", False): beta * (softplus(0.5) + softplus(3.0)),
    }
    for (form, normalized), value in expected.items():
        loss = central_loss(weights, distances, mask, beta, form, normalized)  # type: ignore[arg-type]
        assert float(loss) == pytest.approx(value, rel=1e-6)


def test_ewcs() -> None:
    logits, labels = sample()
    distances, rows = center_distances(logits, CENTERS), []
    for row in range(len(logits)):
        mean = float(distances[row, labels_of(labels, row)].mean())
        rows.append((mean + 0.7 * rounding(logits[row])) / BITS)
    loss = EWCSLoss(CENTERS, gamma=0.7).double()
    assert float(loss(logits, labels)) == pytest.approx(sum(rows) / len(rows))


@pytest.mark.parametrize("quantization", ["log_cosh", "squared"])
def test_csq(quantization: str) -> None:
    logits, labels = sample()
    loss = CSQLoss(CENTERS, gamma=0.2, quantization=quantization, seed=3)  # type: ignore[arg-type]
    rows = []
    for row in range(len(logits)):
        target = []
        for bit in range(BITS):
            total = sum(float(CENTERS[j, bit]) for j in labels_of(labels, row))
            target.append(math.copysign(1, total) if total else float(loss.tie_vector[bit]))
        bce = sum(math.log1p(math.exp(-t * float(z))) for t, z in zip(target, logits[row], strict=True))
        rows.append((bce + 0.2 * rounding(logits[row], quantization == "squared")) / BITS)
    assert float(loss.double()(logits, labels)) == pytest.approx(sum(rows) / len(rows))


@pytest.mark.parametrize("target", ["majority", "each"])
def test_dpn(target: str) -> None:
    logits, labels = sample()
    loss = DPNLoss(CENTERS, margin=0.8, target=target, seed=5)  # type: ignore[arg-type]
    majority, total = majority_center(labels, CENTERS, loss.tie_vector), 0.0
    for row in range(len(logits)):
        targets = [majority[row]] if target == "majority" else [CENTERS[j] for j in labels_of(labels, row)]
        for bits in targets:
            total += sum(max(0.0, 0.8 - float(z * t)) for z, t in zip(logits[row], bits, strict=True)) / BITS
    assert float(loss.double()(logits, labels)) == pytest.approx(total / len(logits))


# ICS


def test_ics() -> None:
    logits, labels = sample()
    loss = ICSLoss(CENTERS, beta=0.8, entropy=0.1, gamma=0.3).double()
    terms = loss.loss_terms(Batch(HeadOutput(logits), labels))
    slots = label_slots(labels)
    distances = center_distances(logits, CENTERS).gather(1, slots.classes) / BITS
    weights = exact_weights(distances, slots.mask, 0.8, 0.1)
    center = central_loss(weights, distances, slots.mask, 0.8, "joint", True).mean()
    assert float(terms["center"]) == pytest.approx(float(center))
    total = float(center + 0.3 * quantization_loss(logits).mean() / BITS)
    assert float(terms["loss"]) == pytest.approx(total)


def test_ics_kept_weights() -> None:
    logits, labels = sample()
    indices = torch.arange(len(logits)).flip(0)

    def prepared() -> ICSLoss:
        loss = ICSLoss(CENTERS, solver="printed", per_bit=False, keep=True, entropy=0.1).double()
        loss.prepare(labels.flip(0).numpy())
        return loss

    loss, batch, slots = prepared(), Batch(HeadOutput(logits), labels), label_slots(labels)
    distances = loss.slot_distances(batch, slots, loss.centers)
    # Two epochs with the same network are one descent of twice the steps.
    for steps in (10, 20):
        loss(logits, labels, indices)
        expected = printed_weights(distances, slots.mask, 0.1, 0.1, steps)
        torch.testing.assert_close(loss.kept.flip(0), expected)
    fresh = printed_weights(distances, slots.mask, 0.1, 0.1, 10)
    torch.testing.assert_close(loss.slot_weights(batch, slots), fresh)
    resumed = prepared()
    resumed.load_state_dict(loss.state_dict())
    assert torch.equal(resumed.kept, loss.kept)


# Softmax over all centers


def cosines(logits: Tensor, row: int) -> list[float]:
    norm = math.sqrt(sum(float(z) ** 2 for z in logits[row]) * BITS)
    return [float(logits[row] @ center) / norm for center in CENTERS]


def softmax_distances(scores: list[float]) -> list[float]:
    partition = math.log(sum(math.exp(value) for value in scores))
    return [partition - value for value in scores]


def weighted(distances: list[float], labels: list[int], entropy: float) -> tuple[list[float], float]:
    """Weights of an image's labels and the weighted distance, by the formula."""
    raw = [math.exp(-distances[j] / entropy) for j in labels]
    weights = [value / sum(raw) for value in raw]
    return weights, sum(weight * distances[j] for weight, j in zip(weights, labels, strict=True))


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_orthohash(margin: float) -> None:
    logits, labels = sample()
    rows = []
    for row in range(len(logits)):
        classes = labels_of(labels, row)
        scores = [5.0 * (c - (margin if j in classes else 0)) for j, c in enumerate(cosines(logits, row))]
        rows.append(sum(softmax_distances(scores)[j] for j in classes) / len(classes))
    loss = OrthoHashLoss(CENTERS, scale=5.0, margin=margin).double()
    assert float(loss(logits, labels)) == pytest.approx(sum(rows) / len(rows))


def test_ics_softmax() -> None:
    """The loss of the code, that of the class logits, and the weights by either."""
    logits, labels = sample()
    generator = torch.Generator().manual_seed(3)
    class_logits = 3 * torch.randn(len(logits), CLASSES, generator=generator, dtype=torch.float64)
    loss = ICSSoftmaxLoss(CENTERS, scale=4.0, entropy=1.5, evidence_lambda=0.7, share_lambda=2.0).double()
    terms = loss.loss_terms(Batch(HeadOutput(logits, class_logits), labels))
    by_code, by_logits = loss.weights(logits, labels), loss.weights(HeadOutput(logits, class_logits), labels)
    codes, evidence = [], []
    for row in range(len(logits)):
        classes = labels_of(labels, row)
        distances = softmax_distances([4.0 * value for value in cosines(logits, row)])
        weights, code = weighted(distances, classes, 1.5)
        assert by_code[row, classes].tolist() == pytest.approx(weights)
        distances = softmax_distances(class_logits[row].tolist())
        assert by_logits[row, classes].tolist() == pytest.approx(weighted(distances, classes, 2.0)[0])
        codes.append(code)
        evidence.append(weighted(distances, classes, 0.7)[1])
    assert float(terms["center"]) == pytest.approx(sum(codes) / len(codes))
    assert float(terms["evidence"]) == pytest.approx(sum(evidence) / len(evidence))
    assert float(loss(logits, labels)) == pytest.approx(sum(codes) / len(codes))


def test_mdsh() -> None:
    logits, labels = sample()
    codes = [[math.tanh(z) for z in row] for row in logits.tolist()]

    def cosine(left: list[float], right: list[float]) -> float:
        return sum(a * b for a, b in zip(left, right, strict=True)) / math.hypot(*left) / math.hypot(*right)

    total = 0.0
    for code, truth in zip(codes, labels.tolist(), strict=True):
        powers = [math.exp(4.0 * cosine(code, center)) for center in CENTERS.tolist()]  # sqrt(16) = 4
        for power, labeled in zip(powers, truth, strict=True):
            probability = power / sum(powers)
            total -= math.log(probability if labeled else 1 - probability) / CLASSES / len(codes)
        total += 0.01 * sum((abs(u) - 1) ** 2 for u in code) / BITS / len(codes)
    pairs = [
        math.log1p(math.exp((1 - cosine(codes[i], codes[j])) / 2))
        for i in range(len(codes))
        for j in range(len(codes))
        if i != j and bool((labels[i] & labels[j]).any())
    ]
    total += 0.7 * sum(pairs) / len(pairs)
    loss = MDSHLoss(CENTERS, beta=0.7, quantization=0.01).double()
    assert float(loss(logits, labels)) == pytest.approx(total)
