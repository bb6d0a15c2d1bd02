"""Export a PyTorch model as model.onnx, the one file that `PortableModel` runs.

Normalization, backbone and head are in the network; classes, centers and the resizing of images are in the metadata.
The file is compared with PyTorch's codes before it is written.
"""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from centerhash.codes import pack, packed_width
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import atomic, with_checksum
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
from centerhash.model.model import HashModel, signed_float32
from centerhash.model.spec import METADATA_KEY, PORTABLE, PortableSpec, Shares
from centerhash.networks.backbones import Backbone, import_timm
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines import traced

_LEAST_EQUAL_BITS = 0.999
# The comparison of more images would need more memory than it is worth.
_MOST_IMAGES = 512
_SAMPLE_PHOTOS = Path(__file__).parent / "sample_photos"
_IMAGES_PER_PASS = 16
_RANDOM_ROWS = 256
_LEAST_COMPACTED_SIZE = 256


@dataclass(frozen=True)
class ExportResult:
    """The file that `export_model` wrote, and the shares of its bits and codes that equal PyTorch's."""

    path: str
    size: int
    compared_on: str
    equal_bits: float
    equal_codes: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size / 1e6:.1f} MB\n{self.equal_bits:.2%} of the bits on {self.compared_on} equal "
            f"PyTorch's (at least {_LEAST_EQUAL_BITS:.1%} must)"
        )


def export_model(
    model: Model, out: str | Path, *, images: Sequence[str | Path] | None = None
) -> ExportResult:
    """Write a model as one file, if its codes equal PyTorch's on `images` (by default, sample photos).

    A model of features is compared on random features.
    """
    if not isinstance(model, HashModel):
        raise ConfigError(f"{model!r} is an ONNX file already: copy the {PORTABLE} in '{model.folder}'.")
    # For images, `backbone` rejects a model of features.
    backbone = model.backbone() if model.spec.backbone is not None or images is not None else None
    network = Deployed(model, backbone).eval()
    inputs: NDArray[Any]
    if backbone is None:
        inputs = np.random.default_rng(0).normal(size=(_RANDOM_ROWS, model.spec.features)).astype(np.float32)
        name, kind = "features", "random rows of features"
    else:
        paths = list_images([_SAMPLE_PHOTOS] if images is None else images)
        sample = paths[:: -(-len(paths) // _MOST_IMAGES)]
        inputs = np.stack([pixels_of(path, backbone) for path in sample])
        name, kind = "pixels", "sample photos" if images is None else "images"
    compared_on = f"{len(inputs)} {kind}"
    example = torch.from_numpy(np.zeros_like(inputs, shape=(2, *inputs.shape[1:])))
    onnx_bytes = _compact(traced(network, example, name, network.outputs))
    onnx_bytes = with_metadata(onnx_bytes, metadata_of(model, backbone))
    equal_bits, equal_codes = _agreement(onnx_bytes, network, model, inputs)
    if equal_bits < _LEAST_EQUAL_BITS:
        raise DataError(
            f"only {equal_bits:.2%} of the exported model's bits equal PyTorch's on {compared_on}, less than "
            f"{_LEAST_EQUAL_BITS:.1%}: nothing was written. Encode with PyTorch instead."
        )
    with atomic(out) as stream:
        stream.write(onnx_bytes)
    return ExportResult(str(out), len(onnx_bytes), compared_on, equal_bits, equal_codes)


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
    """Return the fields of `PortableSpec` besides those of the file."""
    spec = model.spec.without_paths()
    values = spec.model_dump(include={"method", "bits", "features", "classes", "label_threshold", "seed"})
    values |= {
        "version": __version__,
        "general_bits": model.general_bits,
        "probabilities": model.has_probabilities,
        "digest": model.digest,
    }
    if model.has_centers:
        values |= {
            "centers": b64encode(pack(model.centers.numpy().astype(np.int8)).tobytes()).decode(),
            "directions": b64encode(model.directions.float().numpy().astype("<f4").tobytes()).decode(),
            "shares": shares_of(model),
        }
    if backbone is not None:
        # Shift and scale are applied inside the network.
        preprocessing = {
            name: getattr(backbone, name) for name in ("resize", "crop", "interpolation", "shift", "scale")
        }
        values |= {
            "features": sum(PortableSpec.model_construct(**values).outputs().values()),
            "backbone": backbone.name,
            "backbone_key": spec.backbone_key,
            "preprocessing": preprocessing,
        }
    return values


def shares_of(model: HashModel) -> Shares:
    """Return how a central model computes the weights of labels; ConfigError if numpy cannot compute them."""
    loss = type(model.objective)
    computed_by = loss.slot_weights if loss.weights is CentralLoss.weights else None
    if computed_by is CentralLoss.slot_weights:
        return Shares(by="equal")
    if computed_by is ICSSoftmaxLoss.slot_weights:
        return Shares(by="softmax")
    if computed_by is ICSLoss.slot_weights:
        settings = ("beta", "entropy", "scale", "form", "solver", "rate", "steps")
        return Shares(by="ics", **{name: getattr(model.objective, name) for name in settings})
    raise ConfigError(
        f"a model of method '{model.spec.method}' cannot be exported: {loss.__name__} computes the weights of labels "
        "in its own way. Remove its slot_weights, or use the model itself."
    )


def _compact(model: bytes) -> bytes:
    """Store tensors in half or single precision if that loses nothing; they are cast back inside the network."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    graph, casts = proto.graph, []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype not in (np.float32, np.float64) or values.size < _LEAST_COMPACTED_SIZE:
            continue
        types = (np.float16, np.float32, np.float64)
        with np.errstate(over="ignore"):
            dtype = next(dtype for dtype in types if np.array_equal(values.astype(dtype), values))
        if dtype != values.dtype:
            name, stored, wide = tensor.name, f"{tensor.name}_stored", tensor.data_type
            tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), stored))
            casts.append(onnx.helper.make_node("Cast", [stored], [name], f"{name}_cast", to=wide))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    proto.producer_name, proto.producer_version = "centerhash", __version__
    onnx.checker.check_model(proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def _agreement(
    onnx_bytes: bytes, network: Deployed, model: HashModel, inputs: NDArray[Any]
) -> tuple[float, float]:
    """Run the file by ONNX Runtime, and return the shares of bits and of codes that equal PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    different = []
    for start in range(0, len(inputs), _IMAGES_PER_PASS):
        features = batch = inputs[start : start + _IMAGES_PER_PASS]
        if network.backbone is not None:
            with torch.inference_mode():
                features = network.backbone(torch.from_numpy(batch)).float().numpy()
        expected = pack(model.encode_features(features))
        code = session.run(["code"], {name: batch})[0]
        different.append(np.bitwise_count(expected ^ code).sum(axis=1))
    wrong_bits = np.concatenate(different)
    return 1 - float(wrong_bits.sum()) / (len(inputs) * model.bits), float((wrong_bits == 0).mean())


class Deployed(nn.Module):
    """The whole model as one network from images (B, H, W, 3) uint8, or features (B, D), to the named `outputs`."""

    def __init__(self, model: HashModel, backbone: Backbone | None) -> None:
        super().__init__()
        network = model.network
        encoder = ShallowNetwork(network) if isinstance(network, ShallowHash) else network
        by_softmax = model.has_centers and shares_of(model).by == "softmax"
        self.share_loss = cast(ICSSoftmaxLoss, model.objective) if by_softmax else None
        self.backbone: nn.Module | None = None
        if backbone is None:
            # Features are encoded in float64, so that the signs do not depend on the batch.
            encoder = copy.deepcopy(encoder).double()
        else:
            self.backbone = backbone.load()
            fix_padding(self.backbone, backbone.crop)
        self.encoder, self.bits, self.general_bits = encoder, model.bits, model.general_bits or 0
        self.general = None if model.general is None else ShallowNetwork(model.general)
        optional = (self.general is not None, model.has_probabilities, by_softmax)
        self.outputs = ("logits", "code", *compress(("general", "probability", "share_logits"), optional))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of their names."""
        features = inputs.double() if self.backbone is None else self.backbone(inputs)
        output: HeadOutput = self.encoder(features)
        logits = signed_float32(output.logits)
        results = [logits, packed_signs(logits, self.bits)]
        if self.general is not None:
            results.append(packed_signs(self.general(features).logits, self.general_bits))
        if output.label_log_odds is not None:
            results.append(output.label_log_odds.sigmoid().float())
        loss = self.share_loss
        if loss is not None and output.class_logits is not None:
            results.append((output.class_logits / loss.share_lambda).float())
        elif loss is not None:
            similarities = center_similarities(output.logits, loss.centers.to(output.logits.dtype))
            results.append((loss.scale / loss.entropy * similarities).float())
        return tuple(results)


def packed_signs(logits: Tensor, bits: int) -> Tensor:
    """Pack the signs of logits (B, K) as `codes.pack`: a bit is set if its logit is at least 0."""
    powers = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32)
    signs = functional.pad((logits >= 0).to(torch.int32), (0, -bits % 8))
    return (signs.reshape(-1, packed_width(bits), 8) * powers).sum(dim=2).to(torch.uint8)


class ShallowNetwork(nn.Module):
    """The `transform` of a shallow method in PyTorch, from features (B, D) to values (B, K) in float64."""

    def __init__(self, function: ShallowHash) -> None:
        super().__init__()
        if not isinstance(function, LinearHash | SH | KernelHash):
            raise ConfigError(
                f"a model of {type(function).__name__} cannot be exported, since its function is not known to be of "
                "hyperplanes, sinusoids or kernels: encode with the model itself."
            )
        self.function = function
        for name, array in function.arrays().items():
            tensor = torch.from_numpy(np.array(array))
            self.register_buffer(name, tensor.double() if tensor.is_floating_point() else tensor)

    def forward(self, features: Tensor) -> HeadOutput:
        """Return the values (B, K) as logits."""
        arrays, inputs = dict(self.named_buffers()), features.double()
        if self.function.normalize:
            lengths = inputs.square().sum(dim=1, keepdim=True).sqrt()
            inputs = inputs / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        if isinstance(self.function, KernelHash):
            anchors, sigma = arrays["anchors"], float(self.function.sigma)
            kernel = inputs @ anchors.T
            # A sigma of 0 is the linear kernel.
            if sigma:
                lengths = inputs.square().sum(dim=1, keepdim=True) + anchors.square().sum(dim=1)
                kernel = torch.exp((lengths - 2 * kernel).clamp_min(0) / (-2 * sigma**2))
            return HeadOutput(_affine(kernel, arrays["weights"], arrays["offset"]))
        if isinstance(self.function, LinearHash):
            return HeadOutput(_affine(inputs, arrays["projection"], arrays["offset"]))
        minima = arrays["minima"]
        offsets = _affine(inputs, arrays["projection"], torch.zeros_like(minima)) - minima
        angles = arrays["frequencies"] * offsets.index_select(1, arrays["axes"])
        return HeadOutput(torch.sin(np.pi / 2 + angles))


def _affine(inputs: Tensor, weights: Tensor, offset: Tensor) -> Tensor:
    """Compute inputs (B, M) @ weights - offset (B, K), with 0 for rounding errors, as `shallow.base.affine`."""
    values = inputs @ weights - offset
    lengths = inputs.square().sum(dim=1, keepdim=True).sqrt() * weights.square().sum(dim=0).sqrt()
    return torch.where(values.abs() <= ROUNDING * (lengths + offset.abs()), torch.zeros_like(values), values)


def fix_padding(network: nn.Module, size: int) -> None:
    """Replace, in place, paddings that depend on the image's size by those for images of `size`.

    In a traced network, TensorFlow's "same" padding else becomes a dozen operators per layer, which no compiler removes
    if the batch size is free.
    """
    sizes: dict[Any, tuple[int, int]] = {}
    for module in network.modules():
        if isinstance(module, import_timm().layers.Conv2dSame):
            module.register_forward_pre_hook(
                lambda layer, inputs: sizes.update({layer: inputs[0].shape[-2:]})
            )
    with torch.inference_mode():
        network(torch.zeros(1, size, size, 3, dtype=torch.uint8))
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child in sizes:
                parent.add_module(name, _padded(child, sizes[child]))


def _padded(layer: Any, size: tuple[int, int]) -> nn.Sequential:
    """Return a convolution with the "same" padding for images of one size (H, W)."""
    edges = zip(size, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    height, width = (import_timm().layers.get_same_padding(*edge) for edge in edges)
    sides = (width // 2, width - width // 2, height // 2, height - height // 2)
    # Drawing weights, which are replaced, would change the random numbers of the next training run.
    shape = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, 0, layer.dilation)
    plain: nn.Module = skip_init(nn.Conv2d, *shape, layer.groups, layer.bias is not None)  # type: ignore[no-untyped-call]
    plain.load_state_dict(layer.state_dict())
    return nn.Sequential(nn.ZeroPad2d(sides), plain)
