"""A backbone in two: a trunk that stays as it is, and a tail that is trained on maps of the trunk, computed once.

Both are made of the network's own layers: training the tail changes the whole network. Maps are kept on disk as float16,
plain and mirrored.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.errors import ConfigError, ImageError, OutputError
from centerhash.core.progress import Progress
from centerhash.networks.backbones import Backbone
from centerhash.networks.cache import ArrayCache
from centerhash.networks.encoder import Encoder, content_keys, fill_cache

# of the largest feature, between the network and its two parts: other kernels round otherwise
_AGREEMENT = 1e-4
_SHARD_BYTES = 32 << 20  # a few seconds of work
_SPARE_BYTES = 1 << 30  # of the disk, which are left alone

Maps: TypeAlias = NDArray[np.float16]  # (n, D), flattened


class _Tokens(nn.Module):
    """All that a vision transformer of timm does before its first block."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        network: Any = self.network
        tokens: Tensor = network.norm_pre(network.patch_drop(network._pos_embed(network.patch_embed(pixels))))
        return tokens


class _TokenPool(nn.Module):
    """All that a vision transformer of timm does after its last block."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.norm = network.norm
        for name in ("attn_pool", "fc_norm"):  # so that they are trained
            self.add_module(name, getattr(network, name))
        self._network = [network]  # in a list: its other layers are no part of this one

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self._network[0].forward_head(self.norm(tokens))
        return features


def stages_of(network: nn.Module) -> tuple[list[nn.Module], int]:
    """Return a network as stages to be run one after the other, and how many of the last are worth training.

    ConfigError for a network of another family than EfficientNet, ResNet, AlexNet and vision transformers.
    """
    layers: dict[str, Any] = dict(network.named_children())
    if layers.keys() >= {"conv_stem", "bn1", "blocks", "conv_head", "bn2", "global_pool"}:
        *blocks, last = layers["blocks"]
        top = nn.Sequential(last, layers["conv_head"], layers["bn2"], layers["global_pool"])
        return [nn.Sequential(layers["conv_stem"], layers["bn1"]), *blocks, top], 2
    if layers.keys() >= {"conv1", "bn1", "maxpool", "layer1", "layer2", "layer3", "layer4"}:
        stem = nn.Sequential(
            layers["conv1"], layers["bn1"], layers.get("relu") or layers["act1"], layers["maxpool"]
        )
        top = nn.Sequential(layers["layer4"], layers.get("avgpool") or layers["global_pool"], nn.Flatten())
        return [stem, layers["layer1"], layers["layer2"], layers["layer3"], top], 1
    if layers.keys() == {"features", "avgpool", "classifier"}:
        return [
            nn.Sequential(layers["features"], layers["avgpool"]),
            nn.Sequential(nn.Flatten(), layers["classifier"]),
        ], 1
    if layers.keys() >= {"patch_embed", "blocks", "norm", "fc_norm"} and hasattr(network, "_pos_embed"):
        *blocks, last = layers["blocks"]
        return [_Tokens(network), *blocks, nn.Sequential(last, _TokenPool(network))], 2
    raise ConfigError(
        f'{type(network).__name__} has no stages that could be trained apart: `finetune="last"` is for EfficientNet, '
        'ResNet, AlexNet and vision transformers. Use `finetune="all"`.'
    )


@dataclass(frozen=True)
class SplitBackbone:
    """A backbone whose last `stages` are trained on the maps of the others."""

    whole: Backbone
    # its features are the maps, flattened
    trunk: Backbone
    stages: int
    # of the map of one image
    shape: tuple[int, ...]

    def trainable(self) -> tuple[nn.Module, nn.Module]:
        """Return the whole network with its preprocessing, and the tail that is a part of it: maps to features.

        Depthwise kernels of the tail stay as they are: they are 4 % of the weights of EfficientNet-Lite0's last two
        stages, and their gradients are slow on a CPU.
        """
        whole = self.whole.trainable()
        network: Any = whole.network
        tail = nn.Sequential(*stages_of(network)[0][-self.stages :])
        for layer in tail.modules():
            if isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels:
                layer.weight.requires_grad_(False)
        return whole, tail


def split_backbone(backbone: Backbone, stages: int | None = None) -> SplitBackbone:
    """Split a backbone before its last `stages`; None: as many as its family is worth.

    The two parts are compared with the whole once, on a random image.
    """
    network: Any = backbone.trainable().eval()
    parts, usual = stages_of(network.network)
    count = usual if stages is None else stages
    if count >= len(parts):
        raise ConfigError(
            f"{backbone.name} has {len(parts)} stages: `stages={count}` must be 1 to {len(parts) - 1}. Use "
            '`finetune="all"` to train all of them.'
        )
    pixels = torch.randint(0, 256, (1, backbone.crop, backbone.crop, 3), dtype=torch.uint8)
    with torch.inference_mode():
        expected = network(pixels)
        network.network = nn.Sequential(*parts[:-count])
        maps = network(pixels)
        features = nn.Sequential(*parts[-count:])(maps)
    tolerance = _AGREEMENT * float(expected.abs().max())
    if features.shape != expected.shape or not float((features - expected).abs().max()) <= tolerance:
        raise ConfigError(
            f'the stages of {backbone.name} do not add up to the network: use `finetune="all"`.'
        )

    def build(_: Backbone, weights: Path | None) -> nn.Module:
        parts, _usual = stages_of(backbone.build(backbone, weights))
        return nn.Sequential(*parts[:-count], nn.Flatten())

    trunk = dataclasses.replace(
        backbone, name=f"{backbone.name}-but-{count}", width=maps[0].numel(), pool=None, build=build
    )
    return SplitBackbone(backbone, trunk, count, tuple(maps.shape[1:]))


class MapTable(NamedTuple):
    """Maps of image files by their content keys, plain and mirrored ones; images that cannot be read by their row."""

    keys: list[str]
    plain: ArrayCache
    mirrored: ArrayCache
    broken: dict[int, ImageError]

    def read(self, rows: Sequence[int], mirrored: bool = False) -> Maps:
        """Return maps (n, D) of some images."""
        return (self.mirrored if mirrored else self.plain).read([self.keys[row] for row in rows])


def compute_maps(
    paths: Sequence[Path], flipped: Sequence[int], encoder: Encoder, cache: Path, progress: Progress
) -> MapTable:
    """Return the maps of image files, and of the rows `flipped` the mirrored ones too; those in the cache are read.

    `encoder` is one of the trunk.
    """
    trunk = encoder.backbone
    folder = cache / "maps" / trunk.key
    caches = [ArrayCache(Path(f"{folder}{end}"), trunk.features, np.float16) for end in ("", "-mirrored")]
    keys, broken = content_keys(paths)
    missing = []
    for store, rows in zip(caches, (range(len(paths)), flipped), strict=True):
        known = store.available(keys.values())
        missing.append([row for row in rows if row in keys and keys[row] not in known])
    total, count, size = len(paths) + len(flipped), sum(map(len, missing)), 2 * trunk.features
    _check_disk(cache, size * count)
    note = f"{size * count / 1e9:.1f} GB into {cache / 'maps'}" if count else ""
    done = total - count
    progress("maps", done, total, note)
    shard = max(1, _SHARD_BYTES // size)
    for mirrored, (store, rows) in enumerate(zip(caches, missing, strict=True)):
        readable = [row for row in rows if row not in broken]
        for step in fill_cache(store, paths, keys, readable, encoder, shard, mirrored=bool(mirrored)):
            broken |= step.broken
            done += step.seen
            progress("maps", done, total, note)
    progress("maps", total, total, note)
    return MapTable([keys.get(row, "") for row in range(len(paths))], caches[0], caches[1], broken)


def _check_disk(cache: Path, needed: int) -> None:
    """Reject work whose result the disk cannot hold, before it starts."""
    home = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(home).free
    if needed + _SPARE_BYTES > free:
        raise OutputError(
            f"the maps need {needed / 1e9:.1f} GB in '{cache}', which has {free / 1e9:.1f} GB free: train fewer stages "
            "(`stages=`), use fewer images, or name another folder as `cache=`."
        )
