"""Backbone: one network with its preprocessing, its weights, and a key for the features that it makes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.networks.backbones.sources import WeightSource

if TYPE_CHECKING:
    import torch
    from torch import nn

Channels: TypeAlias = tuple[float, float, float]  # red, green, blue

# The preprocessing of EfficientNet-Lite, the first backbone: keys do not name it, which keeps old caches valid.
LITE_SHIFT: Channels = (127.0, 127.0, 127.0)
LITE_SCALE: Channels = (128.0, 128.0, 128.0)

POOLS = (
    "mean",
    "max",
    "mean+max",
)  # from a map (B, width, H, W) to features; the last one has the mean first
LEAST_CROP = 64  # AlexNet's last pooling has nothing left of less


@dataclass(frozen=True)
class Backbone:
    """One network: what it needs as input, what it gives, and how to load it."""

    name: str
    width: int  # features of one pooling: the channels of the last map, where one is pooled
    parameters: int  # without the classifier
    resize: int  # the whole frame is squashed to resize x resize, as the paper does
    crop: int  # then the middle crop x crop is kept; crop = resize: the whole frame
    shift: Channels  # pixels (0..255) become (pixel - shift) / scale
    scale: Channels
    weights: WeightSource | None  # None: random
    build: Callable[
        [Path | None, str | None], nn.Module
    ]  # of the file of the weights (None: random) and the pool
    pool: str | None = None  # of the last map, one of POOLS; None: the network's own way, which is no choice
    interpolation: str = "bilinear"
    fold: bool = True  # whether folding its batch norms is known to be right
    seed: int = 0  # of random weights
    megabytes: int | None = None  # of the published weights, where that is known

    @property
    def features(self) -> int:
        """D, the number of features."""
        return self.width * (2 if self.pool == "mean+max" else 1)

    @property
    def key(self) -> str:
        """Names the features that this network makes: changes with its weights and its preprocessing.

        Needs the weights, so that it may download them.
        """
        preprocessing = (self.interpolation, self.shift, self.scale)
        digest = _digest(repr(preprocessing).encode())
        how = "" if preprocessing == ("bilinear", LITE_SHIFT, LITE_SCALE) else f"-{digest}"
        pool = "" if self.pool in (None, "mean") else f"-{self.pool}"  # the mean was all there was at first
        weights = f"random{self.seed}" if self.weights is None else _file_digest(self.weights.fetch())
        return f"{self.name.replace(':', '-')}-{self.resize}-{self.crop}{how}{pool}-{weights}"

    @property
    def is_here(self) -> bool:
        """Whether the network can be loaded without a download."""
        return self.weights is None or self.weights.find() is not None

    def seen_as(self, crop: int | None = None, pool: str | None = None) -> Backbone:
        """The same network with another crop of its frame and another pooling; None leaves what it has."""
        if crop is not None and not LEAST_CROP <= crop <= self.resize:
            raise ConfigError(
                f"{self.name} reads a frame of {self.resize} x {self.resize}: `crop={crop}` must be {LEAST_CROP} to "
                f"{self.resize}, which is the whole frame."
            )
        if pool is not None and pool not in POOLS:
            raise unknown_name("pool", pool, POOLS)
        if pool is not None and self.pool is None:
            raise ConfigError(
                f"{self.name} has its own way from its last map to features: leave out `pool={pool}`."
            )
        return dataclasses.replace(self, crop=crop or self.crop, pool=pool or self.pool)

    def load(self, device: torch.device | str = "cpu") -> nn.Module:
        """The network in eval mode, uint8 images (B, H, W, 3) in, features (B, D) out."""
        from centerhash.networks.backbones.layers import fold_batch_norms

        network = self._network().eval()
        if self.fold:
            fold_batch_norms(network)
        return network.to(device)

    def trainable(self, device: torch.device | str = "cpu") -> nn.Module:
        """The network in train mode with its batch norms, uint8 images (B, H, W, 3) in, features (B, D) out."""
        return self._network().train().to(device)

    def _network(self) -> nn.Module:
        import torch

        from centerhash.networks.backbones.layers import Normalised

        path = None if self.weights is None else self.weights.fetch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Normalised(self.build(path, self.pool), self.shift, self.scale)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return network


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _digest_of_file(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest_of_file(path: Path, size: int, changed: int) -> str:
    """Digest of a file's bytes, computed again only when its size or its time of change differ."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
