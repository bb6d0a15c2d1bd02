"""Code files: packed codes with names, labels and ids in one .npz, written by `encode`, read by `evaluate`.

Arrays: `packed` (N, ceil(K/8)) uint8 and `bits`, or `codes` (N, K) of -1 and +1; for evaluation `labels`
(N, C); optionally `ids` (N,) integers, so that a query can be told apart from its own database item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_codes, pack
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import read_npz, write_npz
from centerhash.data import Dataset, list_images, open_dataset
from centerhash.data.dataset import is_described
from centerhash.evaluation import evaluate

if TYPE_CHECKING:
    from centerhash.evaluation import Evaluation
    from centerhash.model import HashModel
    from centerhash.networks.features import FeatureTable, Progress


@dataclass(frozen=True)
class CodeFile:
    """One side of an evaluation."""

    bits: int
    packed: Packed
    labels: NDArray[Any]  # (N, C) of bool, or of 0 and 1
    ids: NDArray[np.int64] | None


@dataclass(frozen=True)
class Written:
    """What `encode_to_file` did."""

    count: int
    warnings: tuple[str, ...]
    engine: str | None = None  # that computed features; None where none were to compute


def read_code_file(path: Path) -> CodeFile:
    """Read a code file with labels, or say what it lacks."""
    arrays = read_npz(path)
    if "packed" in arrays and "bits" in arrays:
        bits, packed = whole_number(path, arrays["bits"]), arrays["packed"]
    elif "codes" in arrays:
        codes = check_codes(arrays["codes"], f"codes in '{path}'")
        bits, packed = codes.shape[1], pack(codes)
    else:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"'{path}' holds {found}: it needs `packed` and `bits`, or `codes` of -1 and +1.")
    if "labels" not in arrays:
        raise DataError(
            f"'{path}' has no array `labels` (N, C): encode a folder with labels.csv, or add the labels."
        )
    labels = arrays["labels"]
    if labels.ndim != 2 or packed.ndim != 2 or len(labels) != len(packed):
        raise DataError(f"'{path}': labels of shape {labels.shape} do not fit codes of shape {packed.shape}.")
    return CodeFile(bits, packed, labels, arrays.get("ids"))


def whole_number(path: str | Path, bits: NDArray[Any]) -> int:
    """The number of bits K that a code file states."""
    if bits.size != 1 or bits.dtype.kind not in "iu":
        raise DataError(f"'{path}': `bits` must be one whole number, got {bits.dtype} of shape {bits.shape}.")
    return int(bits.item())


def read_evaluation_codes(paths: Sequence[Path]) -> tuple[CodeFile, CodeFile]:
    """Queries and database: of a run's folder, or of two code files."""
    if len(paths) == 1 and paths[0].is_dir():
        from centerhash.training.run import read_codes

        run = read_codes(paths[0])
        return (
            CodeFile(run.bits, run.query, run.query_labels, run.query_rows),
            CodeFile(run.bits, run.database, run.database_labels, run.database_rows),
        )
    if len(paths) == 1 and not paths[0].exists():
        raise DataError(f"no such run or code file: '{paths[0]}'.")
    if len(paths) != 2:
        raise ConfigError(
            f"evaluate takes the folder of one run, or two code files (queries, then database); got {len(paths)}."
        )
    query, database = (read_code_file(path) for path in paths)
    return query, database


def evaluate_codes(codes: tuple[CodeFile, CodeFile], **settings: Any) -> Evaluation:
    """Evaluate queries against a database; `settings` as for `centerhash.evaluate`."""
    query, database = codes
    if query.bits != database.bits:
        raise DataError(
            f"queries have {query.bits} bits, the database {database.bits}: encode both by one model."
        )
    return evaluate(
        query.packed,
        database.packed,
        query.labels,
        database.labels,
        bits=query.bits,
        query_ids=query.ids,
        database_ids=database.ids,
        **settings,
    )


def encode_to_file(
    model: HashModel,
    inputs: Sequence[str],
    out: Path,
    *,
    cache: Path | None = None,
    device: str = "auto",
    engine: str = "auto",
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Encode images (files, folders, globs), a labelled data set, or a features .npy into one code file."""
    single = Path(inputs[0]) if len(inputs) == 1 else None
    arrays: dict[str, NDArray[Any]] = {}
    warnings: tuple[str, ...] = ()
    table: FeatureTable | None = None
    if single is not None and single.suffix == ".npy":
        from centerhash.data.layouts.arrays import load_array

        features = load_array(single)
    elif single is not None and is_described(single):
        dataset = open_dataset(single)
        warnings = dataset.warnings
        if dataset.classes != model.classes:
            raise DataError(
                f"'{single}' has {len(dataset.classes)} classes that are not the model's {len(model.classes)}, in "
                "this order: put the model's classes into its classes.txt."
            )
        arrays = {"labels": dataset.labels, "names": np.array(dataset.names), "ids": _ids(dataset)}
        if dataset.features is not None:
            features = dataset.features
        else:
            table = model.feature_table(
                dataset.image_paths or (), cache=cache, device=device, progress=progress, engine=engine
            )
    else:
        paths = list_images(inputs)
        arrays = {"names": np.array([str(path) for path in paths])}
        table = model.feature_table(paths, cache=cache, device=device, progress=progress, engine=engine)
    if table is not None:
        kept = _readable(table, skip_broken)
        features = table.features[kept]
        arrays = {name: values[kept] for name, values in arrays.items()}
        warnings += table.warnings
    packed = pack(model.encode_features(features))
    write_npz(out, {"packed": packed, "bits": np.array(model.bits), **arrays})
    return Written(len(packed), warnings, None if table is None else table.engine)


def _ids(dataset: Dataset) -> NDArray[np.int64]:
    """A number (N,) per item that no item of another folder has, so that only a query's own item is its own."""
    folder = str(dataset.root.resolve())
    digests = (blake2b(f"{folder}/{name}".encode(), digest_size=8).digest() for name in dataset.names)
    return np.array([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=np.int64)


def _readable(table: FeatureTable, skip_broken: bool) -> NDArray[np.int64]:
    """The places of the images that can be read; an error where others are not to be skipped."""
    if not skip_broken:
        table.raise_if_broken(
            "The features of all others are kept. Repair these files, or pass --skip-broken to go on without them."
        )
    return np.array([row for row in range(len(table.features)) if row not in table.broken], dtype=np.int64)
