"""Export a model of PyTorch as model.onnx, the one file that `PortableModel` runs.

Preprocessing, backbone and head are inside; classes, centers and how to bring an image to H x W are in the metadata.
The file is compared with PyTorch's codes before it is written.
"""

from __future__ import annotations

import copy
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
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.listing import list_images
from centerhash.methods.losses.base import CentralObjective, HeadOutput
from centerhash.methods.losses.central import ICS, center_similarities
from centerhash.methods.losses.softmax import IcsSoftmax
from centerhash.methods.shallow.base import ROUNDING, ShallowHash
from centerhash.methods.shallow.kernel import KernelHash
from centerhash.methods.shallow.projections import LinearHash, Sh
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.model.portable import with_metadata
from centerhash.model.spec import PORTABLE, Shares, encoded_centers, encoded_directions
from centerhash.networks.backbones import Backbone, import_timm
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines import Pixels, converted, traced

LEAST_AGREEMENT = {"float32": 0.999, "int8": 0.85}  # share of bits that must equal PyTorch's
MOST_IMAGES = 512  # bounds memory, and more do not change the ranges
_PHOTOS = Path(__file__).parent / "sample_photos"  # compared on by default
_BATCH = 16  # images per pass of the comparison
_DRAWN = 256  # rows of random features that a model without a backbone is compared on
_SMALL = 256  # numbers of a tensor that are stored as they are
_TINY = float(np.finfo(np.float32).tiny)  # a negative value must not round to 0, whose sign is +1


@dataclass(frozen=True)
class CodeComparison:
    """How two codes of the same images differ: shares of equal bits and codes."""

    images: int
    equal_bits: float
    equal_codes: float


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


def compare_codes(before: Packed, after: Packed, bits: int) -> CodeComparison:
    """Compare two packed codes (N, ceil(K/8)) of the same images."""
    before, after = check_packed(before, bits, "codes before"), check_packed(after, bits, "codes after")
    if len(before) != len(after):
        raise InputError(f"{len(before):,} and {len(after):,} codes are not of the same images.")
    wrong = np.unpackbits(before ^ after, axis=1, count=bits).sum(axis=1)
    count = len(before)
    equal_bits = 1 - float(wrong.sum()) / (count * bits) if count else 1.0
    equal_codes = float((wrong == 0).mean()) if count else 1.0
    return CodeComparison(count, equal_bits, equal_codes)


def export_model(
    model: Model,
    out: str | Path,
    *,
    int8: bool = False,
    images: Sequence[str | Path] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a model as one file, if its codes equal PyTorch's on `images` (by default, sample photos).

    With `int8` the backbone computes in 8 bits: half of the images calibrate its ranges, the other half is compared. A
    model of features is compared on random ones.
    """
    if not isinstance(model, HashModel):
        raise ConfigError(f"{model!r} is an ONNX file already: copy the {PORTABLE} in '{model.folder}'.")
    for library in ("onnx", "onnxruntime"):
        require(library)
    numbers: Literal["float32", "int8"] = "int8" if int8 else "float32"
    backbone = None
    if model.spec.backbone is not None or images is not None or int8:
        backbone = model.backbone()  # a clear error for a model of features
    network = deployed(model, backbone)
    progress("export", 0, 4, "reading images")
    if backbone is None:
        draw = np.random.default_rng(0).normal(size=(_DRAWN, model.spec.features))
        inputs: NDArray[Any] = draw.astype(np.float32)
        kind = "random rows of features"
    else:
        inputs = image_sample([_PHOTOS] if images is None else images, backbone)
        kind = "sample photos" if images is None else "images"
    check = inputs[1::2] if int8 else inputs
    compared_on = f"{len(check)} {kind}"
    progress("export", 1, 4, "converting")
    onnx_bytes = _converted(network, backbone, model.spec.features)
    if int8:
        progress("export", 2, 4, "quantizing")
        onnx_bytes = _quantized(onnx_bytes, inputs[::2])
    onnx_bytes = with_metadata(_compact(onnx_bytes), metadata_of(model, backbone))
    progress("export", 3, 4, "comparing")
    comparison = _compared(onnx_bytes, network, model, check)
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


def metadata_of(model: HashModel, backbone: Backbone | None) -> dict[str, Any]:
    """Return the fields of `PortableSpec` besides those of the file, as json values."""
    spec, has_centers = model.spec.without_paths(), model.has_centers
    shares = shares_of(model) if has_centers else None
    values: dict[str, Any] = {
        "version": __version__,
        "method": spec.method,
        "bits": spec.bits,
        "features": spec.features,
        "classes": list(spec.classes),
        "centers": encoded_centers(model.centers.numpy().astype(np.int8)) if has_centers else None,
        "directions": encoded_directions(model.directions.float().numpy()) if has_centers else None,
        "label_threshold": spec.label_threshold,
        "visual_bits": model.visual_bits,
        "probabilities": model.has_probabilities,
        "shares": None if shares is None else shares.model_dump(),
        "seed": spec.seed,
        "digest": model.digest,
    }
    if backbone is not None:
        by_softmax = shares is not None and shares.by == "softmax"
        visual = 0 if model.visual_bits is None else packed_width(model.visual_bits)
        values |= {
            "features": spec.bits + visual + len(spec.classes) * (model.has_probabilities + by_softmax),
            "backbone": backbone.name,
            "backbone_key": spec.backbone_key,
            "preprocessing": {
                "resize": backbone.resize,
                "crop": backbone.crop,
                "interpolation": backbone.interpolation,
                "shift": list(backbone.shift),  # applied inside, as is the scale
                "scale": list(backbone.scale),
            },
        }
    return values


def shares_of(model: HashModel) -> Shares:
    """Return how a central model computes the weights of labels; ConfigError if numpy cannot compute them.

    The solvers of ICS that descend step by step are replaced by the exact one: `pgd` converges to it, `printed` does
    not, so that its reported weights differ from those it was trained with.
    """
    objective = model.objective
    kind = type(objective)
    if kind.weights is CentralObjective.weights:
        if kind.slot_weights is CentralObjective.slot_weights:
            return Shares(by="equal")
        if isinstance(objective, IcsSoftmax) and kind.slot_weights is IcsSoftmax.slot_weights:
            return Shares(by="softmax")
        if isinstance(objective, ICS) and kind.slot_weights is ICS.slot_weights:
            scale, form = objective.scale, objective.options.form
            return Shares(by="ics", beta=objective.beta, entropy=objective.entropy, scale=scale, form=form)
    raise ConfigError(
        f"a model of method '{model.spec.method}' cannot be exported: {kind.__name__} computes the weights of labels "
        "in its own way. Remove its slot_weights, or use the model itself."
    )


def _converted(network: Deployed, backbone: Backbone | None, features: int) -> bytes:
    if backbone is not None:
        return converted(network, backbone.crop, network.outputs, any_batch=True)
    return traced(network, torch.zeros(2, features), "features", network.outputs)


def _compact(model: bytes) -> bytes:
    """Store tensors in half or single precision if that loses nothing; they are cast back inside the network."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    graph, casts = proto.graph, []
    for place, tensor in enumerate(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if values.dtype not in (np.float32, np.float64) or values.size < _SMALL:
            continue
        kinds = (kind for kind in (np.float16, np.float32) if kind != values.dtype and _holds(values, kind))
        kind = next(kinds, None)
        if kind is not None:
            small = values.astype(kind)
            name, stored = tensor.name, f"{tensor.name}_stored"
            graph.initializer[place].CopyFrom(numpy_helper.from_array(small, stored))
            casts.append(
                onnx.helper.make_node("Cast", [stored], [name], f"{name}_cast", to=tensor_type(values))
            )
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    proto.producer_name, proto.producer_version = "centerhash", __version__
    onnx.checker.check_model(proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def _holds(values: NDArray[Any], kind: type[np.floating[Any]]) -> bool:
    """Whether a narrower type holds all values exactly; most tensors fail on a few, and tiny ones are slow to round."""
    flat = values.ravel()
    with np.errstate(over="ignore"):
        return all(np.array_equal(part.astype(kind).astype(part.dtype), part) for part in (flat[:1000], flat))


def tensor_type(values: NDArray[Any]) -> int:
    """Return ONNX's number of an array's type."""
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(values.dtype))


def _compared(onnx_bytes: bytes, network: Deployed, model: HashModel, inputs: NDArray[Any]) -> CodeComparison:
    """Run the file by ONNX Runtime, and compare its codes with PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    before, after = [], []
    for start in range(0, len(inputs), _BATCH):
        batch = inputs[start : start + _BATCH]
        before.append(pack(model.encode_features(network.features(batch))))
        after.append(session.run(["code"], {name: batch})[0])
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


def _unit(features: Tensor, unit: bool) -> Tensor:
    """Features (B, D) in float64, as `shallow.base.prepare`."""
    wide = features.double()
    if not unit:
        return wide
    lengths = wide.square().sum(dim=1, keepdim=True).sqrt()
    return wide / torch.where(lengths > 0, lengths, torch.ones_like(lengths))


class Affine(nn.Module):
    """Inputs (B, M) to inputs @ weights - offset (B, K), as `shallow.base.affine`."""

    weights: Tensor
    offset: Tensor
    lengths: Tensor

    def __init__(self, weights: NDArray[Any], offset: NDArray[Any]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(weights.astype(np.float64)))
        self.register_buffer("offset", torch.from_numpy(offset.astype(np.float64)))
        self.register_buffer("lengths", self.weights.square().sum(dim=0).sqrt())

    def forward(self, inputs: Tensor) -> Tensor:
        """Values (B, K); what is only rounding is exactly 0."""
        values = inputs @ self.weights - self.offset
        sizes = inputs.square().sum(dim=1, keepdim=True).sqrt() * self.lengths + self.offset.abs()
        return torch.where(values.abs() <= ROUNDING * sizes, torch.zeros_like(values), values)


class Hyperplanes(nn.Module):
    """LSH, ITQ: features (B, D), normalized if `unit`, to their distances (B, K) from hyperplanes."""

    def __init__(self, function: LinearHash) -> None:
        super().__init__()
        self.unit, self.affine = bool(function.unit), Affine(function.projection, function.offset)

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64 as in training."""
        return HeadOutput(self.affine(_unit(features, self.unit)))


class Sinusoids(nn.Module):
    """SH: features (B, D) to sinusoids (B, K) along principal axes."""

    minima: Tensor
    axes: Tensor
    frequencies: Tensor

    def __init__(self, function: Sh) -> None:
        super().__init__()
        self.unit = bool(function.unit)
        self.affine = Affine(function.projection, np.zeros_like(function.minima))
        for name in ("minima", "axes", "frequencies"):
            self.register_buffer(name, torch.from_numpy(np.array(getattr(function, name))))

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64."""
        places = self.affine(_unit(features, self.unit)) - self.minima
        return HeadOutput(torch.sin(np.pi / 2 + self.frequencies * places.index_select(1, self.axes)))


class Kernels(nn.Module):
    """BRE, KSH, SDH: features (B, D) to weighted sums (B, K) of a kernel at anchors (M, D)."""

    anchors: Tensor

    def __init__(self, function: KernelHash) -> None:
        super().__init__()
        self.unit, self.sigma = bool(function.unit), float(function.sigma)
        self.affine = Affine(function.weights, function.offset)
        self.register_buffer("anchors", torch.from_numpy(function.anchors.astype(np.float64)))

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64."""
        inputs = _unit(features, self.unit)
        kernel = inputs @ self.anchors.T
        if self.sigma:  # 0 for the linear kernel
            lengths = inputs.square().sum(dim=1, keepdim=True) + self.anchors.square().sum(dim=1)
            kernel = torch.exp((lengths - 2 * kernel).clamp_min(0) / (-2 * self.sigma**2))
        return HeadOutput(self.affine(kernel))


class Wide(nn.Module):
    """A head that computes in float64, so that its signs do not depend on the batch."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = copy.deepcopy(head).double()

    def forward(self, features: Tensor) -> HeadOutput:
        """Outputs in float64."""
        output: HeadOutput = self.head(features.double())
        return output


class ShareLogits(nn.Module):
    """ICS-softmax: outputs of a head to values (B, C) whose softmax over the labels are their weights."""

    centers: Tensor

    def __init__(self, objective: IcsSoftmax) -> None:
        super().__init__()
        self.register_buffer("centers", objective.centers)
        self.sharpness = objective.scale / objective.entropy
        self.share_entropy = objective.options.share_entropy

    def forward(self, output: HeadOutput) -> Tensor:
        """By the class logits if there are some, otherwise by the similarities to the centers."""
        if output.class_logits is not None:
            return output.class_logits / self.share_entropy
        return self.sharpness * center_similarities(output.logits, self.centers.to(output.logits.dtype))


def packed_signs(logits: Tensor, bits: int) -> Tensor:
    """Pack the signs of logits (B, K) as `codes.pack`: a bit is set if its logit is at least 0."""
    powers = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32)
    signs = functional.pad((logits >= 0).to(torch.int32), (0, -bits % 8))
    return (signs.reshape(-1, packed_width(bits), 8) * powers).sum(dim=2).to(torch.uint8)


class Deployed(nn.Module):
    """The whole model as one network: images (B, H, W, 3) uint8, or features (B, D), to the named `outputs`."""

    def __init__(
        self,
        backbone: nn.Module | None,
        encoder: nn.Module,
        bits: int,
        visual: LinearHash | None = None,
        shares: IcsSoftmax | None = None,
        presence: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.encoder, self.bits = backbone, encoder, bits
        self.visual = None if visual is None else Hyperplanes(visual)
        self.visual_bits = 0 if visual is None else int(visual.offset.size)
        self.shares = None if shares is None else ShareLogits(shares)
        parts = {"visual": visual is not None, "probability": presence, "share_logits": shares is not None}
        self.outputs = ("logits", "code", *(name for name, there in parts.items() if there))

    def features(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Features (B, D) before the head, for a comparison."""
        if self.backbone is None:
            return inputs
        with torch.inference_mode():
            found: NDArray[np.float32] = self.backbone(torch.from_numpy(inputs)).float().numpy()
        return found

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs in the order of their names."""
        features = inputs if self.backbone is None else self.backbone(inputs)
        output: HeadOutput = self.encoder(features)
        logits = output.logits
        if logits.dtype == torch.float64:
            logits = torch.where(logits < 0, logits.clamp_max(-_TINY), logits).float()
        found = [logits, packed_signs(logits, self.bits)]
        if self.visual is not None:
            found.append(packed_signs(self.visual(features).logits, self.visual_bits))
        if "probability" in self.outputs:
            assert output.label_log_odds is not None
            found.append(output.label_log_odds.sigmoid().float())
        if self.shares is not None:
            found.append(self.shares(output).float())
        return tuple(found)


def deployed(model: HashModel, backbone: Backbone | None) -> Deployed:
    """Build the whole model as one network in eval mode; ConfigError for a method that cannot be exported."""
    encoder = _encoder(model.network)  # first: it may raise, and loading is slow
    by_softmax = model.has_centers and shares_of(model).by == "softmax"
    network = None
    if backbone is not None:
        network = backbone.load()
        fix_padding(network, backbone.crop)
    elif not isinstance(model.network, ShallowHash):
        encoder = Wide(encoder)
    shares = cast(IcsSoftmax, model.objective) if by_softmax else None
    return Deployed(network, encoder, model.bits, model.visual, shares, model.has_probabilities).eval()


def _encoder(network: nn.Module | ShallowHash) -> nn.Module:
    if isinstance(network, nn.Module):
        return network
    if isinstance(network, LinearHash):
        return Hyperplanes(network)
    if isinstance(network, Sh):
        return Sinusoids(network)
    if isinstance(network, KernelHash):
        return Kernels(network)
    raise ConfigError(
        f"a model of {type(network).__name__} cannot be exported, since its function is not known to be of "
        "hyperplanes, sinusoids or kernels: encode with the model itself."
    )


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
