"""A model as one ONNX file: uint8 images (B, H, W, 3) in, `logits` (B, K) and packed `code` (B, ceil(K/8)) out.

Preprocessing, backbone and head are inside; classes, centers and how to bring an image to H x W are in the metadata.
The file is compared with PyTorch's codes before it is written.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from centerhash.codes import Packed, check_packed, pack, packed_width
from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.listing import list_images
from centerhash.evaluation import evaluate
from centerhash.methods.losses.base import HeadOutput
from centerhash.methods.registry import METHODS
from centerhash.methods.shallow.projections import LinearHash
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone, import_timm
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines import Pixels, TorchEngine, converted

FORMATS = ("onnx",)
METADATA = "centerhash"  # the key of the metadata, a json text
LEAST_AGREEMENT = {"float32": 0.999, "int8": 0.85}  # share of bits that must equal PyTorch's
MOST_IMAGES = 512  # bounds memory, and more do not change the ranges
_PHOTOS = Path(__file__).parent / "sample_photos"  # compared on by default
_BATCH = 16  # images per pass of the comparison


@dataclass(frozen=True)
class CodeComparison:
    """How two codes of the same images differ: shares of equal bits and codes, and both mAPs if labels are given."""

    images: int
    equal_bits: float
    equal_codes: float
    map_before: float | None = None
    map_after: float | None = None


@dataclass(frozen=True)
class Exported:
    """The file that `export_model` wrote, and how its codes compare with PyTorch's."""

    path: Path
    numbers: Literal["float32", "int8"]
    size: int  # bytes
    images: str  # that it was compared on
    comparison: CodeComparison

    def lines(self) -> list[str]:
        """Describe the result in words."""
        return [
            f"{self.path}: {self.numbers}, {self.size / 1e6:.1f} MB",
            f"{self.comparison.equal_bits:.2%} of the bits on {self.images} equal PyTorch's "
            f"(at least {LEAST_AGREEMENT[self.numbers]:.1%} must)",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as json values."""
        return {
            "path": str(self.path),
            "numbers": self.numbers,
            "size": self.size,
            "compared_on": self.images,
            **asdict(self.comparison),
        }


def compare_codes(
    before: Packed, after: Packed, bits: int, labels: NDArray[np.bool_] | None = None
) -> CodeComparison:
    """Compare two packed codes (N, ceil(K/8)) of the same images; with labels (N, C) also their mAP.

    For mAP every image queries all others (leave-one-out, whole ranking, divided by the relevant items found).
    """
    before, after = check_packed(before, bits, "codes before"), check_packed(after, bits, "codes after")
    if len(before) != len(after):
        raise InputError(f"{len(before):,} and {len(after):,} codes are not of the same images.")
    wrong = np.unpackbits(before ^ after, axis=1, count=bits).sum(axis=1)
    count = len(before)
    equal_bits = 1 - float(wrong.sum()) / (count * bits) if count else 1.0
    equal_codes = float((wrong == 0).mean()) if count else 1.0
    if labels is None or count < 2:
        return CodeComparison(count, equal_bits, equal_codes)
    map_before, map_after = (_leave_one_out(codes, bits, labels) for codes in (before, after))
    return CodeComparison(count, equal_bits, equal_codes, map_before, map_after)


def _leave_one_out(codes: Packed, bits: int, labels: NDArray[np.bool_]) -> float:
    settings: dict[str, Any] = dict.fromkeys(("query_ids", "database_ids"), np.arange(len(codes)))
    settings |= {"bits": bits, "k": len(codes), "exclude_self": True}
    return evaluate(codes, codes, labels, labels, **settings).map_peers


def export_model(
    model: HashModel,
    out: str | Path,
    *,
    format: str = "onnx",
    int8: bool = False,
    images: Sequence[str | Path] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a model of images as one file, if its codes equal PyTorch's on `images` (by default, sample photos).

    With `int8` the backbone computes in 8 bits: half of the images calibrate its ranges, the other half is compared.
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    for library in ("onnx", "onnxruntime"):
        require(library)
    numbers: Literal["float32", "int8"] = "int8" if int8 else "float32"
    backbone = model.backbone()
    network = deployed(model, backbone)
    progress("export", 0, 4, "reading images")
    pixels = image_sample([_PHOTOS] if images is None else images, backbone)
    check, kind = pixels[1::2] if int8 else pixels, "sample photos" if images is None else "images"
    compared_on = f"{len(check)} {kind}"
    progress("export", 1, 4, "converting")
    onnx_bytes = converted(network, backbone.crop, ("logits", "code"), any_batch=True)
    if int8:
        progress("export", 2, 4, "quantizing")
        onnx_bytes = _quantized(onnx_bytes, pixels[::2])
    onnx_bytes = _with_metadata(onnx_bytes, metadata_of(model, backbone))
    progress("export", 3, 4, "comparing")
    comparison = _compared(onnx_bytes, model, backbone, check)
    if comparison.equal_bits < LEAST_AGREEMENT[numbers]:
        other = "Calibrate on images like yours, or export float32" if int8 else "Encode with PyTorch instead"
        raise DataError(
            f"only {comparison.equal_bits:.2%} of the exported model's bits equal PyTorch's on {compared_on}, less "
            f"than {LEAST_AGREEMENT[numbers]:.1%}: nothing was written. {other}."
        )
    with atomic(out) as stream:
        stream.write(onnx_bytes)
    progress("export", 4, 4, "written")
    return Exported(Path(out), numbers, len(onnx_bytes), compared_on, comparison)


def metadata_of(model: HashModel, backbone: Backbone) -> dict[str, Any]:
    """Return what a program needs besides the network, as json values."""
    spec = model.spec
    return {
        "format": 1,
        "version": __version__,
        "method": spec.method,
        "bits": spec.bits,
        "classes": list(spec.classes),
        "centers": model.tensors()["centers"].tolist() if "centers" in model.tensors() else None,
        "directions": model.directions.tolist() if "centers" in model.tensors() else None,
        "label_threshold": spec.label_threshold,
        "backbone": backbone.name,
        "preprocessing": {
            "resize": backbone.resize,
            "crop": backbone.crop,
            "interpolation": backbone.interpolation,
            "shift": list(backbone.shift),  # applied inside, as is the scale
            "scale": list(backbone.scale),
        },
    }


def _with_metadata(model: bytes, values: dict[str, Any]) -> bytes:
    import onnx

    proto = onnx.load_from_string(model)
    onnx.helper.set_model_props(proto, {METADATA: json.dumps(values, ensure_ascii=False)})
    proto.producer_name, proto.producer_version = "centerhash", __version__
    onnx.checker.check_model(proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def _compared(onnx_bytes: bytes, model: HashModel, backbone: Backbone, pixels: Pixels) -> CodeComparison:
    """Run the file by ONNX Runtime, and compare its codes with PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    engine = TorchEngine(backbone)
    before, after = [], []
    for start in range(0, len(pixels), _BATCH):
        batch = pixels[start : start + _BATCH]
        before.append(pack(model.encode_features(engine.features(batch))))
        after.append(session.run(["code"], {"pixels": batch})[0])
    return compare_codes(np.concatenate(before), np.concatenate(after), model.bits)


def image_sample(images: Sequence[str | Path], backbone: Backbone) -> Pixels:
    """Read images (N, H, W, 3) of files, folders and patterns, at most MOST_IMAGES, evenly over the list."""
    paths = list_images(images)
    if len(paths) < 2:
        raise DataError(f"{len(paths)} image is too few to export by: give at least 2, better 100.")
    rows = np.linspace(0, len(paths) - 1, min(MOST_IMAGES, len(paths))).round().astype(int)
    return np.stack([pixels_of(paths[row], backbone) for row in rows])


def _quantized(model: bytes, pixels: Pixels) -> bytes:
    """Quantize the backbone to 8 bits; pixels (N, H, W, 3) determine the ranges of all activations.

    Weights have a scale per channel. The head stays in float32: it is small, and its signs are the codes.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, prepared, small = (folder / f"{step}.onnx" for step in ("plain", "prepared", "small"))
        plain.write_bytes(model)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            small,
            _Images(pixels),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            # sums of products of 8 and 8 bits overflow on CPUs without VNNI, of 8 and 7 bits nowhere
            reduce_range=True,
            nodes_to_exclude=_outside_backbone(prepared),
        )
        return small.read_bytes()


def _outside_backbone(path: Path) -> list[str]:
    """List the nodes that are not quantized: head and packing, by the scopes that the exporter writes."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes if not node.name.startswith("/backbone/")]


class _Images:
    """Calibration images one by one, in ONNX Runtime's protocol."""

    def __init__(self, pixels: Pixels) -> None:
        self._rest: Iterator[dict[str, Any]] = iter(
            [{"pixels": pixels[row : row + 1]} for row in range(len(pixels))]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)


# The network


class Hyperplanes(nn.Module):
    """A shallow hash function of hyperplanes: features (B, D), normalized if `unit`, to values (B, K)."""

    projection: Tensor
    offset: Tensor

    def __init__(self, function: LinearHash) -> None:
        super().__init__()
        self.unit = bool(function.unit)
        self.register_buffer("projection", torch.from_numpy(function.projection))
        self.register_buffer("offset", torch.from_numpy(function.offset))

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, computed in float64 as in training."""
        wide = features.double()
        if self.unit:
            lengths = wide.square().sum(dim=1, keepdim=True).sqrt()
            wide = wide / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        return HeadOutput((wide @ self.projection - self.offset).float())


class Deployed(nn.Module):
    """Map images (B, H, W, 3) uint8 to logits (B, K) and code (B, ceil(K/8)) uint8, packed as by `codes.pack`."""

    powers: Tensor

    def __init__(self, backbone: nn.Module, encoder: nn.Module, bits: int) -> None:
        super().__init__()
        self.backbone, self.encoder, self.bits = backbone, encoder, bits
        self.register_buffer("powers", 2 ** torch.arange(7, -1, -1, dtype=torch.int32))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """A bit is set where its logit is at least 0; bits past K are 0."""
        output: HeadOutput = self.encoder(self.backbone(pixels))
        logits = output.logits
        bits = functional.pad((logits >= 0).to(torch.int32), (0, -self.bits % 8))
        code = (bits.reshape(-1, packed_width(self.bits), 8) * self.powers).sum(dim=2)
        return logits, code.to(torch.uint8)


def deployed(model: HashModel, backbone: Backbone) -> Deployed:
    """Build the whole model as one network in eval mode; ConfigError for shallow methods other than hyperplanes."""
    encoder = _encoder(model)  # first: it may raise, and loading is slow
    network = backbone.load()
    fix_padding(network, backbone.crop)
    return Deployed(network, encoder, model.bits).eval()


def _encoder(model: HashModel) -> nn.Module:
    network = model.network
    if isinstance(network, nn.Module):
        return network
    if not isinstance(network, LinearHash):
        shallow = {name: row.shallow_class() for name, row in METHODS.items() if row.family == "shallow"}
        linear = [name for name in METHODS if issubclass(shallow.get(name, LinearHash), LinearHash)]
        raise ConfigError(
            f"a model of method '{model.spec.method}' cannot be exported, since it is not a network of plain layers: "
            f"encode with the model itself, or train one of {', '.join(linear)}."
        )
    return Hyperplanes(network)


def fix_padding(network: nn.Module, size: int) -> None:
    """Replace, in place, paddings that are computed from the image's size by those for images of `size`.

    TensorFlow's "same" padding becomes a dozen operators per layer in a traced network otherwise, which no compiler
    removes where the batch is free.
    """
    layers = import_timm().layers
    inputs: dict[nn.Module, tuple[int, int]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda layer, arguments: inputs.update({layer: arguments[0].shape[-2:]})
        )
        for module in network.modules()
        if isinstance(module, layers.Conv2dSame)
    ]
    with torch.inference_mode():
        network(torch.zeros(1, size, size, 3, dtype=torch.uint8))
    for handle in handles:
        handle.remove()
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child not in inputs:
                continue
            layer = cast(nn.Conv2d, child)
            edges = zip(inputs[child], layer.kernel_size, layer.stride, layer.dilation, strict=True)
            height, width = (layers.get_same_padding(*edge) for edge in edges)
            sides = (width // 2, width - width // 2, height // 2, height - height // 2)
            parent.add_module(name, nn.Sequential(nn.ZeroPad2d(sides), _plain(layer)))


def _plain(layer: nn.Conv2d) -> nn.Conv2d:
    """Return the same convolution without padding."""
    plain = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        cast(tuple[int, int], layer.kernel_size),
        cast(tuple[int, int], layer.stride),
        dilation=cast(tuple[int, int], layer.dilation),
        groups=layer.groups,
        bias=layer.bias is not None,
    )
    plain.load_state_dict(layer.state_dict())
    return plain.eval()
