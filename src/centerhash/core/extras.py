"""Optional libraries: the extra that installs each, and a one-line error if it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from centerhash.core.errors import ConfigError


class Extra(NamedTuple):
    """An extra of the package, and its purpose."""

    name: str
    purpose: str


TRAINING = ("torch", "torchvision", "timm", "lightning_fabric", "numba", "threadpoolctl")

# By the name of the imported module.
EXTRAS: Mapping[str, Extra] = {
    **dict.fromkeys((*TRAINING, "safetensors"), Extra("train", "training and evaluation")),
    "pandas": Extra("train", "tables"),
    **dict.fromkeys(("matplotlib", "sklearn"), Extra("train", "plots")),
    "onnx": Extra("train", "the export of models"),
    "huggingface_hub": Extra("train", "the Hugging Face hub"),
    "openvino": Extra("fast", "the engine 'openvino'"),
    "pyarrow": Extra("parquet", "parquet files"),
    **dict.fromkeys(("pymilvus", "grpc"), Extra("milvus", "an index in Milvus")),
    "ray": Extra("ray", "encoding on Ray"),
}


def require(module: str) -> Any:
    """Import a module of an optional library, or raise ConfigError with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(error.name or module, EXTRAS[module.partition(".")[0]]) from error


def check_installed(*libraries: str) -> None:
    """Raise ConfigError unless optional libraries are installed, without an import of them."""
    for library in libraries:
        if find_spec(library) is None:
            raise _missing(library, EXTRAS[library])


def missing_library(error: ImportError) -> ConfigError | None:
    """Return the error of a missing optional library, or None if the import failed for another reason."""
    library = (error.name or "").partition(".")[0]
    is_missing = library in EXTRAS and find_spec(library) is None
    return _missing(library, EXTRAS[library]) if is_missing else None


def _missing(module: str, extra: Extra) -> ConfigError:
    return ConfigError(
        f"'{module.partition('.')[0]}' is not installed, and {extra.purpose} needs it: "
        f"pip install 'centerhash[{extra.name}]'."
    )
