"""A model as one PyTorch network that can leave Python: pixels in, logits and packed code out."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from centerhash.codes import packed_width
from centerhash.core.errors import ConfigError
from centerhash.methods.losses.base import HeadOutput
from centerhash.methods.registry import METHODS
from centerhash.methods.shallow.projections import LinearHash
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone, import_timm


class Hyperplanes(nn.Module):
    """A shallow hash function of hyperplanes: features (B, D), of length 1 where wanted, to values (B, K)."""

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
    """Images (B, H, W, 3) of uint8 to logits (B, K) and code (B, ceil(K/8)) of uint8, packed as by `codes.pack`."""

    places: Tensor

    def __init__(self, backbone: nn.Module, encoder: nn.Module, bits: int) -> None:
        super().__init__()
        self.backbone, self.encoder, self.bits = backbone, encoder, bits
        self.register_buffer("places", 2 ** torch.arange(7, -1, -1, dtype=torch.int32))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """A bit is set where its logit is at least 0; bits past K are 0."""
        output: HeadOutput = self.encoder(self.backbone(pixels))
        logits = output.logits
        bits = functional.pad((logits >= 0).to(torch.int32), (0, -self.bits % 8))
        code = (bits.reshape(-1, packed_width(self.bits), 8) * self.places).sum(dim=2)
        return logits, code.to(torch.uint8)


def deployed(model: HashModel, backbone: Backbone) -> Deployed:
    """The whole of a model in eval mode; ConfigError for shallow methods that are more than hyperplanes."""
    encoder = _encoder(model)  # first: it may refuse, and loading takes its time
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
            f"a model of method '{model.spec.method}' cannot be exported, since it is no network of plain layers: encode "
            f"with the model itself, or train one of {', '.join(linear)}."
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
    """The same convolution without any padding."""
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
