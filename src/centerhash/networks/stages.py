"""A backbone in two parts: a frozen trunk, whose maps are computed once, and a tail that is trained on these maps.

Both parts consist of the network's own layers, so that training the tail changes the whole network. Maps are stored as
float16, plain and mirrored.
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

# The features of the two parts may differ from the network's by this share of the largest one, since kernels differ.
_TOLERANCE = 1e-4
# A shard of the cache is a few seconds of work.
_SHARD_BYTES = 32 << 20
_FREE_DISK_BYTES = 1 << 30

# (n, D), flattened
Maps: TypeAlias = NDArray[np.float16]


class _Tokens(nn.Module):
    """The layers of a timm vision transformer before its first block."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        network: Any = self.network
        tokens: Tensor = network.norm_pre(network.patch_drop(network._pos_embed(network.patch_embed(pixels))))
        return tokens


class _TokenPool(nn.Module):
    """The layers of a timm vision transformer after its last block."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        # These layers are used by `forward_head`, and registered so that they are trained.
        for name in ("norm", "attn_pool", "fc_norm"):
            self.add_module(name, getattr(network, name))
        # torch does not register a network in a list, so that its other layers are not trained.
        self._network = [network]

    def forward(self, tokens: Tensor) -> Tensor:
        (network,) = self._network
        features: Tensor = network.forward_head(network.norm(tokens))
        return features


def stages_of(network: nn.Module) -> tuple[list[nn.Module], int]:
    """Return the stages of a network, which run one after the other, and how many of the last are worth training."""
    layers: dict[str, Any] = dict(network.named_children())
    if layers.keys() >= {"conv_stem", "bn1", "blocks", "conv_head", "bn2", "global_pool"}:
        *blocks, last = layers["blocks"]
        top = nn.Sequential(last, layers["conv_head"], layers["bn2"], layers["global_pool"])
        return [nn.Sequential(layers["conv_stem"], layers["bn1"]), *blocks, top], 2
    if layers.keys() >= {"conv1", "bn1", "maxpool", "layer1", "layer2", "layer3", "layer4"}:
        activation = layers.get("relu") or layers["act1"]
        pool = layers.get("avgpool") or layers["global_pool"]
        stem = nn.Sequential(layers["conv1"], layers["bn1"], activation, layers["maxpool"])
        top = nn.Sequential(layers["layer4"], pool, nn.Flatten())
        return [stem, layers["layer1"], layers["layer2"], layers["layer3"], top], 1
    if layers.keys() == {"features", "avgpool", "classifier"}:
        top = nn.Sequential(nn.Flatten(), layers["classifier"])
        return [nn.Sequential(layers["features"], layers["avgpool"]), top], 1
    if layers.keys() >= {"patch_embed", "blocks", "norm", "fc_norm"} and hasattr(network, "_pos_embed"):
        *blocks, last = layers["blocks"]
        return [_Tokens(network), *blocks, nn.Sequential(last, _TokenPool(network))], 2
    raise ConfigError(
        f'{type(network).__name__} has no stages that could be trained apart: `finetune="last"` is for EfficientNet, '
        'ResNet, AlexNet and vision transformers. Use `finetune="all"`.'
    )


@dataclass(frozen=True)
class SplitBackbone:
    """A backbone whose last `stages` are trained on the maps of the others.

    The maps of an image have a `shape`; flattened, they are the features of the trunk.
    """

    whole: Backbone
    trunk: Backbone
    stages: int
    shape: tuple[int, ...]

    def trainable(self) -> tuple[nn.Module, nn.Module]:
        """Return the whole network with its preprocessing, and its tail, from maps to features.

        Depthwise kernels of the tail are frozen, since their gradients are slow on a CPU. They are 4 % of the weights of
        EfficientNet-Lite0's last two stages.
        """
        whole = self.whole.trainable()
        network: Any = whole.network
        tail = nn.Sequential(*stages_of(network)[0][-self.stages :])
        for layer in tail.modules():
            if isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels:
                layer.weight.requires_grad_(False)
        return whole, tail


def split_backbone(backbone: Backbone, stages: int | None = None) -> SplitBackbone:
    """Split a backbone before its last `stages`, by default as many as are worth training.

    The two parts are compared with the whole network on a random image.
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
    tolerance = _TOLERANCE * float(expected.abs().max())
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
    """Maps of image files in two caches, plain and mirrored, and the errors of broken images by row."""

    keys: list[str]
    caches: list[ArrayCache]
    broken: dict[int, ImageError]

    def read(self, rows: Sequence[int], mirrored: bool = False) -> Maps:
        """Return the flattened maps (n, D) of some images."""
        return self.caches[mirrored].read([self.keys[row] for row in rows])


def compute_maps(
    paths: Sequence[Path], flipped: Sequence[int], encoder: Encoder, cache: Path, progress: Progress
) -> MapTable:
    """Compute maps of image files, and of the mirrored rows `flipped`, by an encoder of the trunk, unless cached."""
    trunk = encoder.backbone
    folder = cache / "maps" / trunk.key
    caches = [ArrayCache(Path(f"{folder}{end}"), trunk.features, np.float16) for end in ("", "-mirrored")]
    keys, broken = content_keys(paths)
    missing = []
    for store, rows in zip(caches, (range(len(paths)), flipped), strict=True):
        available = store.available(keys.values())
        missing.append([row for row in rows if row in keys and keys[row] not in available])
    total, count, size = len(paths) + len(flipped), sum(map(len, missing)), 2 * trunk.features
    _check_disk(cache, size * count)
    note = f"{size * count / 1e9:.1f} GB into {cache / 'maps'}" if count else ""
    done = total - count
    progress("maps", done, total, note)
    shard = max(1, _SHARD_BYTES // size)
    for mirrored, (store, rows) in enumerate(zip(caches, missing, strict=True)):
        readable = [row for row in rows if row not in broken]
        for batch in fill_cache(store, paths, keys, readable, encoder, shard, mirrored=bool(mirrored)):
            broken |= batch.broken
            done += batch.size
            progress("maps", done, total, note)
    progress("maps", total, total, note)
    return MapTable([keys.get(row, "") for row in range(len(paths))], caches, broken)


def _check_disk(cache: Path, needed: int) -> None:
    """Raise OutputError if the disk cannot hold the maps."""
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    available = shutil.disk_usage(existing).free
    if needed + _FREE_DISK_BYTES > available:
        raise OutputError(
            f"the maps need {needed / 1e9:.1f} GB in '{cache}', which has {available / 1e9:.1f} GB free: train fewer "
            "stages (`stages=`), use fewer images, or name another folder as `cache=`."
        )
