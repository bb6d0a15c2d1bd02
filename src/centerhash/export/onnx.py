"""A model as one ONNX file: uint8 images (B, H, W, 3) in, `logits` (B, K) and packed `code` (B, ceil(K/8)) out.

Preprocessing, backbone and head are inside; classes, centers and how to bring an image to H x W are in the metadata.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, pack
from centerhash.core.errors import DataError, InputError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.images import squash_and_crop
from centerhash.data.listing import list_images
from centerhash.evaluation import evaluate
from centerhash.export.deployment import deployed
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines import Pixels, TorchEngine, converted
from reproduction.scenes import render_scene

FORMATS = ("onnx",)
METADATA = "centerhash"  # the key of the metadata, a json text
LEAST_AGREEMENT = {"float32": 0.999, "int8": 0.85}  # share of bits that must equal PyTorch's to be written
SCENES = {"float32": 32, "int8": 128}  # emoji scenes, where no images are given
MOST_IMAGES = 512  # of the user's: bounds memory, and more do not change the ranges
_BATCH = 16  # images per pass of the check


@dataclass(frozen=True)
class CodeComparison:
    """How far codes moved: shares of equal bits and of equal codes, and both mAPs where there are labels."""

    images: int
    equal_bits: float
    equal_codes: float
    map_before: float | None = None
    map_after: float | None = None


@dataclass(frozen=True)
class Exported:
    """What `export_model` wrote, and how its codes compare with PyTorch's on images that it was not calibrated on."""

    path: Path
    numbers: Literal["float32", "int8"]
    size: int  # bytes
    images: str  # what it was compared on
    comparison: CodeComparison

    def lines(self) -> list[str]:
        """The result for people."""
        found = self.comparison
        lines = [
            f"{self.path}: {self.numbers}, {self.size / 1e6:.1f} MB",
            f"{found.equal_bits:.2%} of the bits on {self.images} equal PyTorch's "
            f"(at least {LEAST_AGREEMENT[self.numbers]:.1%} must)",
        ]
        if found.map_before is not None and found.map_after is not None and self.numbers == "int8":
            lines.append(f"mAP among them: {found.map_before:.4f} in float32, {found.map_after:.4f} in int8")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The result for machines."""
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

    For mAP every image asks for all others (leave-one-out, whole ranking, divided by the relevant items found).
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
    """Write a model of images as one file, if its codes are PyTorch's on `images` (emoji scenes without any).

    With `int8` the backbone computes in 8 bits: half of the images calibrate its ranges, the other half checks.
    """
    _check_export(format)
    numbers: Literal["float32", "int8"] = "int8" if int8 else "float32"
    backbone = model.backbone()
    network = deployed(model, backbone)
    progress("export", 0, 4, "reading images")
    sample = scene_sample(backbone, SCENES[numbers]) if images is None else image_sample(images, backbone)
    calibration, check = sample.halves() if int8 else (sample, sample)
    progress("export", 1, 4, "converting")
    onnx_bytes = converted(network, backbone.crop, ("logits", "code"), any_batch=True)
    if int8:
        progress("export", 2, 4, "quantising")
        onnx_bytes = _quantised(onnx_bytes, calibration.pixels)
    onnx_bytes = _with_metadata(onnx_bytes, metadata_of(model, backbone))
    progress("export", 3, 4, "comparing")
    comparison = _compared(onnx_bytes, model, backbone, check)
    if comparison.equal_bits < LEAST_AGREEMENT[numbers]:
        other = "Calibrate on images like yours, or export float32" if int8 else "Encode with PyTorch instead"
        raise DataError(
            f"only {comparison.equal_bits:.2%} of the exported model's bits equal PyTorch's on {check.what}, less "
            f"than {LEAST_AGREEMENT[numbers]:.1%}: nothing was written. {other}."
        )
    with atomic(out) as stream:
        stream.write(onnx_bytes)
    progress("export", 4, 4, "written")
    return Exported(Path(out), numbers, len(onnx_bytes), check.what, comparison)


def metadata_of(model: HashModel, backbone: Backbone) -> dict[str, Any]:
    """What a user of the file must know beside its numbers; plain json values."""
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


def _check_export(format: str) -> None:
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    for library in ("onnx", "onnxruntime"):
        require(library)


def _with_metadata(model: bytes, values: dict[str, Any]) -> bytes:
    import onnx

    proto = onnx.load_from_string(model)
    onnx.helper.set_model_props(proto, {METADATA: json.dumps(values, ensure_ascii=False)})
    proto.producer_name, proto.producer_version = "centerhash", __version__
    onnx.checker.check_model(proto)
    serialised: bytes = proto.SerializeToString()
    return serialised


def _compared(onnx_bytes: bytes, model: HashModel, backbone: Backbone, sample: Sample) -> CodeComparison:
    """Run the file as its users will, and compare its codes with PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    engine = TorchEngine(backbone)
    before, after = [], []
    for start in range(0, len(sample.pixels), _BATCH):
        pixels = sample.pixels[start : start + _BATCH]
        before.append(pack(model.encode_features(engine.features(pixels))))
        after.append(session.run(["code"], {"pixels": pixels})[0])
    return compare_codes(np.concatenate(before), np.concatenate(after), model.bits, sample.labels)


# Images to calibrate on and to compare by: the user's own, or emoji scenes


@dataclass(frozen=True)
class Sample:
    """Images (N, H, W, 3) as a backbone sees them, their labels (N, C) where they are known, and what they are."""

    pixels: Pixels
    labels: NDArray[np.bool_] | None
    kind: str

    @property
    def what(self) -> str:
        """The sample in words."""
        return f"{len(self.pixels)} {self.kind}"

    def halves(self) -> tuple[Sample, Sample]:
        """Every second image, and the others."""
        first, second = (
            Sample(self.pixels[start::2], None if self.labels is None else self.labels[start::2], self.kind)
            for start in (0, 1)
        )
        return first, second


def scene_sample(backbone: Backbone, count: int) -> Sample:
    """Emoji scenes with their labels."""
    scenes = [render_scene(index) for index in range(count)]
    names = sorted({label for scene in scenes for label in scene.labels})
    labels = np.array([[name in scene.labels for name in names] for scene in scenes])
    pixels = [
        squash_and_crop(scene.image, backbone.resize, backbone.crop, backbone.interpolation)
        for scene in scenes
    ]
    return Sample(np.stack(pixels), labels, "emoji scenes")


def image_sample(images: Sequence[str | Path], backbone: Backbone) -> Sample:
    """Images out of files, folders and patterns, at most MOST_IMAGES of them, evenly over the list."""
    paths = list_images(images)
    if len(paths) < 2:
        raise DataError(f"{len(paths)} image is too few to export by: give at least 2, better 100.")
    places = np.linspace(0, len(paths) - 1, min(MOST_IMAGES, len(paths))).round().astype(int)
    return Sample(np.stack([pixels_of(paths[place], backbone) for place in places]), None, "images")


# 8 bits: ONNX Runtime's static quantisation, ranges from images


def _quantised(model: bytes, pixels: Pixels) -> bytes:
    """The file with its backbone in 8 bits; pixels (N, H, W, 3) give the ranges of all activations.

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
            # sums of products of 8 and 8 bits overflow on cpu_count without VNNI, of 8 and 7 bits nowhere
            reduce_range=True,
            nodes_to_exclude=_outside_backbone(prepared),
        )
        return small.read_bytes()


def _outside_backbone(path: Path) -> list[str]:
    """Names of the nodes that stay as they are: head and packing, by the scopes that the exporter writes."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes if not node.name.startswith("/backbone/")]


class _Images:
    """Calibration images one by one, as ONNX Runtime asks for them."""

    def __init__(self, pixels: Pixels) -> None:
        self._rest: Iterator[dict[str, Any]] = iter(
            [{"pixels": pixels[row : row + 1]} for row in range(len(pixels))]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)
