"""A network from PyTorch to ONNX, and the folder that keeps converted ones."""

from __future__ import annotations

import io
import re
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import nn

from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import read_npz, write_npz
from centerhash.networks.backbones import Backbone

OPSET = 17
_LIBRARIES = {"onnx": "onnxruntime", "openvino": "openvino"}


def converted(
    network: nn.Module, size: int, outputs: tuple[str, ...] = ("features",), any_batch: bool = False
) -> bytes:
    """The ONNX file of a network of uint8 images (1, size, size, 3), or (B, size, size, 3) with `any_batch`."""
    stream = io.BytesIO()
    names = ("pixels", *outputs)
    with warnings.catch_warnings():
        # The exporter by tracing calls itself old, and warns of every choice that tracing fixes; sizes are fixed
        # here on purpose, and what comes out is compared with the network.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(2 if any_batch else 1, size, size, 3, dtype=torch.uint8),),
            stream,  # type: ignore[arg-type]  # streams are taken as well
            dynamo=False,
            opset_version=OPSET,
            input_names=["pixels"],
            output_names=list(outputs),
            dynamic_axes={name: {0: "batch"} for name in names} if any_batch else None,
        )
    return stream.getvalue()


def stored_file(engine: str, backbone: Backbone, folder: Path | None) -> Path | None:
    """Where a converted backbone is kept: by its own key and the versions of all that decide the conversion.

    None without a folder and for random weights, which no key tells apart from those of another network.
    """
    if folder is None or backbone.weights is None:
        return None
    packages = ("torch", "torchvision", "timm", _LIBRARIES[engine])
    versions = "-".join(f"{package}{metadata.version(package)}" for package in packages)
    name = re.sub(r"[^\w.+-]", "_", f"{backbone.key}-{versions}")
    return folder / f"{name}.npz"


def stored_network(file: Path) -> bytes | None:
    """A converted network as it was kept; None where there is none, or a damaged one, which is made again."""
    if not file.exists():
        return None
    try:
        return read_npz(file, "onnx")["onnx"].tobytes()
    except DataError:
        return None


def keep(file: Path, model: bytes) -> str | None:
    """Keep a converted network; a warning where that fails, since only the next start is slower for it.

    An .npz and not the bare bytes: it carries a checksum.
    """
    try:
        write_npz(file, {"onnx": np.frombuffer(model, dtype=np.uint8)})
    except OutputError as error:
        return f"the converted network is not kept, so that the next start converts it again: {error}"
    return None
