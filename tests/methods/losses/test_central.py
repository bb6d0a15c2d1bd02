from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from centerhash.core.errors import ConfigError
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import Batch, HeadOutput, Objective
from centerhash.methods.losses.central import (
    CSQ,
    DPN,
    EWCS,
    ICS,
    PRINTED_BETA,
    CentralObjective,
    ICSOptions,
    center_distances,
    center_similarities,
    central_loss,
    majority_centroid,
    polarization,
    polarization_to_centers,
    quantisation_loss,
    squared_quantisation,
)
from centerhash.methods.registry import METHODS
from centerhash.methods.weights import (
    equal_weights,
    exact_weights,
    label_slots,
    log_cosh,
    printed_weights,
)
from tests.methods.losses.toys import BITS, CLASSES, sample

CENTRAL = [name for name, row in METHODS.items() if row.family == "central"]
CENTERS = torch.from_numpy(hash_centers(CLASSES, BITS, seed=2)).double()


def double(objective: Objective) -> CentralObjective:
    assert isinstance(objective, CentralObjective)
    return objective.double()


def test_kept_weights_go_on_from_the_epoch_before() -> None:
    logits, labels = sample()
    places = torch.arange(len(logits)).flip(0)
    options = {"solver": "printed", "per_bit": False, "keep": True, "lambda": 0.1}
    loss = ICS(CENTERS, **options).double()
    loss.prepare(np.zeros((len(logits), 0)), np.arange(len(logits)), labels.flip(0).numpy())
    slots = label_slots(labels)
    distances = loss.slot_distances(Batch(HeadOutput(logits), labels), slots, loss.centers)
    for steps in (10, 20):  # two epochs with the same network are one descent of twice the steps
        loss(logits, labels, places)
        expected = printed_weights(distances, slots.mask, 0.1, 0.1, steps)
        torch.testing.assert_close(loss.kept.flip(0), expected)
    fresh = printed_weights(distances, slots.mask, 0.1, 0.1, 10)
    torch.testing.assert_close(loss.slot_weights(Batch(HeadOutput(logits), labels), slots), fresh)
    resumed = ICS(CENTERS, **options).double()
    resumed.prepare(np.zeros((len(logits), 0)), np.arange(len(logits)), labels.flip(0).numpy())
    resumed.load_state_dict(loss.state_dict())
    assert torch.equal(resumed.kept, loss.kept)
    with pytest.raises(ConfigError):
        ICS(CENTERS, keep=True)


def test_distance_is_the_binary_cross_entropy_of_every_bit() -> None:
    logits, _ = sample()
    found = center_distances(logits, CENTERS)
    for row in range(len(logits)):
        for j in range(CLASSES):
            naive = binary_cross_entropy_with_logits(logits[row], (CENTERS[j] + 1) / 2, reduction="sum")
            assert float(found[row, j]) == pytest.approx(float(naive))


def test_distance_by_hand() -> None:
    # b = sigmoid(log 3) = 3/4 at both bits: center (+1, -1) costs -log(3/4) - log(1/4)
    found = center_distances(torch.full((1, 2), math.log(3)), torch.tensor([[1.0, -1.0]]))
    assert float(found) == pytest.approx(-math.log(0.75) - math.log(0.25), rel=1e-6)


def test_distance_stays_finite_and_non_negative_for_huge_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 1e-8, 300.0]])
    centers = torch.tensor([[1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, 1.0, 1.0]])
    found = center_distances(logits, centers)
    assert torch.isfinite(found).all()
    assert (found >= 0).all()
    assert float(found[0, 1]) == pytest.approx(2e4, rel=1e-4)


def test_central_loss_in_all_four_forms_by_hand() -> None:
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
    for (form, normalised), value in expected.items():
        found = central_loss(weights, distances, mask, beta, form, normalised)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(value, rel=1e-6)


def test_log_cosh_and_quantisation_by_hand() -> None:
    values = torch.tensor([0.0, 0.5, -0.5, 200.0])
    expected = [0.0, math.log(math.cosh(0.5)), math.log(math.cosh(0.5)), 200.0 - math.log(2)]
    np.testing.assert_allclose(log_cosh(values), expected, rtol=1e-6, atol=1e-7)
    # b = 1/2 is as far from a bit as can be: log cosh(-1); a saturated bit costs nothing
    found = quantisation_loss(torch.tensor([[0.0, 100.0]]))
    assert float(found) == pytest.approx(math.log(math.cosh(1)), rel=1e-6)


def test_squared_quantisation_by_hand() -> None:
    # tanh(log 3 / 2) = 1/2, so the bit is half away; 0 is one away, a saturated bit nothing
    found = squared_quantisation(torch.tensor([[math.log(3), 0.0, -100.0]]))
    assert float(found) == pytest.approx(1.25, rel=1e-6)


def test_csq_as_released_differs_only_in_its_quantisation() -> None:
    logits, labels = sample()
    ours, theirs = CSQ(CENTERS, gamma=0.05, seed=3), CSQ(CENTERS, gamma=0.05, quantisation="squared", seed=3)
    found, before = (double(loss).loss_terms(logits, labels).parts for loss in (theirs, ours))
    assert float(found["center"]) == float(before["center"])
    expected = 0.05 * float(squared_quantisation(logits).mean()) / BITS
    assert float(found["quantisation"]) == pytest.approx(expected)


def test_majority_centroid_by_hand() -> None:
    centers = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [1.0, -1.0, 1.0]])
    ties = torch.tensor([-1.0, 1.0, -1.0])
    labels = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    expected = [[1, 1, -1], [1, -1, -1], [1, -1, 1]]
    assert majority_centroid(labels, centers, ties).tolist() == expected


def test_similarity_to_a_center_itself_is_one() -> None:
    found = center_similarities(3 * CENTERS, CENTERS)
    torch.testing.assert_close(found, torch.eye(CLASSES, dtype=torch.float64))


def test_ewcs_by_a_loop() -> None:
    logits, labels = sample()
    gamma = 0.7
    total = double(EWCS(CENTERS, gamma=gamma))(logits, labels)
    distances, rows = center_distances(logits, CENTERS), []
    for row in range(len(logits)):
        own = [float(distances[row, j]) for j in range(CLASSES) if labels[row, j]]
        quantisation = sum(math.log(math.cosh(abs(math.tanh(float(z) / 2)) - 1)) for z in logits[row])
        rows.append((sum(own) / len(own) + gamma * quantisation) / BITS)
    assert float(total) == pytest.approx(sum(rows) / len(rows))


def test_csq_by_a_loop() -> None:
    logits, labels = sample()
    objective = CSQ(CENTERS, gamma=0.2, seed=3)
    rows = []
    for row in range(len(logits)):
        target = []
        for bit in range(BITS):
            total = sum(float(CENTERS[j, bit]) for j in range(CLASSES) if labels[row, j])
            target.append(math.copysign(1, total) if total else float(objective.tie_vector[bit]))
        bce = sum(math.log1p(math.exp(-t * float(z))) for t, z in zip(target, logits[row], strict=True))
        quantisation = sum(math.log(math.cosh(abs(math.tanh(float(z) / 2)) - 1)) for z in logits[row])
        rows.append((bce + 0.2 * quantisation) / BITS)
    assert float(double(objective)(logits, labels)) == pytest.approx(sum(rows) / len(rows))


def test_ics_is_the_loss_at_the_solved_weights() -> None:
    logits, labels = sample()
    options = ICSOptions(beta=0.8, entropy=0.1, gamma=0.3)
    found = double(ICS(CENTERS, options=options)).loss_terms(logits, labels)
    slots = label_slots(labels)
    distances = center_distances(logits, CENTERS).gather(1, slots.classes) / BITS
    weights = exact_weights(distances, slots.mask, 0.8, 0.1)
    center = central_loss(weights, distances, slots.mask, 0.8, "joint", True).mean()
    assert float(found.parts["center"]) == pytest.approx(float(center))
    expected = center + 0.3 * quantisation_loss(logits).mean() / BITS
    assert float(found.total) == pytest.approx(float(expected))


def test_ics_with_a_huge_lambda_has_the_weights_of_ewcs() -> None:
    logits, labels = sample()
    weights = double(ICS(CENTERS, entropy=1e6)).weights(logits, labels)
    torch.testing.assert_close(weights, equal_weights(labels, torch.float64), atol=1e-5, rtol=0)


def test_printed_beta_by_bits() -> None:
    for bits, beta in PRINTED_BETA.items():
        assert METHODS["ics-printed"].options({}, bits).beta == beta  # type: ignore[attr-defined]
    assert METHODS["ics-printed"].options({"beta": "0.5"}, 64).beta == 0.5  # type: ignore[attr-defined]


def test_images_without_labels_do_not_move_the_loss() -> None:
    logits, labels = sample()
    more = torch.cat([logits, 5 * torch.ones(3, BITS, dtype=torch.float64)])
    none = torch.cat([labels, torch.zeros(3, CLASSES, dtype=torch.bool)])
    for name in CENTRAL:
        method = METHODS[name]
        objective = double(method.objective(CLASSES, BITS, CENTERS, method.options({}, BITS), 0))
        first, second = (float(objective(*given).detach()) for given in ((logits, labels), (more, none)))
        assert first == pytest.approx(second), name


def test_polarization_by_hand() -> None:
    # past the margin, within it, on the wrong side, at zero: 0, 1/2, 3 and 1
    logits = torch.tensor([[2.0, -0.5, -2.0, 0.0]])
    targets = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    assert polarization(logits, targets, margin=1.0).tolist() == [4.5 / 4]


def test_polarization_to_all_centers_is_the_one_of_each() -> None:
    logits, _ = sample()
    centers = torch.from_numpy(hash_centers(CLASSES, BITS)).double()
    found = polarization_to_centers(logits, centers, margin=0.7)
    for image in range(len(logits)):
        for label in range(CLASSES):
            alone = polarization(logits[image], centers[label], margin=0.7)
            torch.testing.assert_close(found[image, label], alone)


def test_each_label_is_a_target_as_the_authors_have_it() -> None:
    logits, labels = sample()
    centers = torch.from_numpy(hash_centers(CLASSES, BITS))
    total = 0.0
    for image in range(len(logits)):
        for label in labels[image].nonzero().flatten().tolist():
            hinges = [
                max(0.0, 1 - float(z) * float(v))
                for z, v in zip(logits[image], centers[label].double(), strict=True)
            ]
            total += sum(hinges) / BITS
    assert float(DPN(centers, target="each").double()(logits, labels)) == pytest.approx(total / len(logits))


def test_the_majority_is_one_target_and_ties_are_drawn_once_from_the_seed() -> None:
    centers = torch.tensor([[1.0, 1, 1, -1], [1.0, -1, 1, 1], [1.0, -1, -1, -1]])
    labels = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    loss = DPN(centers, seed=5)
    tie = loss.tie_vector
    targets = torch.stack(
        [
            torch.tensor([1.0, -1, 1, -1]),
            torch.tensor([1.0, float(tie[1]), 1, float(tie[3])]),
            centers[2],
        ]
    )
    assert float(loss(2 * targets, labels)) == 0
    assert float(loss(-targets, labels)) == 2
    assert torch.equal(DPN(centers, seed=5).tie_vector, tie)


def test_one_label_has_the_same_loss_by_both_targets() -> None:
    logits, _ = sample()
    labels = torch.eye(CLASSES, dtype=torch.bool)[torch.arange(len(logits)) % CLASSES]
    centers = hash_centers(CLASSES, BITS)
    losses = [DPN(centers, target=target)(logits.float(), labels) for target in ("majority", "each")]
    torch.testing.assert_close(losses[0], losses[1])
