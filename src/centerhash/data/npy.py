""".npy files of a data set, checked by their header before anything is read. Nothing is ever unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import array_header


@dataclass(frozen=True)
class Header:
    """What the first bytes of a .npy file say about the rest."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def read_header(path: Path) -> Header:
    """Read the header of a .npy file and check that the file holds all the values it announces."""
    try:
        with path.open("rb") as stream:
            shape, fortran_order, dtype = array_header(stream)
            start = stream.tell()
            total = stream.seek(0, 2)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"'{path}' is not a whole .npy file ({error}): write it with numpy.save.") from error
    if dtype.hasobject:
        raise DataError(
            f"'{path}' holds Python objects, which are never unpickled: save an array of plain numbers."
        )
    if any(length < 0 for length in shape):
        raise DataError(f"'{path}' announces the impossible shape {shape}: write it with numpy.save.")
    expected = start + prod(shape) * dtype.itemsize
    if total < expected:
        raise DataError(f"'{path}' is truncated: {total:,} of {expected:,} bytes are there. Copy it again.")
    return Header(shape, fortran_order, dtype)


def load_array(path: Path) -> NDArray[Any]:
    """Load a small .npy file whole."""
    header = read_header(path)
    if prod(header.shape) == 0:
        return np.empty(header.shape, header.dtype)
    with path.open("rb") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array
