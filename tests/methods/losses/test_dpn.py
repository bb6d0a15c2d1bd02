from __future__ import annotations

import pytest
import torch

from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.dpn import DPN, polarization, polarization_to_centers
from tests.methods.losses.toys import BITS, CLASSES, sample


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
