"""Code files: packed codes and columns of their items in one .npz, the only file layout of codes.

    write_codes("codes.npz", CodeFile(64, packed, names=names, labels=labels, classes=classes))
    query, database = read_code_pair([Path("run")])
    print(evaluate_codes_of(query, database, k=5000))

Arrays: `packed` (N, ceil(K/8)) uint8 and `bits`, or `codes` (N, K) of -1 and +1, of 0 and 1, or bool. Optional:
`names`, N texts as the bytes of a json list; `labels` (N, C) with `classes` (C,) text; `ids` (N,) integers, which
identify a query's own database item; `general` (N, V) uint8, packed general codes; `probabilities` and `shares` (N, C)
uint8, in 255ths. A row of zeros in the last three marks an item without them. Names of other programs may be an array
(N,) of text; an array of numpy has the width of its longest text in every row, so none are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, as_codes, check_packed, pack, packed_width
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import read_npz, refuse_links, write_npz
from centerhash.data.layouts.common import load_array
from centerhash.evaluation import Evaluation

# The optional columns of numbers have these dimensions.
_COLUMNS = {"ids": 1, "labels": 2, "general": 2, "probabilities": 2, "shares": 2}
# A run has these code files.
QUERY, DATABASE = "query.npz", "database.npz"


@dataclass(frozen=True, eq=False)
class CodeFile:
    """N codes of K bits, and columns of their items; `labels` (N, C) are bool, or 0 and 1."""

    bits: int
    packed: Packed
    names: Sequence[str] | None = None
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] | None = None
    ids: NDArray[np.int64] | None = None
    general: Packed | None = None
    probabilities: NDArray[np.uint8] | None = None
    shares: NDArray[np.uint8] | None = None

    def label_names(self, default_classes: Sequence[str]) -> list[tuple[str, ...]] | None:
        """Return the names of every item's labels, from `default_classes` if the file has no classes."""
        if self.labels is None:
            return None
        classes = self.classes or tuple(default_classes)
        if self.labels.shape[1] != len(classes):
            raise DataError(f"labels of shape {self.labels.shape} do not fit {len(classes)} classes.")
        return [tuple(classes[column] for column in np.flatnonzero(row).tolist()) for row in self.labels]


def write_codes(path: str | Path, codes: CodeFile) -> None:
    """Write a code file atomically."""
    arrays: dict[str, NDArray[Any]] = {"packed": codes.packed, "bits": np.array(codes.bits)}
    arrays |= {name: getattr(codes, name) for name in _COLUMNS if getattr(codes, name) is not None}
    if codes.names is not None:
        arrays["names"] = np.frombuffer(json.dumps(list(codes.names)).encode(), np.uint8)
    if codes.classes is not None:
        arrays["classes"] = np.array(codes.classes, dtype=str)
    write_npz(path, arrays)


def read_codes(path: str | Path, bits: int | None = None, labels: Path | None = None) -> CodeFile:
    """Read a code file; DataError states the problem if it is malformed.

    Codes of other programs may also be one array in a .npy file, packed if `bits` is given. `labels` (N, C) is a .npy
    file that replaces those in the code file.
    """
    arrays = {"codes": load_array(Path(path))} if Path(path).suffix == ".npy" else read_npz(path)
    if labels is not None:
        arrays["labels"] = load_array(labels)
    try:
        stored_bits, packed = _read_packed(arrays, bits)
        if bits not in (None, stored_bits):
            raise InputError(f"it holds codes of {stored_bits} bits, not of {bits}")
        columns = {name: _read_column(arrays, name, len(packed)) for name in _COLUMNS}
        names = _read_names(arrays["names"], len(packed)) if "names" in arrays else None
        if "classes" in arrays and arrays["classes"].ndim != 1:
            raise InputError(f"classes must be names (C,), got shape {arrays['classes'].shape}")
    except InputError as error:
        raise DataError(f"'{path}': {error}".rstrip(".") + ".") from None
    classes = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    return CodeFile(stored_bits, packed, names, classes=classes, **columns)


def _read_packed(arrays: Mapping[str, NDArray[Any]], bits: int | None) -> tuple[int, Packed]:
    """Return the number of bits, which arrays may lack, and packed codes (N, ceil(K/8))."""
    if "bits" in arrays:
        stored = arrays["bits"]
        if stored.size != 1 or stored.dtype.kind not in "iu":
            raise InputError(f"`bits` must be one whole number, got {stored.dtype} of shape {stored.shape}")
        bits = int(stored.item())
    if "packed" in arrays and bits is not None:
        return bits, check_packed(arrays["packed"], bits)
    if "codes" not in arrays:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(
            f"it holds {names}, but needs `packed` and `bits`, or `codes` of -1 and +1 or 0 and 1"
        )
    codes = arrays["codes"]
    has_large = codes.dtype == np.uint8 and bool(codes.size) and codes.max() > 1
    if bits is None and has_large:
        raise InputError(
            f"codes of shape {codes.shape} are bytes: give the length of packed codes by `bits=`"
        )
    # Packed bytes may all be 0 or 1 by chance. A packed single bit is 0 or 128, so that 1 is a code.
    is_packed = bits is not None and bits > 1 and codes.shape[1:] == (packed_width(bits),)
    if bits is not None and codes.dtype == np.uint8 and (has_large or is_packed):
        return bits, check_packed(codes, bits)
    signs = as_codes(codes)
    return signs.shape[1], pack(signs)


def _read_column(arrays: Mapping[str, NDArray[Any]], name: str, count: int) -> Any:
    """Return an optional column of N items, and check its shape and the values of labels."""
    array = arrays.get(name)
    if array is not None and (array.ndim != _COLUMNS[name] or len(array) != count):
        advice = ""
        if name == "labels" and array.ndim == 1:
            advice = ": (N, C) are needed, of class numbers `numpy.eye(C, dtype=bool)[labels]`"
        raise InputError(f"{name} of shape {array.shape} do not fit {count:,} codes{advice}")
    if array is not None and name == "labels":
        # NaN is neither 0 nor 1.
        wrong = array[~((array == 0) | (array == 1))]
        if wrong.size:
            raise InputError(f"labels must be bool, or hold only 0 and 1, got {wrong[:3].tolist()}")
    return array


def _read_names(array: NDArray[Any], count: int) -> tuple[str, ...]:
    """Return the N names from the bytes of a json list, or from an array of text."""
    try:
        # `parse_json` would reject names of files with bytes that are no text.
        names: Any = json.loads(array.tobytes()) if array.dtype == np.uint8 else array.astype(str).tolist()
        json.dumps(names, ensure_ascii=False).encode(errors="surrogateescape")
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise InputError(f"names must be {count:,} texts, as an array (N,) or as the bytes of a json list")
    return tuple(names)


def read_run_codes(folder: str | Path) -> tuple[CodeFile, CodeFile]:
    """Read the codes of the queries and of the database of a finished run."""
    query, database = Path(folder) / QUERY, Path(folder) / DATABASE
    refuse_links(Path(folder), (QUERY, DATABASE))
    if not (query.exists() and database.exists()):
        raise DataError(
            f"'{folder}' holds no finished run (no {QUERY} and {DATABASE}): train into this folder again, which "
            "resumes where it stopped, or pass two code files, queries, then database."
        )
    return read_codes(query), read_codes(database)


def read_code_pair(
    paths: Sequence[Path],
    *,
    bits: int | None = None,
    labels: tuple[Path | None, Path | None] = (None, None),
) -> tuple[CodeFile, CodeFile]:
    """Read the codes of queries and database, which must have labels of the same classes.

    `paths` is a run's folder, or two code files. `bits` and `labels` (of queries, of the database) are those of
    `read_codes`.
    """
    if len(paths) not in (1, 2):
        raise ConfigError(
            f"evaluate expects the folder of one run, or two code files (queries, then database); got {len(paths)}."
        )
    if len(paths) == 1 and (bits, *labels) != (None, None, None):
        raise ConfigError("bits and labels are given with two code files: queries, then database.")
    if len(paths) == 1:
        query, database = read_run_codes(paths[0])
    else:
        query, database = (read_codes(path, bits, file) for path, file in zip(paths, labels, strict=True))
    if query.labels is None or database.labels is None:
        unlabeled = paths[0 if query.labels is None else -1]
        raise DataError(
            f"scoring needs labels, and the codes of '{unlabeled}' have none. Encode images with labels, or give the "
            "array `labels` (N, C), or `query_labels=` and `database_labels=` (.npy files)."
        )
    if query.classes and database.classes and query.classes != database.classes:
        raise DataError("queries and database have labels of different classes: encode one dataset.")
    return query, database


def evaluate_codes_of(query: CodeFile, database: CodeFile, **settings: Any) -> Evaluation:
    """Evaluate code files with labels; `settings` as for `evaluate`."""
    # Reading codes does not need numba, evaluating them does.
    from centerhash.evaluation import evaluate

    assert query.labels is not None
    assert database.labels is not None
    settings |= {"bits": query.bits, "query_ids": query.ids, "database_ids": database.ids}
    return evaluate(query.packed, database.packed, query.labels, database.labels, **settings)
