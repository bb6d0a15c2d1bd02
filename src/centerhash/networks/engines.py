"""Engines that run a backbone, or a whole model in one file: PyTorch on any device, or compiled for the CPU.

    engine = open_engine(get_backbone("efficientnet-lite0"))
    features = engine.features(pixels)

`open_engine` gives the fastest one that is installed; all give the same features up to rounding. Importing this is
quick: torch and the engines' libraries are imported when they are used, and torch only for backbones.
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
# one image (1, H, W, 3) to its features (1, D), or features (B, D) to outputs; from any thread
Runner: TypeAlias = Callable[[NDArray[Any]], Floats]

OPSET = 17
# share of the largest feature; rounding was seen to change 2e-6 of it, 16-bit arithmetic 6e-2
AGREEMENT = 1e-3


@dataclass(frozen=True)
class PortableNetwork:
    """A whole model as one ONNX file: how it reads images, and its outputs, which stand side by side as features."""

    name: str
    resize: int
    crop: int
    interpolation: str
    # D, the width of all outputs
    features: int
    # identifies the features
    key: str
    outputs: tuple[str, ...]
    content: Callable[[], bytes] = field(compare=False)


# With their libraries, the fastest first: the first that is installed is used without a GPU. PyTorch runs on any device.
ENGINES: Mapping[str, str] = {"openvino": "openvino", "onnx": "onnxruntime", "torch": "torch"}


def choose_engine(name: str = "auto", device: str | torch.device = "cpu") -> str:
    """Return the engine to use on a device: as named, or PyTorch on a GPU and else the fastest that is installed."""
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


def choose_portable_engine(name: str = "auto", device: str | torch.device = "auto") -> str:
    """Return the engine for a model in one ONNX file: as named, or ONNX Runtime, which starts faster than OpenVINO."""
    if name == "torch" or str(device) not in ("auto", "cpu"):
        raise ConfigError(
            f"this model is an ONNX file, which runs on the CPU, not by engine '{name}' on device '{device}'. Pass "
            f'`engine="auto"` and `device="auto"`, or encode with the model of the run.'
        )
    return choose_engine("onnx" if name == "auto" else name)


def choose_engine_of(backbone: Backbone | PortableNetwork, name: str, device: str | torch.device) -> str:
    """Return the engine to use for a network on a device; ConfigError for one that cannot run it."""
    choose = choose_portable_engine if isinstance(backbone, PortableNetwork) else choose_engine
    return choose(name, device)


def open_engine(
    backbone: Backbone | PortableNetwork,
    engine: str = "auto",
    device: str | torch.device = "cpu",
    folder: Path | None = None,
) -> Engine:
    """Load a backbone for use; converted networks are kept in `folder`, so that the next start is quick.

    A network that cannot be converted runs in PyTorch, with a warning that gives the reason; an engine chosen by name
    raises ConfigError instead.
    """
    chosen = choose_engine_of(backbone, engine, device)
    try:
        if isinstance(backbone, PortableNetwork):
            return CompiledEngine(chosen, backbone, backbone.content(), backbone.outputs)
        if chosen == "torch":
            return TorchEngine(backbone, device)
        return open_compiled(chosen, backbone, folder)
    except CenterhashError:
        raise  # of the backbone itself, such as missing weights: PyTorch would raise the same
    # exporter and compilers raise nearly anything for operators that they do not know
    except Exception as error:
        reason = f"{backbone.name} cannot be run by engine '{chosen}' ({first_line(error)})"
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
    """A backbone on one device; the whole batch goes through it at once.

    `warnings` say why it is not the expected engine; mostly there are none.
    """

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
    """A backbone compiled for this CPU, by one stream per core, each with one image at a time.

    This is as fast as larger batches or faster (nothing waits for another core inside a layer), an image's features do
    not depend on the batch that it came in, and a single image costs no more than one.
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
        self._runner = _COMPILERS[name](model, streams(), outputs)
        # once in this thread: OpenVINO sets up tables at its first call, and two first calls at once were seen to lock up
        first = self._runner(np.zeros((1, backbone.crop, backbone.crop, 3), dtype=np.uint8))
        if first.shape != (1, backbone.features):
            raise ValueError(f"its features have shape {first.shape}, not (1, {backbone.features})")
        self._streams = ThreadPoolExecutor(max_workers=streams(), thread_name_prefix=name)

    def features(self, pixels: Pixels) -> Floats:
        """Compute features (B, D) of images (B, H, W, 3)."""
        check_pixels(pixels, self.backbone.crop)
        singles = (pixels[row : row + 1] for row in range(len(pixels)))
        return np.concatenate(list(self._streams.map(self._runner, singles)))


# A network that is ready to run; safe to use from several threads.
Engine: TypeAlias = TorchEngine | CompiledEngine


def streams() -> int:
    """Return how many images are computed at once: PyTorch's number of threads, so that one setting decides both.

    If PyTorch is not loaded: OMP_NUM_THREADS, as PyTorch would read it, or the CPUs of this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        threads: int = torch.get_num_threads()
        return threads
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isdecimal() and int(named) > 0 else cpu_count()


def open_compiled(name: str, backbone: Backbone, folder: Path | None) -> CompiledEngine:
    """Compile a backbone, out of `folder` if it was converted before; raises whatever the libraries raise."""
    import torch

    file = _stored_file(name, backbone, folder)
    if file is not None and file.exists():
        with suppress(DataError):  # a damaged file is converted again
            return CompiledEngine(name, backbone, read_npz(file, "onnx")["onnx"].tobytes())
    network = backbone.load()
    example = torch.zeros(1, backbone.crop, backbone.crop, 3, dtype=torch.uint8)
    model = traced(network, example, "pixels", ("features",), any_batch=False)
    engine = CompiledEngine(name, backbone, model)
    _check_agreement(engine, network, backbone.crop)
    if file is not None:
        try:
            # an .npz and not the bare bytes: it carries a checksum
            write_npz(file, {"onnx": np.frombuffer(model, dtype=np.uint8)})
        except OutputError as error:
            reason = f"the converted network is not kept, so the next start converts it again: {error}"
            engine.warnings = (reason,)
    return engine


def _stored_file(engine: str, backbone: Backbone, folder: Path | None) -> Path | None:
    """Return where a converted backbone is kept: by its own key and the versions of all that decide the conversion.

    None without a folder and for random weights, which no key tells apart from those of another network.
    """
    if folder is None or backbone.weights is None:
        return None
    packages = ("torch", "torchvision", "timm", ENGINES[engine])
    versions = "-".join(f"{package}{metadata.version(package)}" for package in packages)
    name = re.sub(r"[^\w.+-]", "_", f"{backbone.key}-{versions}")
    return folder / f"{name}.npz"


def _check_agreement(engine: CompiledEngine, network: nn.Module, size: int) -> None:
    """Compare a compiled network with PyTorch's once: tracing follows one path through it, maybe not the only one.

    The image is random, of 8 x 8 squares.
    """
    import torch

    coarse = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    factor = -(-size // 8)
    fine = coarse.repeat(factor, axis=1).repeat(factor, axis=2)[:, :size, :size]
    pixels = np.ascontiguousarray(fine)
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels)).float().numpy()
    largest = float(np.abs(engine.features(pixels) - expected).max())
    if not largest <= AGREEMENT * float(np.abs(expected).max()):  # NaN is no agreement
        raise ValueError(f"its features differ from PyTorch's by up to {largest:.2g}")


def traced(
    network: nn.Module, example: Tensor, name: str, outputs: tuple[str, ...], any_batch: bool = True
) -> bytes:
    """Return the ONNX file of a network of one input `name`, by tracing it with an example."""
    import torch

    stream = io.BytesIO()
    names = (name, *outputs)
    with warnings.catch_warnings():
        # The exporter by tracing is deprecated, and warns of every choice that tracing fixes; sizes are fixed
        # here on purpose, and the result is compared with the network.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            stream,  # type: ignore[arg-type]  # streams are taken as well
            dynamo=False,
            opset_version=OPSET,
            input_names=[name],
            output_names=list(outputs),
            dynamic_axes={axis: {0: "batch"} for axis in names} if any_batch else None,
        )
    return stream.getvalue()


def onnx_runner(model: bytes, streams: int, outputs: tuple[str, ...] = ("features",)) -> Runner:
    """Compile by ONNX Runtime; any number of threads may run a session, so that `streams` is not needed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the streams are the threads
    options.enable_mem_pattern = False  # as quick without, and 15 MB smaller
    options.log_severity_level = 3  # warnings are not for users; errors are raised
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(inputs: NDArray[Any]) -> Floats:
        return _side_by_side(session.run(list(outputs), {name: inputs}))

    return run


def _side_by_side(parts: list[NDArray[Any]]) -> Floats:
    """Join outputs (B, ...) of any type to one array (B, D) of float32."""
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def openvino_runner(model: bytes, streams: int, outputs: tuple[str, ...] = ("features",)) -> Runner:
    """Compile by OpenVINO in float32: its default is 16-bit arithmetic if the CPU has some, which flips bits of codes."""
    openvino = require("openvino")

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams,
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    local = threading.local()  # a request serves one thread at a time

    def run(inputs: NDArray[Any]) -> Floats:
        request: Any = getattr(local, "request", None)
        if request is None:
            request = local.request = compiled.create_infer_request()
        results = request.infer([inputs], share_inputs=True)
        return _side_by_side([results[name] for name in outputs])

    return run


_COMPILERS = {"onnx": onnx_runner, "openvino": openvino_runner}
