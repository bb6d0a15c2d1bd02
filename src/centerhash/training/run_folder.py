"""The folder of a run: one training run on one dataset, and everything that is kept of it. Nothing is unpickled.

config.json              configuration, dataset, origin of the splits, seed, versions; identifies the run
splits.npz               rows of the training, query and database images, and of those held out for validation
log.jsonl                losses per epoch
checkpoint*.safetensors  only until the run is finished
model.safetensors, model.json
model.onnx               the same model, for use without PyTorch
backbone.safetensors     if the backbone was fine-tuned
weights.npz              central methods: learned weight of every label of every training image
query.npz, database.npz  code files with labels, rows, and names of image files; database.npz is written last and
                         marks a finished run
16/, 32/                 nested codes: model and code files of each shorter length
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import first_bits
from centerhash.core.errors import ConfigError, DataError, OutputError, first_line
from centerhash.core.files import (
    explain_write_errors,
    make_folder,
    parse_json,
    refuse_links,
    write_json,
    write_npz,
    write_text,
)
from centerhash.core.locks import writer_lock
from centerhash.core.version import __version__
from centerhash.data import Dataset
from centerhash.encoding.code_files import DATABASE, QUERY, CodeFile, write_codes
from centerhash.model.model import HashModel
from centerhash.model.spec import FILES, PORTABLE, TORCH_FILES
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import EpochRow, RunContext
from centerhash.training.finish import Fit
from centerhash.training.pipeline import encode_splits

_WEIGHTS_CHUNK = 4096
_RESULTS = (QUERY, DATABASE, *FILES, "weights.npz")
_CHECKPOINTS = "checkpoint*.safetensors"
_LOCK = "lock"
_BUSY = (
    "process {holder} is training into '{folder}': wait until it has finished, or train into another folder."
)


def is_finished(folder: Path) -> bool:
    """Return whether a run is complete: its codes are written last."""
    return all((folder / name).exists() for name in (*TORCH_FILES, QUERY, DATABASE))


def drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints, which a finished run does not need."""
    _delete(folder.glob(_CHECKPOINTS), folder)


def _delete(files: Iterable[Path], folder: Path) -> None:
    with explain_write_errors(folder):
        for file in files:
            file.unlink(missing_ok=True)


def fingerprint(dataset: Dataset) -> str:
    """Return a digest of what training uses of a dataset besides the pixels: names, classes, labels, splits."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join((*dataset.classes, "", *dataset.names)).encode())
    for array in (dataset.labels, dataset.splits.train, dataset.splits.query, dataset.splits.database):
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    if dataset.features is not None:
        # A thousand rows suffice to detect other features, and are quick to read.
        digest.update(f"{dataset.features.shape} {dataset.features.dtype}".encode())
        digest.update(np.ascontiguousarray(dataset.features[:: max(1, dataset.size // 1000)]).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the libraries that affect the numbers."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "timm", "pillow")}
    return {"centerhash": __version__, "python": platform.python_version(), **packages}


@contextmanager
def open_run(
    path: str | Path,
    dataset: Dataset,
    config: TrainConfig,
    context: RunContext,
    *,
    overwrite: bool = False,
) -> Iterator[RunContext]:
    """Create or check the folder of a run and lock it for the block; yield the context with this folder and its log.

    A finished run is only read, and not locked.
    """
    folder, is_main = make_folder(path), context.group.is_main

    def on_epoch(log: list[EpochRow]) -> None:
        write_text(folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in log))
        context.on_epoch(log)

    writes = is_main and (overwrite or not is_finished(folder))
    with writer_lock(folder / _LOCK, _BUSY) if writes else nullcontext():
        if is_main:
            _init_or_check(folder, dataset, config, overwrite)
        context.group.barrier()
        yield replace(context, folder=folder, on_epoch=on_epoch)


def _init_or_check(folder: Path, dataset: Dataset, config: TrainConfig, overwrite: bool) -> None:
    checkpoints = [path.name for path in folder.glob(_CHECKPOINTS)]
    # Folders of shorter codes are named by their lengths.
    subfolders = [path for path in folder.iterdir() if path.name.isdecimal()]
    refuse_links(folder, ("config.json", *_RESULTS, *checkpoints, *(path.name for path in subfolders)))
    # An interrupted write leaves a temporary file.
    _delete(folder.glob(".*.part"), folder)
    settings = config.model_dump(mode="json")
    if dataset.kind == "images":
        # Defaults of the backbone are stored too, since they may change.
        backbone = backbone_of(config)
        settings |= {"crop": backbone.crop, "pool": backbone.pool}
    data = {"name": dataset.name, "images": len(dataset.labels), "fingerprint": fingerprint(dataset)}
    identity = {"config": settings, "data": data}
    config_file = folder / "config.json"
    if config_file.exists() and not overwrite:
        stored = read_config(folder)
        differences = _differences({key: stored.get(key) for key in identity}, identity)
        if not differences:
            return
        if checkpoints or any((folder / name).exists() for name in _RESULTS):
            raise ConfigError(
                f"'{folder}' holds a run with other settings: {'; '.join(differences)}. Train into another "
                "folder, or overwrite this run."
            )
    _delete((path / name for path in (folder, *subfolders) for name in _RESULTS), folder)
    for subfolder in subfolders:
        # A folder with other files of the user stays.
        with suppress(OSError):
            subfolder.rmdir()
    drop_checkpoints(folder)
    origin = {
        "splits": dataset.splits.source,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "warnings": list(dataset.warnings),
    }
    write_json(config_file, {**identity, **origin})


def _differences(stored: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(new, dict):
        keys = sorted(stored.keys() | new.keys())
        return [text for key in keys for text in _differences(stored.get(key), new.get(key), key)]
    return [] if stored == new else [f"{name} was {stored}, now {new}"]


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the config.json of a run."""
    path = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is no json object")
        return config
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"'{folder}' is not a run: it has no config.json.") from None
    except ValueError as error:
        raise DataError(f"'{path}' is damaged ({error}); overwrite the run to train it again.") from None


def write_results(folder: Path, fit: Fit, dataset: Dataset, context: RunContext) -> None:
    """Write splits, model, weights and codes, then delete the checkpoints."""
    model = fit.model
    train, validation = context.split_validation(fit.splits.train)
    dataset = dataset.with_splits(replace(fit.splits, train=train))
    held_out = {"validation": validation} if len(validation) else {}
    write_npz(folder / "splits.npz", {**dict(dataset.splits.items()), **held_out})
    codes = encode_splits(model, fit.features, dataset, context.progress)
    for bits in (code.bits for code in model.spec.shorter):
        subfolder = make_folder(folder / str(bits))
        _save(model.at(bits), subfolder)
        first = (replace(side, bits=bits, packed=first_bits(side.packed, bits)) for side in codes)
        write_code_files(subfolder, first)
    _save(model, folder)
    if model.has_centers:
        _write_weights(folder, model, fit.features, dataset.labels, train)
    write_code_files(folder, codes)
    drop_checkpoints(folder)


def write_code_files(folder: Path, codes: Iterable[CodeFile]) -> None:
    """Write the codes of the queries, then those of the database."""
    for name, side in zip((QUERY, DATABASE), codes, strict=True):
        write_codes(folder / name, side)


def _save(model: HashModel, folder: Path) -> None:
    """Write a model, and model.onnx; a model that cannot be converted is complete without it."""
    model.save(folder)
    try:
        model.save_portable(folder)
    except OutputError:
        raise
    # The exporter raises nearly anything for operators that it does not support.
    except Exception as error:
        lacks = f"'{folder}' gets no {PORTABLE}, so the model needs PyTorch and cannot be stored in an index"
        warnings.warn(f"{lacks}: {first_line(error)}.", stacklevel=2)


def _write_weights(
    folder: Path, model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], rows: NDArray[np.int64]
) -> None:
    """Store the training images' weights as (row, class, weight) triplets: few labels of many classes are set."""
    triplets = []
    for start in range(0, len(rows), _WEIGHTS_CHUNK):
        chunk = rows[start : start + _WEIGHTS_CHUNK]
        weights = model.weights(features[chunk], labels[chunk])
        image, label = np.nonzero(labels[chunk])
        triplets.append((chunk[image], label, weights[image, label]))
    row, label, weight = (np.concatenate(column) for column in zip(*triplets, strict=True))
    write_npz(folder / "weights.npz", {"rows": row, "classes": label, "weights": weight})
