"""Rows of different lengths in two flat arrays, which can be mapped from a file: texts, and the labels of items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.search.engines.checked import Array

BLOCK = 1 << 12  # rows that are gathered at a time: the place of a value takes many times its memory


@dataclass(frozen=True)
class Ragged:
    """n rows; row i is `values[starts[i] : starts[i + 1]]`."""

    starts: Array  # (n + 1,) of an integer type
    values: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        found: NDArray[Any] = self.values[self.starts[row] : self.starts[row + 1]]
        return found

    def lengths(self) -> NDArray[np.int64]:
        """The length (n,) of every row."""
        return np.diff(np.asarray(self.starts)).astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Return these rows, in this order."""
        first = self.starts[rows].astype(np.int64)
        lengths = self.starts[rows + 1].astype(np.int64) - first
        starts = ends_of(lengths)
        values = np.empty(int(starts[-1]), self.values.dtype)
        for top in range(0, len(rows), BLOCK):
            block = slice(top, min(top + BLOCK, len(rows)))
            begin, end = int(starts[block.start]), int(starts[block.stop])
            moved = first[block] - starts[block].astype(np.int64)
            values[begin:end] = self.values[np.repeat(moved, lengths[block]) + np.arange(begin, end)]
        return Ragged(starts, values)


def ends_of(lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Where rows of these lengths start and the last one ends (n + 1,), in the smallest type that holds it."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return ends.astype(np.uint32) if ends[-1] < 2**32 else ends


def joined(parts: Sequence[Ragged]) -> Ragged:
    """Return the rows of all parts, one part after the other."""
    lengths = np.concatenate([part.lengths() for part in parts])
    return Ragged(ends_of(lengths), np.concatenate([np.asarray(part.values) for part in parts]))


def texts(rows: Iterable[bytes]) -> Ragged:
    """Put byte strings into one array."""
    rows = list(rows)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(ends_of(lengths), np.frombuffer(b"".join(rows), np.uint8))


def text_rows(ragged: Ragged, rows: NDArray[np.int64]) -> list[bytes]:
    """Return these rows of a ragged array of bytes as byte strings."""
    taken = ragged.take(rows)
    blob, edges = np.asarray(taken.values).tobytes(), np.asarray(taken.starts).tolist()
    return [blob[begin:end] for begin, end in pairwise(edges)]


def encoded(text: str) -> bytes:
    """UTF-8, also of file names that are none: their bytes come as surrogates. Keeps the order of code points."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    """The inverse of `encoded`."""
    return text.decode("utf-8", "surrogatepass")
