"""Export a model of PyTorch as model.onnx, the one file that `PortableModel` runs.

    exported = export_model(model, "model.onnx")
    print(exported.equal_bits)

Preprocessing, backbone and head are inside; classes, centers and how to bring an image to H x W are in the metadata.
The file is compared with PyTorch's codes before it is written.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from centerhash.codes import pack, packed_width
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.extras import require
from centerhash.core.files import atomic, with_checksum
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.listing import list_images
from centerhash.losses.base import CentralLoss, HeadOutput
from centerhash.losses.functional import center_similarities
from centerhash.losses.ics import ICSLoss
from centerhash.losses.ics_softmax import ICSSoftmaxLoss
from centerhash.methods.shallow.base import ROUNDING, ShallowHash
from centerhash.methods.shallow.kernel import KernelHash
from centerhash.methods.shallow.projections import SH, LinearHash
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.model.spec import (
    METADATA_KEY,
    PORTABLE,
    PortableSpec,
    Shares,
    encoded_centers,
    encoded_directions,
)
from centerhash.networks.backbones import Backbone, import_timm
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines import Pixels, converted, traced

LEAST_EQUAL_BITS = 0.999
# More images than these would need more memory than the comparison is worth.
MOST_IMAGES = 512
_SAMPLE_PHOTOS = Path(__file__).parent / "sample_photos"
_IMAGES_PER_PASS = 16
_RANDOM_ROWS = 256
# Smaller tensors are stored as they are.
_LEAST_NUMBERS = 256
# A negative logit must not round to 0, whose sign is +1.
_LEAST_FLOAT = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Exported:
    """The file that `export_model` wrote, and which shares of its bits and codes equal PyTorch's."""

    path: Path
    size: int
    compared_on: str
    equal_bits: float
    equal_codes: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size / 1e6:.1f} MB\n{self.equal_bits:.2%} of the bits on {self.compared_on} equal "
            f"PyTorch's (at least {LEAST_EQUAL_BITS:.1%} must)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as json values."""
        return {**asdict(self), "path": str(self.path)}


def export_model(
    model: Model,
    out: str | Path,
    *,
    images: Sequence[str | Path] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a model as one file, if its codes equal PyTorch's on `images` (by default, sample photos).

    A model of features is compared on random ones.
    """
    if not isinstance(model, HashModel):
        raise ConfigError(f"{model!r} is an ONNX file already: copy the {PORTABLE} in '{model.folder}'.")
    for library in ("onnx", "onnxruntime"):
        require(library)
    # For images, `backbone` rejects a model of features.
    backbone = model.backbone() if model.spec.backbone is not None or images is not None else None
    network = deployed(model, backbone)
    progress("export", 0, 4, "reading images")
    inputs: NDArray[Any]
    if backbone is None:
        inputs = np.random.default_rng(0).normal(size=(_RANDOM_ROWS, model.spec.features)).astype(np.float32)
        kind = "random rows of features"
    else:
        inputs = image_sample([_SAMPLE_PHOTOS] if images is None else images, backbone)
        kind = "sample photos" if images is None else "images"
    compared_on = f"{len(inputs)} {kind}"
    progress("export", 1, 4, "converting")
    onnx_bytes = with_metadata(
        _compact(_converted(network, backbone, model.spec.features)), metadata_of(model, backbone)
    )
    progress("export", 2, 4, "comparing")
    equal_bits, equal_codes = _agreement(onnx_bytes, network, model, inputs)
    if equal_bits < LEAST_EQUAL_BITS:
        raise DataError(
            f"only {equal_bits:.2%} of the exported model's bits equal PyTorch's on {compared_on}, less than "
            f"{LEAST_EQUAL_BITS:.1%}: nothing was written. Encode with PyTorch instead."
        )
    progress("export", 3, 4, "writing")
    with atomic(out) as stream:
        stream.write(onnx_bytes)
    progress("export", 4, 4, "written")
    return Exported(Path(out), len(onnx_bytes), compared_on, equal_bits, equal_codes)


def with_metadata(network: bytes, values: Mapping[str, Any]) -> bytes:
    """Add `values`, and the checksum of the network, as metadata to an ONNX file without any."""
    import onnx

    spec = PortableSpec(**values, network_size=len(network), network_checksum=crc32(network))
    text = json.dumps(with_checksum(spec.model_dump(mode="json")), ensure_ascii=False)
    entry = onnx.StringStringEntryProto(key=METADATA_KEY, value=text)
    # Two messages of protobuf one after the other are one message with the fields of both.
    added: bytes = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
    return network + added


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
        "general_bits": model.general_bits,
        "probabilities": model.has_probabilities,
        "shares": None if shares is None else shares.model_dump(),
        "seed": spec.seed,
        "digest": model.digest,
    }
    if backbone is not None:
        by_softmax = shares is not None and shares.by == "softmax"
        general = 0 if model.general_bits is None else packed_width(model.general_bits)
        values |= {
            "features": spec.bits + general + len(spec.classes) * (model.has_probabilities + by_softmax),
            "backbone": backbone.name,
            "backbone_key": spec.backbone_key,
            "preprocessing": {
                "resize": backbone.resize,
                "crop": backbone.crop,
                "interpolation": backbone.interpolation,
                # Shift and scale are applied inside the network.
                "shift": list(backbone.shift),
                "scale": list(backbone.scale),
            },
        }
    return values


def shares_of(model: HashModel) -> Shares:
    """Return how a central model computes the weights of labels; ConfigError if numpy cannot compute them."""
    objective = model.objective
    kind = type(objective)
    if kind.weights is CentralLoss.weights:
        if kind.slot_weights is CentralLoss.slot_weights:
            return Shares(by="equal")
        if isinstance(objective, ICSSoftmaxLoss) and kind.slot_weights is ICSSoftmaxLoss.slot_weights:
            return Shares(by="softmax")
        if isinstance(objective, ICSLoss) and kind.slot_weights is ICSLoss.slot_weights:
            return Shares(
                by="ics",
                beta=objective.beta,
                entropy=objective.entropy,
                scale=objective.scale,
                form=objective.form,
                solver=objective.solver,
                rate=objective.rate,
                steps=objective.steps,
            )
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
    for position, tensor in enumerate(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if values.dtype not in (np.float32, np.float64) or values.size < _LEAST_NUMBERS:
            continue
        narrower = (kind for kind in (np.float16, np.float32) if kind != values.dtype)
        kind = next((kind for kind in narrower if _holds(values, kind)), None)
        if kind is not None:
            name, stored, wide = tensor.name, f"{tensor.name}_stored", tensor.data_type
            graph.initializer[position].CopyFrom(numpy_helper.from_array(values.astype(kind), stored))
            casts.append(onnx.helper.make_node("Cast", [stored], [name], f"{name}_cast", to=wide))
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


def _agreement(
    onnx_bytes: bytes, network: Deployed, model: HashModel, inputs: NDArray[Any]
) -> tuple[float, float]:
    """Run the file by ONNX Runtime, and return the shares of bits and of codes that equal PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    different = []
    for start in range(0, len(inputs), _IMAGES_PER_PASS):
        batch = inputs[start : start + _IMAGES_PER_PASS]
        expected = pack(model.encode_features(network.features(batch)))
        code = session.run(["code"], {name: batch})[0]
        different.append(np.bitwise_count(expected ^ code).sum(axis=1))
    wrong_bits = np.concatenate(different)
    return 1 - float(wrong_bits.sum()) / (len(inputs) * model.bits), float((wrong_bits == 0).mean())


def image_sample(images: Sequence[str | Path], backbone: Backbone) -> Pixels:
    """Read images (N, H, W, 3) of files, folders and patterns, at most MOST_IMAGES, evenly over the list."""
    paths = list_images(images)
    rows = np.linspace(0, len(paths) - 1, min(MOST_IMAGES, len(paths))).round().astype(int)
    return np.stack([pixels_of(paths[row], backbone) for row in rows])


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
        self.unit, self.affine = bool(function.normalize), Affine(function.projection, function.offset)

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64 as in training."""
        return HeadOutput(self.affine(_unit(features, self.unit)))


class Sinusoids(nn.Module):
    """SH: features (B, D) to sinusoids (B, K) along principal axes."""

    minima: Tensor
    axes: Tensor
    frequencies: Tensor

    def __init__(self, function: SH) -> None:
        super().__init__()
        self.unit = bool(function.normalize)
        self.affine = Affine(function.projection, np.zeros_like(function.minima))
        for name in ("minima", "axes", "frequencies"):
            self.register_buffer(name, torch.from_numpy(np.array(getattr(function, name))))

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64."""
        offsets = self.affine(_unit(features, self.unit)) - self.minima
        return HeadOutput(torch.sin(np.pi / 2 + self.frequencies * offsets.index_select(1, self.axes)))


class Kernels(nn.Module):
    """BRE, KSH, SDH: features (B, D) to weighted sums (B, K) of a kernel at anchors (M, D)."""

    anchors: Tensor

    def __init__(self, function: KernelHash) -> None:
        super().__init__()
        self.unit, self.sigma = bool(function.normalize), float(function.sigma)
        self.affine = Affine(function.weights, function.offset)
        self.register_buffer("anchors", torch.from_numpy(function.anchors.astype(np.float64)))

    def forward(self, features: Tensor) -> HeadOutput:
        """Values (B, K) as logits, in float64."""
        inputs = _unit(features, self.unit)
        kernel = inputs @ self.anchors.T
        # Zero stands for the linear kernel.
        if self.sigma:
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

    def __init__(self, objective: ICSSoftmaxLoss) -> None:
        super().__init__()
        self.register_buffer("centers", objective.centers)
        self.sharpness = objective.scale / objective.entropy
        self.share_entropy = objective.share_lambda

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
        general: LinearHash | None = None,
        shares: ICSSoftmaxLoss | None = None,
        presence: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.encoder, self.bits = backbone, encoder, bits
        self.general = None if general is None else Hyperplanes(general)
        self.general_bits = 0 if general is None else int(general.offset.size)
        self.shares = None if shares is None else ShareLogits(shares)
        optional = {
            "general": general is not None,
            "probability": presence,
            "share_logits": shares is not None,
        }
        self.outputs = ("logits", "code", *(name for name, has in optional.items() if has))

    def features(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Features (B, D) before the head, for a comparison."""
        if self.backbone is None:
            return inputs
        with torch.inference_mode():
            features: NDArray[np.float32] = self.backbone(torch.from_numpy(inputs)).float().numpy()
        return features

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs in the order of their names."""
        features = inputs if self.backbone is None else self.backbone(inputs)
        output: HeadOutput = self.encoder(features)
        logits = output.logits
        if logits.dtype == torch.float64:
            logits = torch.where(logits < 0, logits.clamp_max(-_LEAST_FLOAT), logits).float()
        results = [logits, packed_signs(logits, self.bits)]
        if self.general is not None:
            results.append(packed_signs(self.general(features).logits, self.general_bits))
        if "probability" in self.outputs:
            assert output.label_log_odds is not None
            results.append(output.label_log_odds.sigmoid().float())
        if self.shares is not None:
            results.append(self.shares(output).float())
        return tuple(results)


def deployed(model: HashModel, backbone: Backbone | None) -> Deployed:
    """Build the whole model as one network in eval mode; ConfigError for a method that cannot be exported."""
    # This may raise, and loading the backbone is slow.
    encoder = _encoder(model.network)
    by_softmax = model.has_centers and shares_of(model).by == "softmax"
    network = None
    if backbone is not None:
        network = backbone.load()
        fix_padding(network, backbone.crop)
    elif not isinstance(model.network, ShallowHash):
        encoder = Wide(encoder)
    shares = cast(ICSSoftmaxLoss, model.objective) if by_softmax else None
    return Deployed(network, encoder, model.bits, model.general, shares, model.has_probabilities).eval()


def _encoder(network: nn.Module | ShallowHash) -> nn.Module:
    if isinstance(network, nn.Module):
        return network
    if isinstance(network, LinearHash):
        return Hyperplanes(network)
    if isinstance(network, SH):
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
    inputs: dict[nn.Module, tuple[int, int]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda layer, arguments: inputs.update({layer: arguments[0].shape[-2:]})
        )
        for module in network.modules()
        if isinstance(module, import_timm().layers.Conv2dSame)
    ]
    with torch.inference_mode():
        network(torch.zeros(1, size, size, 3, dtype=torch.uint8))
    for handle in handles:
        handle.remove()
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child in inputs:
                parent.add_module(name, PaddedConvolution(cast(nn.Conv2d, child), inputs[child]))


class PaddedConvolution(nn.Module):
    """A convolution with the "same" padding for images of one size (H, W)."""

    def __init__(self, layer: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        self.layer = layer
        edges = zip(size, layer.kernel_size, layer.stride, layer.dilation, strict=True)
        height, width = (import_timm().layers.get_same_padding(*edge) for edge in edges)
        self.sides = (width // 2, width - width // 2, height // 2, height - height // 2)

    def forward(self, images: Tensor) -> Tensor:
        """Convolve images (B, C, H, W)."""
        layer, padded = self.layer, functional.pad(images, self.sides)
        return functional.conv2d(
            padded, layer.weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups
        )
