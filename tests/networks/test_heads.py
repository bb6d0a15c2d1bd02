from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from centerhash.core.errors import ConfigError, InputError
from centerhash.core.options import read_options
from centerhash.losses.base import HeadOutput
from centerhash.networks.heads import (
    DivideAndEncode,
    Dropout,
    HeadOptions,
    IsolatedDropout,
    Outputs,
    build_head,
)
from centerhash.training.config import TrainConfig, resolve

PLAIN = {"standardise": False, "input_dropout": 0.0, "hidden": (), "logit_norm": False}


def test_linear_head() -> None:
    head = build_head(5, 8, HeadOptions(**PLAIN)).eval()
    linear = next(layer for layer in head if isinstance(layer, nn.Linear))
    features = torch.randn(3, 5)
    torch.testing.assert_close(head(features).logits, features @ linear.weight.T + linear.bias)


BLOCK = [nn.Linear, nn.BatchNorm1d, nn.ReLU, Dropout]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        (
            {"standardise": True, "hidden": (12, 10), "hidden_norm": True, "logit_norm": True},
            [nn.BatchNorm1d, Dropout, *BLOCK, *BLOCK, nn.Linear, nn.BatchNorm1d],
        ),
        (
            {"standardise": False, "hidden": (12,), "hidden_norm": False},
            [Dropout, nn.Linear, nn.ReLU, Dropout, nn.Linear],
        ),
    ],
)
def test_build_head_layers(options: dict[str, Any], layers: list[type[nn.Module]]) -> None:
    options = {**options, "input_dropout": 0.25, "dropout": 0.75}
    head = build_head(5, 8, HeadOptions(**options))
    assert [type(layer) for layer in head] == layers
    linear = [layer for layer in head if isinstance(layer, nn.Linear)]
    widths = (5, *options["hidden"], 8)
    assert [(layer.in_features, layer.out_features) for layer in linear] == list(pairwise(widths))
    # The bias of a norm replaces it.
    assert (linear[0].bias is None) == options["hidden_norm"]
    rates = [layer.p for layer in head if isinstance(layer, nn.Dropout)]
    assert rates == [0.25, *[0.75] * len(options["hidden"])]


@pytest.mark.parametrize("p", [0.25, 0.5, 0.3])  # eight entries of a random word, and torch's own mask
def test_dropout_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    layer, units = Dropout(p), torch.ones(501, 401)
    dropped = layer(units)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=0.005)
    assert not torch.equal(dropped[:, :200], dropped[:, 200:400])
    torch.manual_seed(0)
    assert torch.equal(layer(units), dropped)
    assert layer.eval()(units) is units


def test_standardization() -> None:
    head = build_head(4, 8, HeadOptions(**{**PLAIN, "standardise": True}))
    scale, mean = torch.tensor([1.0, 5.0, 0.1, 30.0]), torch.tensor([0.0, 9.0, -3.0, 100.0])
    features = head[0](torch.randn(64, 4) * scale + mean)
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(features.std(dim=0, correction=0), torch.ones(4), atol=1e-2, rtol=0)
    assert not list(head[0].parameters())


@pytest.mark.parametrize("name", ["input_dropout", "dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_impossible_dropout(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        read_options(HeadOptions, {name: value}, "the head")


def test_divide_and_encode_slices() -> None:
    for features, bits in ((12, 4), (14, 4), (5, 4), (4, 4), (33, 8)):
        torch.manual_seed(0)
        layer = DivideAndEncode(features, bits)
        inputs = torch.randn(3, features, requires_grad=True)
        sizes = [len(part) for part in np.array_split(np.arange(features), bits)]
        start = 0
        for bit, size in enumerate(sizes):
            (gradient,) = torch.autograd.grad(layer(inputs)[:, bit].sum(), inputs)
            seen = gradient[0].nonzero().flatten().tolist()
            assert seen == list(range(start, start + size))
            expected = inputs[:, start : start + size] @ layer.weight[bit, :size] + layer.bias[bit]
            torch.testing.assert_close(layer(inputs)[:, bit], expected)
            start += size
        assert start == features


def test_divide_and_encode_padding() -> None:
    layer = DivideAndEncode(5, 2)
    layer(torch.randn(3, 5)).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.tolist()[1][2] == layer.weight.grad.tolist()[1][2] == 0


def test_divide_and_encode_tensors() -> None:
    assert set(DivideAndEncode(9, 4).state_dict()) == {"weight", "bias"}
    with pytest.raises(InputError):
        DivideAndEncode(3, 4)


# Tensors of a stored head are named by the positions of its layers.
STORED = {
    "0.running_mean": (5,),
    "0.running_var": (5,),
    "0.num_batches_tracked": (),
    "2.weight": (12, 5),
    "3.weight": (12,),
    "3.bias": (12,),
    "3.running_mean": (12,),
    "3.running_var": (12,),
    "3.num_batches_tracked": (),
}
PLAIN_END = {"6.weight": (8, 12), "6.bias": (8,), "7.matrix": (8, 8)}
EVIDENCE_END = {
    "6.code.0.weight": (8, 12),
    "6.code.0.bias": (8,),
    "6.code.1.matrix": (8, 8),
    "6.evidence.weight": (3, 12),
    "6.evidence.bias": (3,),
}


@pytest.mark.parametrize("evidence", [False, True])
def test_stored_head_by_hand(evidence: bool) -> None:
    shapes = STORED | (EVIDENCE_END if evidence else PLAIN_END)
    generator = torch.Generator().manual_seed(0)
    stored = {
        name: torch.rand(shape, generator=generator) if shape else torch.tensor(7)
        for name, shape in shapes.items()
    }
    head = build_head(5, 8, HeadOptions(hidden=(12,), rotate=True, evidence=evidence), classes=3).eval()
    assert list(head.state_dict()) == list(stored)
    head.load_state_dict(stored)
    features = torch.randn(4, 5, generator=generator)
    output = head(features)
    scaled = (features - stored["0.running_mean"]) / (stored["0.running_var"] + 1e-5).sqrt()
    hidden = (scaled @ stored["2.weight"].T - stored["3.running_mean"]) / (
        stored["3.running_var"] + 1e-5
    ).sqrt()
    hidden = (hidden * stored["3.weight"] + stored["3.bias"]).relu()
    last = "6.code.0" if evidence else "6"
    matrix = stored["6.code.1.matrix" if evidence else "7.matrix"]
    logits = (hidden @ stored[f"{last}.weight"].T + stored[f"{last}.bias"]) @ matrix
    torch.testing.assert_close(output.logits, logits)
    if evidence:
        expected = hidden @ stored["6.evidence.weight"].T + stored["6.evidence.bias"]
        torch.testing.assert_close(output.class_logits, expected)
    else:
        assert output.class_logits is None


@pytest.mark.parametrize(("option", "output"), [("evidence", "class_logits"), ("presence", "label_log_odds")])
def test_outputs_shape_nothing(option: str, output: str) -> None:
    head = build_head(5, 8, HeadOptions(hidden=(12,), presence_hidden=4, **{option: True}), classes=3)
    getattr(head(torch.randn(6, 5)), output).sum().backward()
    parameters = dict(head.named_parameters())
    learning = {name for name, parameter in parameters.items() if parameter.grad is not None}
    assert learning == {name for name in parameters if name.startswith(f"6.{option}.")} != set()


def test_log_odds_of_standardized_features() -> None:
    head = build_head(5, 8, HeadOptions(hidden=(12,), presence=True, presence_hidden=4), classes=3)
    features = torch.randn(6, 5)
    head(features)  # statistics of the norms
    head.eval()
    outputs = head[-1]
    assert isinstance(outputs, Outputs)
    assert outputs.presence is not None
    expected = outputs.presence(head[0](features))
    torch.testing.assert_close(head(features).label_log_odds, expected)
    assert expected.shape == (6, 3)


def test_isolated_dropout() -> None:
    units, drop = torch.ones(4, 50), IsolatedDropout(0.5)
    torch.manual_seed(0)
    dropped, after = drop(units), torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
    assert set(dropped.unique().tolist()) == {0, 2}
    assert torch.equal(drop.eval()(units), units)


@pytest.mark.parametrize(
    ("presence", "option", "units"), [(True, None, 1024), (False, None, None), (True, 7, 7)]
)
def test_presence_hidden_units(presence: bool, option: int | None, units: int | None) -> None:
    options = HeadOptions(presence=presence, presence_hidden=option)
    assert resolve(TrainConfig(method="csq", head=options)).head.presence_hidden == units


def test_each_output() -> None:
    doubled = HeadOutput(torch.ones(2, 3), torch.ones(2, 4)).each(lambda part: 2 * part)
    assert doubled.class_logits is not None
    assert doubled.logits.tolist() == [[2] * 3] * 2
    assert doubled.class_logits.tolist() == [[2] * 4] * 2
    assert HeadOutput(torch.ones(2, 3)).each(torch.neg).class_logits is None


def test_rotation() -> None:
    head = build_head(5, 8, HeadOptions(hidden=(), rotate=True)).eval()
    features = torch.randn(4, 5)
    before, matrix = head(features).logits, torch.linalg.qr(torch.randn(8, 8))[0]
    assert head.rotation is not None
    head.rotation.matrix.copy_(matrix)
    torch.testing.assert_close(head(features).logits, before @ matrix)
    assert not list(head.rotation.parameters())
    assert build_head(5, 8, HeadOptions()).rotation is None


def test_add_to_evidence() -> None:
    head = build_head(5, 8, HeadOptions(hidden=(12,), evidence=True), classes=3).eval()
    features, offsets = torch.randn(4, 5), torch.tensor([1.0, 0.0, -2.0])
    before = head(features)
    head.add_to_evidence(offsets)
    after = head(features)
    torch.testing.assert_close(after.class_logits, before.class_logits + offsets)
    assert torch.equal(after.logits, before.logits)
