"""Any network of timm by its name, e.g. `timm:resnet18` or, with the tag of its weights, `timm:resnet18.a1_in1k`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from centerhash.core.errors import ConfigError, DataError
from centerhash.networks.backbones.backbone import Backbone, Channels
from centerhash.networks.backbones.imports import import_timm
from centerhash.networks.backbones.networks import TIMM_POOLS
from centerhash.networks.backbones.sources import Download, Hub, WeightSource
from centerhash.networks.backbones.weights import load_weights


def timm_backbone(name: str, pretrained: bool, crop: int | None = None, pool: str | None = None) -> Backbone:
    """The row of a network of timm: preprocessing as timm publishes it unless `crop` and `pool` say otherwise."""
    row = _published(name, pretrained)
    chosen = row.seen_as(crop, pool)
    if chosen != row:
        _check_choice(name, row, chosen)
    return chosen


def _check_choice(name: str, row: Backbone, chosen: Backbone) -> None:
    """Refuse a crop or pooling for which the network is not made, such as one that goes on after its pooling."""
    shape, reason = None, ""
    try:
        with torch.device("meta"):
            published, network = _create(name), _create(name, **_pooling(chosen.pool)).eval()
            if _shapes(network) == _shapes(published):  # else the published weights would not fit
                shape = tuple(network(torch.empty(1, 3, chosen.crop, chosen.crop)).shape)
    except (
        AssertionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # what networks raise, each in its way
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
    if shape != (1, chosen.features):
        raise ConfigError(
            f"{row.name} is not made for a crop of {chosen.crop} and pool {chosen.pool}{reason}: leave them out for its "
            f"own, {row.crop} and {row.pool}."
        )


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _pooling(pool: str | None) -> dict[str, str]:
    """The setting of timm for a pooling; none for the network's own."""
    return {} if pool in (None, "mean") else {"global_pool": TIMM_POOLS[pool]}


@cache
def _published(name: str, pretrained: bool) -> Backbone:
    """The row of a network of timm as it is published."""
    _check_name(name)
    with torch.device("meta"):  # shapes without numbers: quick for networks of any size
        network = _create(name).eval()
        settings = _settings(network)
        depth, height, width = settings["input_size"]
        if (depth, height) != (3, width):
            raise ConfigError(
                f"timm's '{name}' takes images of {settings['input_size']}: choose one for squares in colour."
            )
        features = network(torch.empty(1, depth, height, width)).shape
    poolings = [
        layer.pool_type
        for layer in network.modules()
        if isinstance(layer, import_timm().layers.SelectAdaptivePool2d)
    ]
    if len(features) != 2:
        raise ConfigError(f"timm's '{name}' gives features of shape {tuple(features)}, not (1, D).")
    return Backbone(
        name=f"timm:{name}",
        width=features[1],
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        resize=round(height / settings["crop_pct"]),
        crop=height,
        shift=_per_pixel(settings["mean"]),
        scale=_per_pixel(settings["std"]),
        weights=_source(name, settings) if pretrained else None,
        build=partial(_build_published if pretrained else _build_own, name),
        pool="mean" if poolings == ["avg"] else None,
        interpolation=settings["interpolation"],
        fold=False,  # right only where layers are called in the order in which they are listed
    )


def _check_name(name: str) -> None:
    timm = import_timm()
    names = timm.list_pretrained() if "." in name else timm.list_models()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'timm:{near}' for near in nearest)}?" if nearest else ""
        raise ConfigError(
            f"timm has no network '{name}'.{hint} `timm.list_models('*{name[:6]}*')` in Python lists names; "
            "there are over a thousand."
        )


def _create(name: str, **settings: Any) -> nn.Module:
    network: nn.Module = import_timm().create_model(name, num_classes=0, **settings)
    return network


def _settings(network: nn.Module) -> Mapping[str, Any]:
    """What timm knows of a network and its weights."""
    settings: Mapping[str, Any] = network.pretrained_cfg  # type: ignore[assignment]  # set by timm
    return settings


def _per_pixel(values: tuple[float, ...]) -> Channels:
    red, green, blue = (255.0 * value for value in values)
    return red, green, blue


def _source(name: str, settings: Mapping[str, Any]) -> WeightSource:
    if settings.get("hf_hub_id"):
        return Hub(settings["hf_hub_id"])
    if settings.get("url"):
        return Download(settings["url"])
    raise ConfigError(
        f"timm publishes no weights of '{name}': pass a file as `weights=`, pass `pretrained=False`, or choose another."
    )


def _build_published(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """Weights as timm publishes them, through timm: it knows which layers some files name otherwise."""
    settings = {"file": str(weights), "custom_load": False}
    try:
        return _create(name, pretrained=True, pretrained_cfg_overlay=settings, **_pooling(pool))
    # what timm, torch and safetensors raise for files that were cut or hold something else
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"'{weights}' is damaged or does not hold the weights of timm's '{name}': {reason} Delete the file to "
            "fetch it again, or pass another one as `weights=`."
        ) from None


def _build_own(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """Weights out of a user's file, or random ones."""
    network = _create(name, **_pooling(pool))
    if weights is not None:
        classifier = _settings(network)["classifier"] or ()
        load_weights(network, weights, [classifier] if isinstance(classifier, str) else classifier)
    return network
