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

if TYPE_CHECKING:
    from centerhash.centers import hash_centers
    from centerhash.codes import binarise, hamming, pack, unpack
    from centerhash.collection import Collection
    from centerhash.data import Dataset, Splits, open_dataset
    from centerhash.errors import CenterhashError
    from centerhash.evaluation import Evaluation, evaluate, ranking
    from centerhash.fitting import evaluate_model, fit
    from centerhash.methods import METHODS
    from centerhash.model import HashModel
    from centerhash.train import TrainConfig

__version__ = "0.1.0"

# The public names and where they live: imported on first use, so that `import centerhash` and the command
# line's help do not wait for torch and numba.
_HOMES = {
    "CenterhashError": "errors",
    "Collection": "collection",
    "Dataset": "data",
    "Evaluation": "evaluation",
    "HashModel": "model",
    "METHODS": "methods",
    "Splits": "data",
    "TrainConfig": "train",
    "binarise": "codes",
    "evaluate": "evaluation",
    "evaluate_model": "fitting",
    "fit": "fitting",
    "hamming": "codes",
    "hash_centers": "centers",
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
