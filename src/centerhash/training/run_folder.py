"""The folder of a run: one training run on one dataset, and everything that is kept of it. Nothing is unpickled.

config.json        configuration, dataset, origin of the splits, seed, versions; identifies the run
splits.npz         rows of the training, query and database images, and of those held out for validation
log.jsonl          losses per epoch
checkpoint*.safetensors  only until the run is finished
model.safetensors, model.json
model.onnx         the same model, for use without PyTorch
backbone.safetensors     if the backbone was fine-tuned
weights.npz        central methods: learned weight of every label of every training image
query.npz, database.npz  code files with labels, rows, and names of image files; the database is
                   written last and marks a finished run
16/, 32/           of nested codes: model and code files of each shorter length
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, first_bits, pack, packed_width
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
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.encoding.code_files import CodeFile, write_codes
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.model.spec import PORTABLE, TUNED
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import EpochRow, RunContext
from centerhash.training.distributed import ProcessGroup

# rows encoded at a time: bounds memory, does not affect results
_CHUNK = 8192
CODES = ("query.npz", "database.npz")
_MODEL = ("model.json", "model.safetensors")
_RESULTS = (*CODES, *_MODEL, PORTABLE, TUNED, "weights.npz")
_CHECKPOINTS = "checkpoint*.safetensors"
_LOCK = "lock"
_BUSY = (
    "process {holder} is training into '{folder}': wait until it has finished, or train into another folder."
)


def is_finished(folder: Path) -> bool:
    """Return whether a run is complete: its codes are written last."""
    return all((folder / name).exists() for name in (*_MODEL, *CODES))


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
        # a thousand rows suffice to detect other features, and are quick to read
        digest.update(f"{dataset.features.shape} {dataset.features.dtype}".encode())
        digest.update(np.ascontiguousarray(dataset.features[:: max(1, dataset.size // 1000)]).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the libraries that affect the numbers."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "timm", "pillow")}
    return {"centerhash": __version__, "python": platform.python_version(), **packages}


def write_log(folder: Path, log: list[EpochRow]) -> None:
    """Write the losses per epoch so far."""
    write_text(folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in log))


@contextmanager
def open_run(
    folder: Path, dataset: Dataset, config: TrainConfig, group: ProcessGroup, *, overwrite: bool = False
) -> Iterator[None]:
    """Start a run in a folder, or check that the folder holds this very run already, and lock it for the block.

    A finished run is only read, and not locked.
    """
    writes = group.is_main and (overwrite or not is_finished(folder))
    with writer_lock(folder / _LOCK, _BUSY) if writes else nullcontext():
        if group.is_main:
            _init_or_check(folder, dataset, config, overwrite)
        group.barrier()
        yield


def _init_or_check(folder: Path, dataset: Dataset, config: TrainConfig, overwrite: bool) -> None:
    checkpoints = [path.name for path in folder.glob(_CHECKPOINTS)]
    nested = [path for path in folder.iterdir() if path.name.isdecimal()]  # shorter codes
    refuse_links(folder, ("config.json", *_RESULTS, *checkpoints, *(path.name for path in nested)))
    _delete(folder.glob(".*.part"), folder)  # of an interrupted write
    settings = config.model_dump(mode="json")
    if dataset.kind == "images":  # named even if left to the backbone, whose defaults may change
        backbone = backbone_of(config)
        settings |= {"crop": backbone.crop, "pool": backbone.pool}
    data = {"name": dataset.name, "images": len(dataset.labels), "fingerprint": fingerprint(dataset)}
    identity = {"config": settings, "data": data}
    path = folder / "config.json"
    if path.exists() and not overwrite:
        stored = read_config(folder)
        differences = _differences({key: stored.get(key) for key in identity}, identity)
        if not differences:
            return
        if checkpoints or any((folder / name).exists() for name in _RESULTS):
            raise ConfigError(
                f"'{folder}' holds a run with other settings: {'; '.join(differences)}. Train into another "
                "folder, or overwrite this run."
            )
    for inside in (folder, *nested):
        _delete((inside / name for name in _RESULTS), folder)
    for inside in nested:
        with suppress(OSError):  # it holds other files of the user
            inside.rmdir()
    drop_checkpoints(folder)
    origin = {
        "splits": dataset.splits.source,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "warnings": list(dataset.warnings),
    }
    write_json(path, {**identity, **origin})


def _differences(stored: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(now, dict):
        keys = sorted(stored.keys() | now.keys())
        return [text for key in keys for text in _differences(stored.get(key), now.get(key), key)]
    return [] if stored == now else [f"{name} was {stored}, now {now}"]


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
    except ValueError as error:  # not json, or not UTF-8
        raise DataError(f"'{path}' is damaged ({error}); overwrite the run to train it again.") from None


def write_results(
    folder: Path,
    model: HashModel,
    features: NDArray[Any],
    dataset: Dataset,
    splits: Splits,
    context: RunContext,
) -> None:
    """Write splits, model, weights and codes, then delete the checkpoints."""
    train, validation = context.split_validation(splits.train)
    splits = replace(splits, train=train)
    held_out = {"validation": validation} if len(validation) else {}
    write_npz(folder / "splits.npz", {**dict(splits.items()), **held_out})
    packed = packed_codes(model, features, (splits.query, splits.database), context.progress)
    for part in model.spec.shorter:
        inside = make_folder(folder / str(part.bits))
        _save(model.at(part.bits), inside)
        prefixes = [first_bits(codes, part.bits) for codes in packed]
        write_code_files(inside, part.bits, prefixes, dataset, splits)
    _save(model, folder)
    if model.has_centers:
        _write_weights(folder, model, features, dataset.labels, train)
    write_code_files(folder, model.bits, packed, dataset, splits)
    drop_checkpoints(folder)


def write_code_files(
    folder: Path, bits: int, packed: Sequence[Packed], dataset: Dataset, splits: Splits
) -> None:
    """Write query.npz and database.npz: codes with rows, labels, and names of image files."""
    for name, rows, codes in zip(CODES, (splits.query, splits.database), packed, strict=True):
        names = [dataset.names[row] for row in rows.tolist()] if dataset.kind == "images" else None
        stored = CodeFile(bits, codes, names, ids=rows)
        if dataset.has_labels:
            stored = replace(stored, labels=dataset.labels[rows], classes=dataset.classes)
        write_codes(folder / name, stored)


def _save(model: HashModel, folder: Path) -> None:
    """Write a model, and model.onnx; a model that cannot be converted is complete without it."""
    model.save(folder)
    try:
        model.save_portable(folder)
    except OutputError:
        raise
    except Exception as error:  # the exporter raises nearly anything for operators that it does not know
        lacks = f"'{folder}' gets no {PORTABLE}, so the model needs PyTorch and cannot be stored in an index"
        warnings.warn(f"{lacks}: {first_line(error)}.", stacklevel=2)


def _write_weights(
    folder: Path, model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], rows: NDArray[np.int64]
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


def packed_codes(
    model: Model,
    features: NDArray[Any],
    sides: Sequence[NDArray[np.int64]],
    progress: Progress = silent,
) -> list[Packed]:
    """Encode `features[rows]` into packed codes for the rows of each side (query, database)."""
    total, done, codes = sum(map(len, sides)), 0, []
    for rows in sides:
        packed = np.empty((len(rows), packed_width(model.bits)), dtype=np.uint8)
        for part, logits in logits_in_chunks(model, features, rows):
            packed[part] = pack(binarize(logits))
            done += len(logits)
            progress("encoding", done, total)
        codes.append(packed)
    return codes


def logits_in_chunks(
    model: Model, features: NDArray[Any], rows: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield logits (n, K) of `features[rows]`, a few thousand rows at a time, each with its slice of the rows."""
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, model.logits(features[rows[part]])
