"""The contract of every loss: a scalar from logits and labels, finite at the edges, options by name, shapes checked."""

from __future__ import annotations

import doctest
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash import losses
from centerhash.centers import hash_centers
from centerhash.core.errors import ConfigError, InputError
from centerhash.core.options import options_of
from centerhash.losses import Batch, CSQLoss, EWCSLoss, HashingLoss, HeadOutput, ICSLoss
from centerhash.methods.registry import METHODS, Method
from centerhash.weights import label_slots
from tests.losses.toys import BITS, CLASSES, sample

CENTERS = hash_centers(CLASSES, BITS, seed=2)
DEEP = [method for method in METHODS.values() if method.family != "shallow"]
INDICES = torch.arange(40)
each_method = pytest.mark.parametrize("method", DEEP, ids=lambda method: method.name)


def loss_of(method: Method) -> HashingLoss:
    """The loss of a method, CNNH's with codes for forty images."""
    options = method.options({"sweeps": 2} if method.name == "cnnh" else {}, BITS)
    loss: HashingLoss = method.create(options, centers=CENTERS, classes=CLASSES, bits=BITS, seed=0)
    loss.prepare(np.random.default_rng(0).random((40, CLASSES)) < 0.4)
    return loss


@each_method
def test_terms_add_up(method: Method) -> None:
    loss, (logits, labels) = loss_of(method), sample()
    indices = INDICES[: len(logits)]
    logits = logits.float().requires_grad_()
    total = loss(logits, labels, indices)
    assert total.shape == ()
    total.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0
    terms = loss.loss_terms(Batch(HeadOutput(logits), labels.int(), indices))
    assert torch.equal(terms.pop("loss"), total)
    assert float(total.detach()) == pytest.approx(sum(float(part) for part in terms.values()), rel=1e-5)


@pytest.mark.parametrize(
    "method",
    # The gradient of greedyhash passes the sign as if there were none.
    [method for method in DEEP if method.name not in ("ics-softmax", "greedyhash")],
    ids=lambda method: method.name,
)
def test_gradcheck(method: Method) -> None:
    """The weights of a central method are held fixed in the network step, so they are frozen here."""
    loss, (logits, labels) = loss_of(method).double(), sample(rows=4)
    if isinstance(loss, ICSLoss):
        frozen = loss.slot_weights(Batch(HeadOutput(logits), labels), label_slots(labels)).detach()
        loss.solve = lambda distances, slots, start: frozen  # type: ignore[method-assign,assignment]

    def total(values: Tensor) -> Tensor:
        value: Tensor = loss(values, labels, INDICES[:4], 0.3)
        return value

    assert torch.autograd.gradcheck(total, (logits.requires_grad_(),))


@each_method
def test_finite_at_the_edge(method: Method) -> None:
    loss, generator = loss_of(method), torch.Generator().manual_seed(0)
    everything, alone = torch.ones(3, CLASSES, dtype=torch.bool), torch.eye(CLASSES, dtype=torch.bool)
    mixed = torch.cat([alone, ~everything])
    for labels in (everything, ~everything, everything[:1], ~everything[:1], alone, mixed):
        for scale in (0.0, 1.0, 1e4):
            for same in (False, True):
                logits = scale * torch.randn(len(labels), BITS, generator=generator)
                logits = (logits[:1].expand(len(labels), -1).clone() if same else logits).requires_grad_()
                terms = loss.loss_terms(Batch(HeadOutput(logits), labels, INDICES[: len(labels)], 0.99))
                terms["loss"].backward()
                assert all(bool(torch.isfinite(part)) for part in terms.values())
                assert logits.grad is not None
                assert torch.isfinite(logits.grad).all()
                if isinstance(loss, losses.CentralLoss):
                    weights = loss.weights(logits, labels)
                    torch.testing.assert_close(weights.sum(dim=1), labels.any(dim=1).float())
                    assert (weights[~labels] == 0).all()


@pytest.mark.parametrize("method", [m for m in DEEP if m.family == "central"], ids=lambda m: m.name)
def test_images_without_labels(method: Method) -> None:
    logits, labels = sample()
    more = torch.cat([logits, 5 * torch.ones(3, BITS, dtype=torch.float64)])
    none = torch.cat([labels, torch.zeros(3, CLASSES, dtype=torch.bool)])
    loss = loss_of(method).double()
    assert float(loss(logits, labels).detach()) == pytest.approx(float(loss(more, none).detach()))


def test_label_probabilities() -> None:
    """Two classes, log-odds 0 and log 3: -log(1/2) for each sign of the first, -log(3/4) and -log(1/4) of the second."""
    log_odds = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    labels = torch.tensor([[True, True], [False, False]])
    expected = math.log(2) + (math.log(4 / 3) + math.log(4)) / 2
    loss, logits = CSQLoss(torch.tensor([[1.0, 1.0], [1.0, -1.0]])), torch.zeros(2, 2)
    both = loss.loss_terms(Batch(HeadOutput(logits, None, log_odds), labels))
    assert float(both["loss"]) == pytest.approx(float(loss(logits, labels)) + expected)
    assert float(both["presence"]) == pytest.approx(expected)


# Options


class Wider(CSQLoss):
    """CSQ with one more option."""

    def __init__(self, centers: Any, width: float = 1.0, **options: Any) -> None:
        super().__init__(centers, **options)
        self.width = width


def test_inherited_options() -> None:
    assert list(options_of(Wider).model_fields) == ["width", "gamma", "quantization"]
    assert Wider(CENTERS, width=2.0, gamma=0.1, seed=3).gamma == 0.1


@pytest.mark.parametrize(
    ("cls", "options", "named"),
    [
        (ICSLoss, {"gama": 1}, "gamma"),
        (ICSLoss, {"gamma": -1}, "gamma"),
        (ICSLoss, {"form": "per_center"}, "solver"),
        (ICSLoss, {"keep": True}, "solver"),
        (CSQLoss, {"quantization": "cubic"}, "quantization"),
        (EWCSLoss, {"beta": 1.0}, "beta"),
    ],
)
def test_wrong_options(cls: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        cls(CENTERS, **options)


# Inputs

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
def test_wrong_inputs(output: Any, labels: Tensor) -> None:
    for loss in (ICSLoss(CENTERS), losses.HyP2Loss(CLASSES, BITS)):
        with pytest.raises(InputError):
            loss(output, labels)


@pytest.mark.parametrize(
    "centers", [(CENTERS + 1) // 2, CENTERS / 4, CENTERS[0], CENTERS[:0], CENTERS.astype(np.float32) * np.nan]
)
def test_wrong_centers(centers: Any) -> None:
    with pytest.raises(InputError):
        ICSLoss(centers)


# Custom losses


class Custom(HashingLoss):
    """A custom loss that returns `result` as its terms."""

    result: Any = None

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return self.result  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("loss", "result", "named"),
    [
        (Custom(), torch.zeros(()), "Custom.terms"),
        (Custom(), [torch.zeros(())], "list"),
        (Custom(), {"margin": torch.zeros(3, 2)}, "'margin'"),
        (Custom(), {"fine": torch.zeros(()), "margin": 0.5}, "'margin'"),
    ],
)
def test_wrong_terms(loss: Any, result: Any, named: str) -> None:
    loss.result = result
    with pytest.raises(InputError, match=named):
        loss(*sample())


# Documentation

PUBLIC = {name: item for name, item in vars(losses).items() if callable(item)}
LOSSES = [item for item in PUBLIC.values() if isinstance(item, type) and issubclass(item, HashingLoss)]


def test_public_names_in_reference() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
    assert [name for name in PUBLIC if f"\n::: centerhash.losses.{name}\n" not in reference] == []


@pytest.mark.parametrize("cls", LOSSES)
def test_docstring_examples(cls: type[HashingLoss]) -> None:
    names = {**PUBLIC, "hash_centers": hash_centers, "torch": torch}
    (test,) = doctest.DocTestFinder(recurse=False).find(cls, globs=names)
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))
    assert inspect.isabstract(cls) or (
        len(test.examples) == 3 and {"Args:", "Shape:"} <= set(test.docstring.split())
    )
