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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.files import (
    explain_write_errors,
    parse_json,
    refuse_links,
    write_json,
    write_text,
)
from centerhash.core.locks import writer_lock
from centerhash.core.version import __version__
from centerhash.data import Dataset
from centerhash.model.spec import PORTABLE, TUNED
from centerhash.networks.tensors import load_tensors, save_tensors
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.distributed import ProcessGroup

CHECKPOINT, HEAD_CHECKPOINT = "checkpoint.safetensors", "checkpoint-head.safetensors"
CODES = ("query.npz", "database.npz")
_MODEL = ("model.json", "model.safetensors")
_RESULTS = (*CODES, *_MODEL, PORTABLE, TUNED, "weights.npz")
_CHECKPOINTS = "checkpoint*.safetensors"
_LOCK = "lock"
_BUSY = (
    "process {holder} is training into '{folder}': wait until it has finished, or train into another folder."
)

# One line of the log: epoch, loss, its parts, learning rate, seconds.
EpochRow: TypeAlias = dict[str, float]
Modules: TypeAlias = Mapping[str, nn.Module]


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
        "splits": dataset.splits.made,
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
        config = parse_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"'{folder}' is not a run: it has no config.json.") from None
    except ValueError as error:  # not json, or not UTF-8
        raise DataError(f"'{path}' is damaged ({error}); overwrite the run to train it again.") from None
    if not isinstance(config, dict):
        raise DataError(f"'{path}' is no json object; overwrite the run to train it again.")
    return config


def store_checkpoint(
    path: Path, modules: Modules, optimizer: torch.optim.Optimizer, log: list[EpochRow]
) -> None:
    """Write everything that a run needs to resume as one safetensors file, atomically."""
    tensors = {
        f"{kind}.{name}": value
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    save_tensors(path, tensors, {"log": json.dumps(log)})


def restore_checkpoint(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read a file written by `store_checkpoint` into modules and optimizer; return the log so far."""
    try:
        tensors, metadata = load_tensors(path)
        log: list[EpochRow] = parse_json(metadata["log"])
        for kind, module in modules.items():
            module.load_state_dict(_below(tensors, kind))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _below(tensors, "optimizer").items():
            number, name = key.split(".", 1)
            state.setdefault(int(number), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if not isinstance(log, list) or [row["epoch"] for row in log] != list(range(1, len(log) + 1)):
            raise ValueError("its log does not list the first epochs")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"the checkpoint '{path}' is damaged or of another run ({first_line(error)}): delete it to train from the "
            "start."
        ) from None
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            # a fused step relies on the memory layout of the parameter
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                known[name] = torch.empty_like(parameter).copy_(value)
    return log


def _below(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of one kind, by their names without it."""
    prefix = f"{kind}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
