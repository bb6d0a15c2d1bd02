"""Engines that run a backbone, or a whole model in one file: PyTorch on any device, or compiled for the CPU.

    engine = open_engine(get_backbone("efficientnet-lite0"))
    features = engine.features(pixels)

All engines compute the same features up to rounding. Their libraries are imported when they are used, and torch only for
backbones, so that this module is quick to import.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import (
    CenterhashError,
    ConfigError,
    DataError,
    InputError,
    OutputError,
    first_line,
    unknown_name,
)
from centerhash.core.extras import require
from centerhash.core.files import read_npz, write_npz
from centerhash.core.parallel import cpu_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from centerhash.networks.backbones import Backbone

Pixels: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
# A compiled network maps an image (1, H, W, 3) to features (1, D), or features (B, D) to outputs, in any thread.
Runner: TypeAlias = Callable[[NDArray[Any]], Floats]

_OPSET = 17
# A compiled network may differ from PyTorch's by this share of its largest feature. Rounding was seen to change 2e-6 of
# it, and 16-bit arithmetic 6e-2.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class PortableNetwork:
    """A whole model as one ONNX file, whose `outputs` side by side are the features (D) of an image.

    Images are read as by a `Backbone`, and `key` identifies the features in caches.
    """

    name: str
    resize: int
    crop: int
    interpolation: str
    features: int
    key: str
    outputs: tuple[str, ...]
    content: Callable[[], bytes] = field(compare=False)


# Each engine is listed with its library, the fastest first; all but PyTorch run only on the CPU.
ENGINES: Mapping[str, str] = {"openvino": "openvino", "onnx": "onnxruntime", "torch": "torch"}


def choose_engine(name: str = "auto", device: str | torch.device = "cpu") -> str:
    """Return the engine for a backbone on a device; "auto" is PyTorch on a GPU, else the fastest that is installed."""
    on_cpu = str(device).startswith("cpu")
    if name == "auto":
        installed = (engine for engine, library in ENGINES.items() if on_cpu and find_spec(library))
        return next(installed, "torch")
    if name not in ENGINES:
        raise unknown_name("engine", name, [*ENGINES, "auto"])
    if name != "torch" and not on_cpu:
        raise ConfigError(
            f"engine '{name}' computes on the CPU, not on device '{device}': pass `device=\"cpu\"`, or "
            '`engine="torch"`.'
        )
    if not find_spec(ENGINES[name]):
        raise ConfigError(
            f"engine '{name}' needs {ENGINES[name]}, which is not installed: pip install 'centerhash[fast]', or pass "
            '`engine="auto"`.'
        )
    return name


def choose_engine_of(network: Backbone | PortableNetwork, name: str, device: str | torch.device) -> str:
    """Return the engine for a network on a device; for one ONNX file, "auto" is ONNX Runtime, which starts faster."""
    if not isinstance(network, PortableNetwork):
        return choose_engine(name, device)
    if name == "torch" or str(device) not in ("auto", "cpu"):
        raise ConfigError(
            f"this model is an ONNX file, which runs on the CPU, not by engine '{name}' on device '{device}'. Pass "
            f'`engine="auto"` and `device="auto"`, or encode with the model of the run.'
        )
    return choose_engine("onnx" if name == "auto" else name)


def open_engine(
    backbone: Backbone | PortableNetwork,
    engine: str = "auto",
    device: str | torch.device = "cpu",
    folder: Path | None = None,
) -> Engine:
    """Load a backbone into an engine; converted networks are kept in `folder`, so that the next start is quick.

    If a network cannot be converted, "auto" runs it in PyTorch with a warning that gives the reason, and an engine by
    name raises ConfigError.
    """
    name = choose_engine_of(backbone, engine, device)
    try:
        if isinstance(backbone, PortableNetwork):
            return CompiledEngine(name, backbone, backbone.content(), backbone.outputs)
        if name == "torch":
            return TorchEngine(backbone, device)
        return open_compiled(name, backbone, folder)
    # These are errors of the backbone itself, such as missing weights, which PyTorch would raise too.
    except CenterhashError:
        raise
    # The exporter and the compilers raise nearly any error for unknown operators.
    except Exception as error:
        reason = f"{backbone.name} cannot be run by engine '{name}' ({first_line(error)})"
        if isinstance(backbone, PortableNetwork):
            raise DataError(f"{reason}.") from error
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


class TorchEngine:
    """A backbone in PyTorch on one device; `warnings` gives the reason if it replaces another engine."""

    name = "torch"

    def __init__(
        self, backbone: Backbone, device: torch.device | str = "cpu", warnings: tuple[str, ...] = ()
    ) -> None:
        self.backbone, self.device, self.warnings = backbone, device, warnings
        self._network = backbone.load(device)

    def features(self, pixels: Pixels) -> Floats:
        """Compute features (B, D) of images (B, H, W, 3)."""
        import torch

        check_pixels(pixels, self.backbone.crop)
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).to(self.device)
            features: Floats = self._network(batch).float().cpu().numpy()
        return features


class CompiledEngine:
    """A backbone compiled for this CPU, in one stream per core, each of which computes one image at a time.

    This is at least as fast as larger batches, since no core waits for another one inside a layer. The features of an
    image do not depend on its batch, and a single image costs no more than in a batch.
    """

    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        backbone: Backbone | PortableNetwork,
        model: bytes,
        outputs: tuple[str, ...] = ("features",),
    ) -> None:
        self.name, self.backbone = name, backbone
        self._runner = _COMPILERS[name](model, outputs)
        # OpenVINO creates tables at its first call, and two first calls at once were seen to lock up.
        first = self._runner(np.zeros((1, backbone.crop, backbone.crop, 3), dtype=np.uint8))
        if first.shape != (1, backbone.features):
            raise ValueError(f"its features have shape {first.shape}, not (1, {backbone.features})")
        self._streams = ThreadPoolExecutor(max_workers=streams(), thread_name_prefix=name)

    def features(self, pixels: Pixels) -> Floats:
        """Compute features (B, D) of images (B, H, W, 3)."""
        check_pixels(pixels, self.backbone.crop)
        singles = (pixels[row : row + 1] for row in range(len(pixels)))
        return np.concatenate(list(self._streams.map(self._runner, singles)))


# Several threads may share an engine.
Engine: TypeAlias = TorchEngine | CompiledEngine


def streams() -> int:
    """Return the number of images to compute at once, which is PyTorch's number of threads.

    If PyTorch is not loaded, it is OMP_NUM_THREADS, as PyTorch would read it, or the number of CPUs of this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        threads: int = torch.get_num_threads()
        return threads
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) > 0 else cpu_count()


def open_compiled(name: str, backbone: Backbone, folder: Path | None) -> CompiledEngine:
    """Compile a backbone, or the converted network in `folder` by the same libraries; any error of theirs is raised."""
    import torch

    file = None
    # The key of random weights does not identify the network.
    if folder is not None and backbone.weights is not None:
        packages = ("torch", "torchvision", "timm", ENGINES[name])
        versions = "-".join(f"{package}{metadata.version(package)}" for package in packages)
        key = re.sub(r"[^\w.+-]", "_", f"{backbone.key}-{versions}")
        file = folder / f"{key}.npz"
    if file is not None and file.exists():
        # A damaged file is converted again.
        with suppress(DataError):
            return CompiledEngine(name, backbone, read_npz(file, "onnx")["onnx"].tobytes())
    network = backbone.load()
    example = torch.zeros(1, backbone.crop, backbone.crop, 3, dtype=torch.uint8)
    model = traced(network, example, "pixels", ("features",), any_batch=False)
    engine = CompiledEngine(name, backbone, model)
    _check_agreement(engine, network, backbone.crop)
    if file is not None:
        try:
            # The bare bytes would have no checksum, as an .npz has.
            write_npz(file, {"onnx": np.frombuffer(model, dtype=np.uint8)})
        except OutputError as error:
            warning = f"the converted network is not kept, so the next start converts it again: {error}"
            engine.warnings = (warning,)
    return engine


def _check_agreement(engine: CompiledEngine, network: nn.Module, size: int) -> None:
    """Compare a compiled network with PyTorch's on a random image of 8 x 8 squares; ValueError if they differ.

    Tracing records one path through the network, which may have others.
    """
    import torch

    coarse = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    factor = -(-size // 8)
    fine = coarse.repeat(factor, axis=1).repeat(factor, axis=2)[:, :size, :size]
    pixels = np.ascontiguousarray(fine)
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels)).float().numpy()
    largest = float(np.abs(engine.features(pixels) - expected).max())
    # The comparison is negated so that NaN is an error.
    if not largest <= _TOLERANCE * float(np.abs(expected).max()):
        raise ValueError(f"its features differ from PyTorch's by up to {largest:.2g}")


def traced(
    network: nn.Module, example: Tensor, name: str, outputs: tuple[str, ...], any_batch: bool = True
) -> bytes:
    """Return the ONNX file of a network of one input `name`, by tracing it with an example."""
    import torch

    stream = io.BytesIO()
    names = (name, *outputs)
    with warnings.catch_warnings():
        # The exporter warns that tracing is deprecated, and of each size that it fixes, which is intended.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            stream,  # type: ignore[arg-type]  # torch accepts streams too
            dynamo=False,
            opset_version=_OPSET,
            input_names=[name],
            output_names=list(outputs),
            dynamic_axes={axis: {0: "batch"} for axis in names} if any_batch else None,
        )
    return stream.getvalue()


def onnx_runner(model: bytes, outputs: tuple[str, ...]) -> Runner:
    """Compile a network by ONNX Runtime, for any number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The threads of the caller are the streams.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # A memory pattern needs 15 MB and saves no time.
    options.enable_mem_pattern = False
    # Errors are raised, and warnings are not for users.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(inputs: NDArray[Any]) -> Floats:
        return _side_by_side(session.run(list(outputs), {name: inputs}))

    return run


def _side_by_side(parts: list[NDArray[Any]]) -> Floats:
    """Join outputs (B, ...) of any type to one array (B, D) of float32."""
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def openvino_runner(model: bytes, outputs: tuple[str, ...]) -> Runner:
    """Compile a network by OpenVINO in float32; its default of 16-bit arithmetic on some CPUs flips bits of codes."""
    openvino = require("openvino")
    count = streams()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": count, "INFERENCE_NUM_THREADS": count}
    # Several processes would be pinned to the same cores.
    settings["ENABLE_CPU_PINNING"] = False
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    # Only one thread at a time may use a request.
    local = threading.local()

    def run(inputs: NDArray[Any]) -> Floats:
        request: Any = getattr(local, "request", None)
        if request is None:
            request = local.request = compiled.create_infer_request()
        results = request.infer([inputs], share_inputs=True)
        return _side_by_side([results[name] for name in outputs])

    return run


_COMPILERS = {"onnx": onnx_runner, "openvino": openvino_runner}
