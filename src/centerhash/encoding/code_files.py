"""Code files: packed codes and columns of their items in one .npz, the only file layout of codes.

Arrays: `packed` (N, ceil(K/8)) uint8 and `bits`, or `codes` (N, K) of -1 and +1, of 0 and 1, or bool. Optional:
`names` and `paths`, N texts as the bytes of a json list; `labels` (N, C) with `classes` (C,) text; `ids` (N,) integers,
which identify a query's own database item; `visual` (N, 16) uint8, packed visual codes; `probabilities` and `shares`
(N, C) uint8, in 255ths; `taught` and `removed`, the bytes of json: labels that were taught to an index, and the files of
images that were removed from it. A row of zeros in `visual`, `probabilities` or `shares` marks an item without it. Names
and paths of other programs may be arrays (N,) of text; an array of numpy has the width of its longest text in every row,
so none are written.
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
from centerhash.data.layouts.contents import load_array
from centerhash.evaluation import Evaluation

# optional columns and their dimensions
_COLUMNS = {"ids": 1, "labels": 2, "visual": 2, "probabilities": 2, "shares": 2}
_TEXTS = ("names", "paths")  # optional columns of text
_CONTENTS = ("taught", "removed")  # optional bytes
QUERY, DATABASE = "query.npz", "database.npz"  # of a run
_EYE = ": (N, C) are needed, of class numbers `numpy.eye(C, dtype=bool)[labels]`"


@dataclass(frozen=True, eq=False)
class CodeFile:
    """N codes of K bits, and columns of their items."""

    bits: int
    packed: Packed
    names: Sequence[str] | None = None
    paths: Sequence[str] | None = None
    labels: NDArray[Any] | None = None  # (N, C) of bool, or of 0 and 1
    classes: tuple[str, ...] | None = None
    ids: NDArray[np.int64] | None = None
    visual: Packed | None = None  # (N, 16)
    probabilities: NDArray[np.uint8] | None = None  # (N, C)
    shares: NDArray[np.uint8] | None = None  # (N, C)
    taught: bytes | None = None  # as `search.teaching.to_file` returns it
    removed: bytes | None = None  # as `search.exchange` writes it

    def label_names(self, default_classes: Sequence[str]) -> list[tuple[str, ...]] | None:
        """Name every item's labels; columns without names are those of `default_classes`."""
        if self.labels is None:
            return None
        classes = self.classes or tuple(default_classes)
        if self.labels.shape[1] != len(classes):
            raise DataError(f"labels of shape {self.labels.shape} do not fit {len(classes)} classes.")
        return [tuple(classes[column] for column in np.flatnonzero(row).tolist()) for row in self.labels]


def write_codes(path: str | Path, codes: CodeFile) -> None:
    """Write a code file atomically."""
    arrays: dict[str, NDArray[Any]] = {"packed": codes.packed, "bits": np.array(codes.bits)}
    for name in _COLUMNS:
        if getattr(codes, name) is not None:
            arrays[name] = getattr(codes, name)
    for name in _TEXTS:
        if getattr(codes, name) is not None:
            arrays[name] = text_array(getattr(codes, name))
    for name in _CONTENTS:
        if getattr(codes, name) is not None:
            arrays[name] = np.frombuffer(getattr(codes, name), np.uint8)
    if codes.classes is not None:
        arrays["classes"] = np.array(codes.classes, dtype=str)
    write_npz(path, arrays)


def text_array(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts as the bytes of a json list, for a code file."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8)


def _texts_of(name: str, array: NDArray[Any], count: int) -> tuple[str, ...]:
    """Return the N texts of a column: the bytes of a json list, or an array of text."""
    if array.dtype != np.uint8:
        if array.shape != (count,):
            raise InputError(f"{name} of shape {array.shape} do not fit {count:,} codes")
        return tuple(array.astype(str).tolist())
    try:
        texts = json.loads(array.tobytes())  # not `parse_json`: a path may have bytes that are no text
        json.dumps(texts, ensure_ascii=False).encode(errors="surrogateescape")
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{name} must be texts, or the bytes of a json list of texts")
    if len(texts) != count:
        raise InputError(f"{name} of shape ({len(texts)},) do not fit {count:,} codes")
    return tuple(texts)


def read_codes(path: str | Path, bits: int | None = None, labels: Path | None = None) -> CodeFile:
    """Read a code file; DataError names what is wrong with it.

    Codes of other programs may also be one array in a .npy file, packed if `bits` is given. `labels` (N, C) is a .npy
    file that replaces those in the code file.
    """
    arrays = {"codes": load_array(Path(path))} if Path(path).suffix == ".npy" else read_npz(path)
    if labels is not None:
        arrays["labels"] = load_array(labels)
    try:
        bits, packed = _read_packed(arrays, bits)
        for name, dimensions in _COLUMNS.items():
            array = arrays.get(name)
            if array is not None and (array.ndim != dimensions or len(array) != len(packed)):
                advice = _EYE if name == "labels" and array.ndim == 1 else ""
                raise InputError(f"{name} of shape {array.shape} do not fit {len(packed):,} codes{advice}")
        texts = {name: _texts_of(name, arrays[name], len(packed)) for name in _TEXTS if name in arrays}
        _check_labels(arrays.get("labels"))
        if "classes" in arrays and arrays["classes"].ndim != 1:
            raise InputError(f"classes must be names (C,), got shape {arrays['classes'].shape}")
    except InputError as error:
        raise DataError(f"'{path}': {error}".rstrip(".") + ".") from None
    classes = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    others = {name: arrays.get(name) for name in _COLUMNS}
    taught, removed = (arrays[name].tobytes() if name in arrays else None for name in _CONTENTS)
    return CodeFile(
        bits,
        packed,
        texts.get("names"),
        texts.get("paths"),
        classes=classes,
        taught=taught,
        removed=removed,
        **others,
    )


def _read_packed(arrays: Mapping[str, NDArray[Any]], given: int | None) -> tuple[int, Packed]:
    """Return the number of bits, which the caller may have `given`, and packed codes (N, ceil(K/8))."""
    bits = _whole_number(arrays["bits"]) if "bits" in arrays else given
    if given not in (None, bits):
        raise InputError(f"it holds codes of {bits} bits, not of {given}")
    if "packed" in arrays and bits is not None:
        return bits, check_packed(arrays["packed"], bits)
    if "codes" not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(
            f"it holds {found}, but needs `packed` and `bits`, or `codes` of -1 and +1 or of 0 and 1"
        )
    codes = arrays["codes"]
    if codes.dtype == np.uint8 and codes.size and codes.max() > 1:
        if bits is None:
            raise InputError(
                f"codes of shape {codes.shape} are bytes: give the length of the packed codes by `bits=`"
            )
        return bits, check_packed(codes, bits)
    # packed bytes may all be 0 or 1 by chance; a packed single bit is 0 or 128, so that 1 is a code
    if bits is not None and bits > 1 and codes.dtype == np.uint8 and codes.shape[1:] == (packed_width(bits),):
        return bits, check_packed(codes, bits)
    made = as_codes(codes)
    if bits not in (None, made.shape[1]):
        raise InputError(f"it holds codes of {made.shape[1]} bits, not of {bits}")
    return made.shape[1], pack(made)


def _check_labels(labels: NDArray[Any] | None) -> None:
    if labels is None or labels.dtype == np.bool_:
        return
    wrong = labels[~((labels == 0) | (labels == 1))]  # not a number, too
    if wrong.size:
        raise InputError(f"labels must be bool, or hold only 0 and 1, got {wrong[:3].tolist()}")


def _whole_number(bits: NDArray[Any]) -> int:
    if bits.size != 1 or bits.dtype.kind not in "iu":
        raise InputError(f"`bits` must be one whole number, got {bits.dtype} of shape {bits.shape}")
    return int(bits.item())


def read_run_codes(folder: str | Path) -> tuple[CodeFile, CodeFile]:
    """Read the codes of the queries and of the database of a finished run."""
    place = Path(folder)
    refuse_links(place, (QUERY, DATABASE))
    if not ((place / QUERY).exists() and (place / DATABASE).exists()):
        raise DataError(
            f"'{folder}' holds no finished run (no {QUERY} and {DATABASE}): train into this folder again, which "
            "resumes where it stopped."
        )
    return read_codes(place / QUERY), read_codes(place / DATABASE)


def evaluate_files(
    paths: Sequence[Path],
    *,
    bits: int | None = None,
    labels: tuple[Path | None, Path | None] = (None, None),
    **settings: Any,
) -> Evaluation:
    """Evaluate a run's folder, or two code files, queries then database; `settings` as for `evaluate`.

    `bits` and `labels` are as for `read_code_pair`.
    """
    return evaluate_codes_of(*read_code_pair(paths, bits=bits, labels=labels), **settings)


def read_code_pair(
    paths: Sequence[Path],
    *,
    bits: int | None = None,
    labels: tuple[Path | None, Path | None] = (None, None),
) -> tuple[CodeFile, CodeFile]:
    """Read the codes of queries and database, which must have labels of the same classes.

    `bits` and `labels` (of queries, of the database) are for files of other programs, as for `read_codes`.
    """
    if len(paths) != 2 and (bits, *labels) != (None, None, None):
        raise ConfigError("bits and labels are given with two code files: queries, then database.")
    if len(paths) == 1 and paths[0].is_dir():
        query, database = read_run_codes(paths[0])
    elif len(paths) == 1 and not paths[0].exists():
        raise DataError(f"no such run or code file: '{paths[0]}'.")
    elif len(paths) != 2:
        raise ConfigError(
            f"evaluate expects the folder of one run, or two code files (queries, then database); got {len(paths)}."
        )
    else:
        query, database = (read_codes(path, bits, beside) for path, beside in zip(paths, labels, strict=True))
    if query.bits != database.bits:
        raise DataError(
            f"queries have {query.bits} bits, the database {database.bits}: encode both by one model."
        )
    if query.labels is None or database.labels is None:
        lacking = paths[0 if query.labels is None else -1]
        raise DataError(
            f"scoring needs labels, and the codes of '{lacking}' have none. Encode images with labels, or give the array "
            "`labels` (N, C), or `query_labels=` and `database_labels=` (.npy files)."
        )
    if query.classes and database.classes and query.classes != database.classes:
        raise DataError("queries and database have labels of different classes: encode one dataset.")
    return query, database


def evaluate_codes_of(query: CodeFile, database: CodeFile, **settings: Any) -> Evaluation:
    """Evaluate code files with labels; `settings` as for `evaluate`."""
    from centerhash.evaluation import evaluate  # by numba, which reading codes need not have

    assert query.labels is not None
    assert database.labels is not None
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
