"""The engines by name, which of them to take, and opening one. Importing this is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import CenterhashError, ConfigError, InputError, unknown_name

if TYPE_CHECKING:
    import torch

    from centerhash.networks.backbones import Backbone

Pixels: TypeAlias = NDArray[np.uint8]

INSTALL = "pip install 'centerhash[fast]'"


class Engine(Protocol):
    """A backbone that is ready to run; safe to use from several threads."""

    @property
    def name(self) -> str:
        """The engine's name in `ENGINES`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it is not the engine that was to be expected; mostly nothing."""

    def features(self, pixels: Pixels) -> NDArray[np.float32]:
        """Features (B, D) of images (B, H, W, 3) at the backbone's crop."""


@dataclass(frozen=True)
class EngineRow:
    """One engine: what it is, and the library that it needs beside PyTorch."""

    name: str
    title: str
    library: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether its library is installed; it is not imported."""
        return self.library is None or find_spec(self.library) is not None


# the fastest first: the first that is here is taken where there is no GPU
ENGINES: Mapping[str, EngineRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            EngineRow("openvino", "compiled by OpenVINO, on the processor", "openvino"),
            EngineRow("onnx", "compiled by ONNX Runtime, on the processor", "onnxruntime"),
            EngineRow("torch", "PyTorch with folded batch norms, on any device"),
        )
    }
)


def choose_engine(name: str = "auto", device: str | torch.device = "cpu") -> str:
    """The engine to use on a device: as named, or PyTorch on a GPU and else the fastest that is installed."""
    on_processor = str(device).startswith("cpu")
    if name == "auto":
        return next(row.name for row in ENGINES.values() if row.is_here) if on_processor else "torch"
    if name not in ENGINES:
        raise unknown_name("engine", name, [*ENGINES, "auto"])
    row = ENGINES[name]
    if row.library is not None and not on_processor:
        raise ConfigError(
            f"engine '{name}' computes on the processor, not on device '{device}': pass `device=\"cpu\"`, or "
            '`engine="torch"`.'
        )
    if not row.is_here:
        raise ConfigError(
            f"engine '{name}' needs {row.library}, which is not installed: {INSTALL}, or pass `engine=\"auto\"`."
        )
    return name


def open_engine(
    backbone: Backbone,
    engine: str = "auto",
    device: str | torch.device = "cpu",
    folder: Path | None = None,
) -> Engine:
    """Load a backbone for use; converted networks are kept in `folder`, so that the next start is quick.

    A network that cannot be converted runs in PyTorch, with a warning that says why; where the engine was asked for
    by name it raises ConfigError.
    """
    from centerhash.networks.engines.compiled import open_compiled
    from centerhash.networks.engines.torch_engine import TorchEngine

    chosen = choose_engine(engine, device)
    if chosen == "torch":
        return TorchEngine(backbone, device)
    try:
        return open_compiled(chosen, backbone, folder)
    except CenterhashError:
        raise  # of the backbone itself, such as weights that are not here: PyTorch would say the same
    # exporter and compilers raise nearly anything for operators that they do not know
    except Exception as error:
        reason = f"{backbone.name} cannot be run by engine '{chosen}' ({_first_line(error)})"
        if engine != "auto":
            raise ConfigError(f'{reason}: pass `engine="torch"`, or auto.') from error
        warning = f'{reason}: PyTorch runs it instead, more slowly; `engine="torch"` saves the attempt.'
        return TorchEngine(backbone, device, (warning,))


def check_pixels(pixels: Pixels, size: int) -> None:
    """Check that pixels are uint8 images (B, size, size, 3)."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (size, size, 3):
        raise InputError(
            f"pixels must be uint8 of shape (B, {size}, {size}, 3), got {pixels.dtype} of shape {pixels.shape}."
        )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
