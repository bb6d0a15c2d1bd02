"""Compiled networks: one single-threaded stream per core, each with one image at a time.

This is as fast as larger batches or faster (nothing waits for another core inside a layer), an image's features do
not depend on the batch that it came in, and a single image costs no more than one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.networks.backbones import Backbone
from centerhash.networks.engines.conversion import converted, keep, stored_file, stored_network
from centerhash.networks.engines.runners import onnx_runner, openvino_runner
from centerhash.networks.engines.table import Pixels, check_pixels

Floats: TypeAlias = NDArray[np.float32]
Runner: TypeAlias = Callable[
    [Pixels], Floats
]  # one image (1, H, W, 3) to its features (1, D), from any thread

# share of the largest feature; rounding was seen to change 2e-6 of it, 16-bit arithmetic 6e-2
AGREEMENT = 1e-3


class CompiledEngine:
    """A backbone compiled for this processor, with a stream per core."""

    def __init__(self, name: str, backbone: Backbone, runner: Runner, warnings: tuple[str, ...] = ()) -> None:
        self.name, self.backbone, self.warnings = name, backbone, warnings
        self._runner = runner
        # once in this thread: OpenVINO sets up tables at its first call, and two first calls at once were seen to lock up
        runner(np.zeros((1, backbone.crop, backbone.crop, 3), dtype=np.uint8))
        self._streams = ThreadPoolExecutor(max_workers=streams(), thread_name_prefix=name)

    def features(self, pixels: Pixels) -> Floats:
        """Features (B, D) of images (B, H, W, 3)."""
        check_pixels(pixels, self.backbone.crop)
        singles = (pixels[row : row + 1] for row in range(len(pixels)))
        rows = list(self._streams.map(self._runner, singles))
        return np.concatenate(rows) if rows else np.zeros((0, self.backbone.features), dtype=np.float32)


def streams() -> int:
    """How many images are computed at once: the threads that PyTorch would use, so that one setting rules both."""
    return torch.get_num_threads()


def open_compiled(name: str, backbone: Backbone, folder: Path | None = None) -> CompiledEngine:
    """Compile a backbone, out of `folder` where it was converted before; raises whatever the libraries raise."""
    compile_network = {"onnx": onnx_runner, "openvino": openvino_runner}[name]
    file = stored_file(name, backbone, folder)
    stored = None if file is None else stored_network(file)
    if stored is not None:
        return CompiledEngine(name, backbone, compile_network(stored, streams()))
    network = backbone.load()
    model = converted(network, backbone.crop)
    runner = compile_network(model, streams())
    _check_agreement(runner, network, backbone.crop)
    warning = None if file is None else keep(file, model)
    return CompiledEngine(name, backbone, runner, () if warning is None else (warning,))


def _check_agreement(runner: Runner, network: torch.nn.Module, size: int) -> None:
    """Compare a compiled network with PyTorch's once: tracing follows one path through it, maybe not the only one."""
    coarse = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    factor = -(-size // 8)
    pixels = np.ascontiguousarray(coarse.repeat(factor, axis=1).repeat(factor, axis=2)[:, :size, :size])
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels)).float().numpy()
    found = runner(pixels)
    if found.shape != expected.shape:
        raise ValueError(f"its features have shape {found.shape}, not {expected.shape}")
    largest = float(np.abs(found - expected).max())
    if not largest <= AGREEMENT * float(np.abs(expected).max()):  # NaN is no agreement
        raise ValueError(f"its features differ from PyTorch's by up to {largest:.2g}")
