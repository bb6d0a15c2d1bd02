"""The folder of a run: one training on one data set, and all that is kept of it.

config.json        configuration, data set, splits' origin, seed, versions; decides what the run is
splits.npz         rows of the training, query and database images, and of those held out to watch
log.jsonl          losses per epoch
log.csv, tensorboard/, loggers.json  where a logger was asked for
checkpoint*.safetensors  only until the run is finished
model.safetensors, model.json
backbone.safetensors     where the backbone was fine-tuned
weights.npz        central methods: learned weight of every label of every training image
query.npz, database.npz  code files with labels and rows; the database is written last: the run is finished
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import (
    explain_write_errors,
    parse_json,
    refuse_links,
    write_json,
    write_npz,
    write_text,
)
from centerhash.core.progress import Progress
from centerhash.core.version import __version__
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.model.model import TUNED, HashModel
from centerhash.networks.backbones import Backbone
from centerhash.training.checkpoints import EpochRow
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.scoring import packed_codes

_MODEL = ("model.json", "model.safetensors")
_CODES = ("query.npz", "database.npz")
_LOGS = ("log.csv", "loggers.json")
_OLD_CODES = "codes.npz"  # both in one file, of version 0.1


def is_finished(folder: Path) -> bool:
    """Whether a run is complete: its codes are written last."""
    there = {path.name for path in folder.iterdir()}
    return there.issuperset(_MODEL) and (there.issuperset(_CODES) or _OLD_CODES in there)


def write_results(
    folder: Path,
    model: HashModel,
    features: NDArray[Any],
    dataset: Dataset,
    splits: Splits,
    held: NDArray[np.int64],
    progress: Progress,
) -> None:
    """Write splits, model, weights and codes; then the checkpoints can go."""
    watched = {"validation": held} if len(held) else {}
    write_npz(folder / "splits.npz", {**dict(splits.items()), **watched})
    model.save(folder)
    if model.has_centers:
        _write_weights(folder, model, features, dataset.labels, splits.train)
    sides = (splits.query, splits.database)
    for name, rows, packed in zip(_CODES, sides, packed_codes(model, features, sides, progress), strict=True):
        codes = {"packed": packed, "bits": np.array(model.bits), "ids": rows}
        if dataset.has_labels:
            codes |= {"labels": dataset.labels[rows], "classes": np.array(dataset.classes, dtype=str)}
        write_npz(folder / name, codes)
    drop_checkpoints(folder)


def drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints, which a finished run does not need."""
    _delete(folder, checkpoints(folder))


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that a run has at present."""
    return sorted(folder.glob("checkpoint*.safetensors"))


def _delete(folder: Path, files: Iterable[Path]) -> None:
    with explain_write_errors(folder):
        for file in files:
            file.unlink(missing_ok=True)


def fingerprint(dataset: Dataset) -> str:
    """Digest of what training sees of a data set beside the pixels: names, classes, labels, splits."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join((*dataset.classes, "", *dataset.names)).encode())
    for array in (dataset.labels, dataset.splits.train, dataset.splits.query, dataset.splits.database):
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    if dataset.features is not None:  # a thousand rows tell another set of features apart in no time
        digest.update(f"{dataset.features.shape} {dataset.features.dtype}".encode())
        digest.update(np.ascontiguousarray(dataset.features[:: max(1, dataset.size // 1000)]).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "timm", "pillow")}
    return {"centerhash": __version__, "python": platform.python_version(), **packages}


def write_log(folder: Path, log: list[EpochRow]) -> None:
    """Write the losses per epoch so far."""
    write_text(folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in log))


def claim(folder: Path, dataset: Dataset, config: TrainConfig, overwrite: bool) -> None:
    """Write config.json for a new run, or check that the folder holds this very run already."""
    refuse_links(folder, ("config.json", *_MODEL, *_CODES, *(path.name for path in checkpoints(folder))))
    refuse_links(folder, (*_LOGS, "tensorboard", "wandb"))
    _delete(folder, folder.glob(".*.part"))  # of a write that a kill cut off
    seen = _preprocessing(backbone_of(config)) if dataset.kind == "images" else {}
    identity = {
        "config": {**config.model_dump(mode="json"), **seen},
        "data": {"name": dataset.name, "images": len(dataset.labels), "fingerprint": fingerprint(dataset)},
    }
    path = folder / "config.json"
    if path.exists() and not overwrite:
        stored = read_config(folder)
        if isinstance(stored.get("config"), dict):
            # settings that its version did not have yet had their defaults
            known = {**TrainConfig().model_dump(mode="json"), **stored["config"]}
            stored["config"] = known
        differences = _differences({k: stored.get(k) for k in identity}, identity)
        if differences:
            raise ConfigError(
                f"'{folder}' holds a run with other settings: {'; '.join(differences)}. Train into another "
                "folder, or overwrite this run."
            )
        return
    _delete(folder, (folder / name for name in (*_CODES, _OLD_CODES, "weights.npz", *_MODEL, TUNED, *_LOGS)))
    drop_checkpoints(folder)
    facts = {
        "splits": dataset.splits.made,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "warnings": list(dataset.warnings),
    }
    write_json(path, {**identity, **facts})


def _preprocessing(backbone: Backbone) -> dict[str, Any]:
    """Crop and pooling by name: a configuration may leave them to the backbone, which may change its mind."""
    return {"crop": backbone.crop, "pool": backbone.pool}


def _differences(stored: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        keys = sorted(stored.keys() | wanted.keys())
        return [text for key in keys for text in _differences(stored.get(key), wanted.get(key), key)]
    return [] if stored == wanted else [f"{name} was {stored}, now {wanted}"]


def _write_weights(
    folder: Path,
    model: HashModel,
    features: NDArray[Any],
    labels: NDArray[np.bool_],
    rows: NDArray[np.int64],
) -> None:
    """Store the training images' weights as (row, class, weight) triplets: few labels of many classes are set."""
    triplets = []
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        weights = model.weights(features[part], labels[part])
        image, label = np.nonzero(labels[part])
        triplets.append((part[image], label, weights[image, label]))
    row, label, weight = (np.concatenate(column) for column in zip(*triplets, strict=True))
    write_npz(folder / "weights.npz", {"rows": row, "classes": label, "weights": weight})


def read_config(folder: str | Path) -> dict[str, Any]:
    """The config.json of a run."""
    path = Path(folder) / "config.json"
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"'{folder}' is not a run: it has no config.json.") from None
    except ValueError as error:  # no json, or no UTF-8
        raise DataError(f"'{path}' is damaged ({error}); overwrite the run to train it again.") from None
    if not isinstance(config, dict):
        raise DataError(f"'{path}' is damaged (no json object); overwrite the run to train it again.")
    return config
