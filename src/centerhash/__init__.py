"""centerhash: compact binary codes for multi-label images, learned around hash centers.

    import centerhash

    data = centerhash.open_dataset("photos")
    model = centerhash.fit(data, centerhash.TrainConfig(method="ics", bits=64))
    codes = model.encode(["photo.jpg"])
    centerhash.evaluate_model(model, data).map_peers

The letters used in every shape: B batch, N database, Q queries, C classes, D features, K bits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from centerhash.core.version import __version__

if TYPE_CHECKING:
    from centerhash.codes import binarise, hamming, pack, unpack
    from centerhash.core.errors import CenterhashError
    from centerhash.data import Dataset, Splits, open_dataset
    from centerhash.evaluation import Evaluation, evaluate, ranking
    from centerhash.methods.centers import hash_centers
    from centerhash.methods.table import METHODS
    from centerhash.model import HashModel
    from centerhash.search import Collection
    from centerhash.training.fitting import evaluate_model, fit
    from centerhash.training.loop import TrainConfig


# The public names and where they live: imported on first use, so that `import centerhash` and the command
# line's help do not wait for torch and numba.
_HOMES = {
    "CenterhashError": "core.errors",
    "Collection": "search",
    "Dataset": "data",
    "Evaluation": "evaluation",
    "HashModel": "model",
    "METHODS": "methods.table",
    "Splits": "data",
    "TrainConfig": "training.loop",
    "binarise": "codes",
    "evaluate": "evaluation",
    "evaluate_model": "training.fitting",
    "fit": "training.fitting",
    "hamming": "codes",
    "hash_centers": "methods.centers",
    "open_dataset": "data",
    "pack": "codes",
    "ranking": "evaluation",
    "unpack": "codes",
}

__all__ = [
    "METHODS",
    "CenterhashError",
    "Collection",
    "Dataset",
    "Evaluation",
    "HashModel",
    "Splits",
    "TrainConfig",
    "__version__",
    "binarise",
    "evaluate",
    "evaluate_model",
    "fit",
    "hamming",
    "hash_centers",
    "open_dataset",
    "pack",
    "ranking",
    "unpack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'centerhash' has no attribute '{name}'")
    return getattr(importlib.import_module(f"centerhash.{_HOMES[name]}"), name)
