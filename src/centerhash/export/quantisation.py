"""An ONNX file in 8 bits: ONNX Runtime's static quantisation, ranges from images."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from centerhash.networks.engines.table import Pixels


def quantised(model: bytes, pixels: Pixels) -> bytes:
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
            # sums of products of 8 and 8 bits overflow on processors without VNNI, of 8 and 7 bits nowhere
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
