"""centerhash: compact binary codes for multi-label images, learned around hash centers.

    import centerhash

    data = centerhash.open_dataset("photos")
    model = centerhash.train(data, method="ics", bits=64)       # needs centerhash[train]
    model.encode("photo.jpg")                                   # (64,) of -1 and +1
    print(centerhash.evaluate(model, data))

The letters used in every shape: B batch, N database, Q queries, C classes, D features, K bits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from centerhash.core.extras import missing_library
from centerhash.core.parallel import use_passive_omp_wait
from centerhash.core.version import __version__

use_passive_omp_wait()  # before anything here imports torch

if TYPE_CHECKING:
    from centerhash import losses, weights
    from centerhash.centers import hash_centers
    from centerhash.codes import binarize, hamming, pack, unpack
    from centerhash.core.errors import CenterhashError
    from centerhash.data import Dataset, Splits, open_dataset, sample
    from centerhash.evaluation import Evaluation, ranking
    from centerhash.evaluation import evaluate as evaluate_codes
    from centerhash.index import Index
    from centerhash.methods.registry import METHODS, get_method, register_method
    from centerhash.model.loading import load
    from centerhash.model.model import HashModel
    from centerhash.photos import PhotoIndex
    from centerhash.training.config import TrainConfig
    from centerhash.training.run import evaluate, train

# The public names by their module: imported on first use, so that `import centerhash` and the command line's help need
# neither torch nor numba.
_NAMES = {
    "centers": ("hash_centers",),
    "codes": ("binarize", "hamming", "pack", "unpack"),
    "core.errors": ("CenterhashError",),
    "data": ("Dataset", "Splits", "open_dataset", "sample"),
    "evaluation": ("Evaluation", "ranking"),
    "index": ("Index",),
    "methods.registry": ("METHODS", "get_method", "register_method"),
    "model.loading": ("load",),
    "model.model": ("HashModel",),
    "photos": ("PhotoIndex",),
    "training.config": ("TrainConfig",),
    "training.run": ("evaluate", "train"),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES["evaluate_codes"] = ("evaluation", "evaluate")
_MODULES = ("losses", "weights")

__all__ = [
    "METHODS",
    "CenterhashError",
    "Dataset",
    "Evaluation",
    "HashModel",
    "Index",
    "PhotoIndex",
    "Splits",
    "TrainConfig",
    "__version__",
    "binarize",
    "evaluate",
    "evaluate_codes",
    "get_method",
    "hamming",
    "hash_centers",
    "load",
    "losses",
    "open_dataset",
    "pack",
    "ranking",
    "register_method",
    "sample",
    "train",
    "unpack",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in (*_HOMES, *_MODULES):
        raise AttributeError(f"module 'centerhash' has no attribute '{name}'")
    try:
        if name in _MODULES:
            return importlib.import_module(f"centerhash.{name}")
        module, original = _HOMES[name]
        return getattr(importlib.import_module(f"centerhash.{module}"), original)
    except ImportError as error:
        missing = missing_library(error)
        if missing is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    return sorted(__all__)
