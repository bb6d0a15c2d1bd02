"""The result files of a run: model, codes, weights and splits.

write_results(folder, model, features, dataset, splits, context)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, first_bits, pack, packed_width
from centerhash.core.errors import OutputError, first_line
from centerhash.core.files import make_folder, write_npz
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.encoding.code_files import CodeFile, write_codes
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.model.spec import PORTABLE
from centerhash.training.context import RunContext
from centerhash.training.run_folder import CODES, drop_checkpoints

# rows encoded at a time: bounds memory, does not affect results
_CHUNK = 8192


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
