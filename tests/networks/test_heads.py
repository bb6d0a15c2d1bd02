from __future__ import annotations

import pytest
import torch
from torch import nn

from centerhash.core.errors import ConfigError
from centerhash.core.options import read_options
from centerhash.networks.heads import HeadOptions, build_head

PLAIN = {"standardise": False, "input_dropout": 0.0, "hidden": (), "logit_norm": False}


def kinds(head: nn.Sequential) -> list[type[nn.Module]]:
    return [type(layer) for layer in head]


def test_a_linear_head_is_one_linear_map() -> None:
    head = build_head(5, 8, HeadOptions(**PLAIN)).eval()
    linear = next(layer for layer in head if isinstance(layer, nn.Linear))
    features = torch.randn(3, 5)
    torch.testing.assert_close(head(features), features @ linear.weight.T + linear.bias)


def test_the_order_of_the_layers() -> None:
    options = HeadOptions(standardise=True, hidden=(12, 10), hidden_norm=True, logit_norm=True)
    block = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout]
    expected = [nn.BatchNorm1d, nn.Dropout, *block, *block, nn.Linear, nn.BatchNorm1d]
    head = build_head(5, 8, options)
    assert kinds(head) == expected
    widths = [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]
    assert widths == [(5, 12), (12, 10), (10, 8)]


def test_layers_can_be_left_out() -> None:
    options = HeadOptions(standardise=False, hidden=(12,), hidden_norm=False, logit_norm=False)
    assert kinds(build_head(5, 8, options)) == [nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]


def test_dropout_rates_go_where_they_belong() -> None:
    options = HeadOptions(input_dropout=0.25, hidden=(12,), dropout=0.75)
    rates = [layer.p for layer in build_head(5, 8, options) if isinstance(layer, nn.Dropout)]
    assert rates == [0.25, 0.75]


def test_standardising_follows_the_features_and_learns_nothing() -> None:
    head = build_head(4, 8, HeadOptions(**{**PLAIN, "standardise": True}))
    features = torch.randn(64, 4) * torch.tensor([1.0, 5.0, 0.1, 30.0]) + torch.tensor(
        [0.0, 9.0, -3.0, 100.0]
    )
    standardised = head[0](features)
    torch.testing.assert_close(standardised.mean(dim=0), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(standardised.std(dim=0, correction=0), torch.ones(4), atol=1e-2, rtol=0)
    assert not list(head[0].parameters())


def test_a_norm_takes_the_place_of_the_bias() -> None:
    head = build_head(4, 8, HeadOptions(hidden=(6,), hidden_norm=True, logit_norm=True))
    assert all(layer.bias is None for layer in head if isinstance(layer, nn.Linear))


@pytest.mark.parametrize("name", ["input_dropout", "dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_impossible_dropout_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' of the head cannot be {value}"):
        read_options(HeadOptions, {name: value}, "the head")
