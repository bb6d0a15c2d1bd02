"""A converted network compiled by one library, as a function of one image; its library is imported when it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.extras import require

Run = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


def onnx_runner(model: bytes, streams: int) -> Run:
    """ONNX Runtime; a session may be run by any number of threads, so that `streams` need not be known."""
    onnxruntime = require("onnxruntime")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the streams are the threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        features: NDArray[np.float32] = session.run(None, {name: pixels})[0]
        return features

    return run


def openvino_runner(model: bytes, streams: int) -> Run:
    """OpenVINO in float32: by itself it takes 16-bit arithmetic where there is some, which flips bits of codes."""
    openvino = require("openvino")

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams,
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    own = threading.local()  # a request serves one thread at a time

    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        request: Any = getattr(own, "request", None)
        if request is None:
            request = own.request = compiled.create_infer_request()
        features: NDArray[np.float32] = request.infer([pixels], share_inputs=True)[0].copy()
        return features

    return run
