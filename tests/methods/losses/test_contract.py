"""What every loss promises: a scalar from logits and labels, finite at the edges, options by name, shapes checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash.core.errors import ConfigError, InputError
from centerhash.core.options import MethodOptions
from centerhash.methods import losses
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses import CNNH, CSQ, DHN, EWCS, ICS, Batch, ICSOptions, Objective
from centerhash.methods.losses.base import HeadOutput, label_loss
from centerhash.methods.registry import METHODS
from centerhash.methods.weights import label_slots
from tests.methods.losses.toys import BITS, CLASSES, sample

CENTERS = hash_centers(CLASSES, BITS, seed=2)
DEEP = [row for row in METHODS.values() if row.family != "shallow"]
PLACES = torch.arange(40)


def loss_of(row: Any) -> Objective:
    """The loss of a method, CNNH's with codes for forty images."""
    options = row.options({"sweeps": 2} if row.name == "cnnh" else {}, BITS)
    loss = row.objective(CLASSES, BITS, torch.from_numpy(CENTERS), options, 0)
    assert isinstance(loss, Objective)
    loss.prepare(np.zeros((40, 1)), np.arange(40), np.random.default_rng(0).random((40, CLASSES)) < 0.4)
    return loss


@pytest.mark.parametrize("row", DEEP, ids=lambda row: row.name)
def test_a_loss_is_a_scalar_and_its_parts_add_up(row: Any) -> None:
    loss, (logits, labels) = loss_of(row), sample()
    places = PLACES[: len(logits)]
    logits = logits.float().requires_grad_()
    total = loss(logits, labels, places)
    assert total.shape == ()
    total.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0
    terms = loss.loss_terms(HeadOutput(logits), labels.int(), places)
    assert torch.equal(terms.total, total)
    assert float(total.detach()) == pytest.approx(sum(float(part) for part in terms.parts.values()), rel=1e-5)


class Custom(Objective):
    """A custom loss whose terms are whatever a test gives it."""

    made: Any = None

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return self.made  # type: ignore[no-any-return]


class CustomCentral(EWCS):
    made: Any = None

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        return self.made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("made", "got"),
    [
        (torch.zeros(()), "Tensor"),
        (None, "NoneType"),
        ({"margin": torch.zeros(3)}, r"\(3,\) of float32 for 'margin'"),
        ({"fine": torch.zeros(()), "margin": 0.5}, "float for 'margin'"),
    ],
)
def test_a_custom_loss_without_scalars_is_named(made: Any, got: str) -> None:
    loss, (logits, labels) = Custom(), sample()
    loss.made = made
    with pytest.raises(InputError, match=rf"^Custom\.terms .*{got}"):
        loss(logits, labels)


@pytest.mark.parametrize(
    ("made", "got"), [(torch.zeros(3), "Tensor"), ({"central": torch.zeros(3, 2)}, "for 'central'")]
)
def test_a_custom_central_loss_without_a_value_per_image_is_named(made: Any, got: str) -> None:
    loss, (logits, labels) = CustomCentral(CENTERS), sample()
    loss.made = made
    with pytest.raises(InputError, match=rf"^CustomCentral\.image_terms .*{got}"):
        loss(logits, labels)


# greedyhash's gradient passes the sign as if there were none
DIFFERENTIABLE = [row for row in DEEP if row.name not in ("ics-softmax", "greedyhash")]


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_gradients_are_right_in_float64(row: Any) -> None:
    """The weights of a central method are held fixed in the network step, so they are frozen here."""
    loss, (logits, labels) = loss_of(row).double(), sample(rows=4)
    if isinstance(loss, ICS):
        frozen = loss.slot_weights(Batch(HeadOutput(logits), labels), label_slots(labels)).detach()
        loss.solve = lambda distances, slots, start: frozen  # type: ignore[method-assign,assignment]

    def total(values: Tensor) -> Tensor:
        found: Tensor = loss(values, labels, PLACES[:4], 0.3)
        return found

    assert torch.autograd.gradcheck(total, (logits.requires_grad_(),))


@pytest.mark.parametrize("row", DEEP, ids=lambda row: row.name)
def test_batches_at_the_edge_have_finite_losses_and_gradients(row: Any) -> None:
    loss, generator = loss_of(row), torch.Generator().manual_seed(0)
    everything, alone = torch.ones(3, CLASSES, dtype=torch.bool), torch.eye(CLASSES, dtype=torch.bool)
    mixed = torch.cat([alone, ~everything])
    for labels in (everything, ~everything, everything[:1], ~everything[:1], alone, mixed):
        for scale in (0.0, 1.0, 1e4):
            for same in (False, True):
                logits = scale * torch.randn(len(labels), BITS, generator=generator)
                logits = (logits[:1].expand(len(labels), -1).clone() if same else logits).requires_grad_()
                found = loss.loss_terms(logits, labels, PLACES[: len(labels)], 0.99)
                found.total.backward()
                assert torch.isfinite(found.total)
                assert all(bool(torch.isfinite(part)) for part in found.parts.values())
                assert logits.grad is not None
                assert torch.isfinite(logits.grad).all()
                if isinstance(loss, losses.CentralObjective):
                    weights = loss.weights(logits, labels)
                    torch.testing.assert_close(weights.sum(dim=1), labels.any(dim=1).float())
                    assert (weights[~labels] == 0).all()


def test_the_same_centers_as_array_or_tensor_of_any_kind() -> None:
    logits, labels = sample()
    kinds = [
        CENTERS,
        CENTERS.astype(np.float64),
        torch.from_numpy(CENTERS),
        torch.from_numpy(CENTERS).double(),
    ]
    found = {float(EWCS(centers)(logits.float(), labels)) for centers in kinds}
    assert len(found) == 1


@pytest.mark.parametrize(
    "centers", [(CENTERS + 1) // 2, CENTERS / 4, CENTERS[0], CENTERS[:0], CENTERS.astype(np.float32) * np.nan]
)
def test_centers_that_are_none_are_refused(centers: Any) -> None:
    with pytest.raises(InputError):
        ICS(centers)


def test_rotated_centers_are_centers() -> None:
    turned = torch.linalg.qr(torch.randn(BITS, BITS, generator=torch.Generator().manual_seed(0)))[0]
    logits, labels = sample()
    plain = losses.OrthoHash(CENTERS)(logits.float(), labels)
    rotated = losses.OrthoHash(torch.from_numpy(CENTERS).float() @ turned)(logits.float() @ turned, labels)
    torch.testing.assert_close(rotated, plain)


def test_options_by_name_by_alias_or_as_a_whole() -> None:
    whole = ICS(CENTERS, options=ICSOptions(gamma=0.3, entropy=0.1))
    assert ICS(CENTERS, gamma=0.3, **{"lambda": 0.1}).options == whole.options
    assert ICS(CENTERS, gamma=0.3, entropy=0.1).options == whole.options
    assert None not in ICS(CENTERS).options.model_dump().values()
    with pytest.raises(ConfigError):
        ICS(CENTERS, gama=1)
    with pytest.raises(ConfigError):
        CSQ(CENTERS, options=ICSOptions())  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ICS(CENTERS, options=ICSOptions(), gamma=1)


LOGITS, LABELS = torch.zeros(4, BITS), torch.ones(4, CLASSES, dtype=torch.bool)


@pytest.mark.parametrize(
    ("output", "labels"),
    [
        (LOGITS[:, :8], LABELS),
        (LOGITS, LABELS[:, :2]),
        (LOGITS[:3], LABELS),
        (LOGITS[0], LABELS[0]),
        (LOGITS.int(), LABELS),
        (LOGITS, 2 * LABELS.int()),
        (LOGITS, torch.arange(4)),
        (HeadOutput(LOGITS, torch.zeros(4, 2)), LABELS),
        (LOGITS.numpy(), LABELS),
    ],
)
def test_what_does_not_fit_is_refused_by_the_base_class(output: Any, labels: Tensor) -> None:
    for loss in (ICS(CENTERS), losses.HyP2(CLASSES, BITS)):
        with pytest.raises(InputError):
            loss(output, labels)


def test_pairs_take_any_sizes_and_cnnh_its_bits() -> None:
    assert DHN()(LOGITS[:, :5], LABELS[:, :3]).isfinite()
    with pytest.raises(InputError):
        CNNH(BITS)(LOGITS[:, :5], LABELS)


class Plain(Objective):
    """A loss without options."""

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return {"size": batch.logits.square().mean()}


class Child(ICS):
    """ICS by another name."""


def test_options_are_those_of_the_nearest_class_that_has_some() -> None:
    assert type(Plain().options) is MethodOptions
    assert isinstance(Child(CENTERS).options, ICSOptions)
    with pytest.raises(ConfigError):
        Plain(gamma=1)


def test_the_public_names_are_all_there() -> None:
    assert dir(losses) == sorted(losses.__all__)
    for name in losses.__all__:
        assert getattr(losses, name).__name__ == name


def test_presence_is_learned_beside_every_loss() -> None:
    """Two classes, log-odds 0 and log 3: -log(1/2) for each sign of the first, -log(3/4) and -log(1/4) of the second."""
    presence = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    labels = torch.tensor([[True, True], [False, False]])
    expected = math.log(2) + (math.log(4 / 3) + math.log(4)) / 2
    assert float(label_loss(presence, labels)) == pytest.approx(expected)
    loss = losses.CSQ(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    logits = torch.zeros(2, 2)
    alone, both = loss.loss_terms(logits, labels), loss.loss_terms(HeadOutput(logits, None, presence), labels)
    assert float(both.total) == pytest.approx(float(alone.total) + expected)
    assert float(both.parts["presence"]) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "name"), [(losses.GreedyHash, "classifier"), (losses.HyP2, "proxies")])
def test_vectors_of_classes_are_drawn_by_the_seed_and_trained(kind: Any, name: str) -> None:
    first, again, other = (kind(CLASSES, BITS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(getattr(first, name), getattr(other, name))
    logits, labels = sample()
    first(logits.float(), labels).backward()
    assert float(getattr(first, name).grad.abs().sum()) > 0
