"""The ids of a segment, in ascending order, in arrays that can be mapped: integers as they are, strings as UTF-8.

Integers are found by bisection, strings by bisection of their sorted checksums: no Python object per item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.search.engines.base import Id
from centerhash.search.engines.checked import Array
from centerhash.search.engines.ragged import Ragged, decoded, encoded, text_rows, texts

Raw: TypeAlias = NDArray[np.int64] | list[bytes]  # ids as they are sorted


@dataclass(frozen=True)
class IntegerIds:
    """Ascending integers (n,)."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def find(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        wanted = np.array(ids, np.int64)
        rows = self.values.searchsorted(wanted)
        inside = np.minimum(rows, len(self.values) - 1)
        return np.where(self.values[inside] == wanted, inside, -1)

    def raw(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """These ids as they are sorted."""
        return cast(NDArray[np.int64], self.values[rows])

    def at(self, rows: NDArray[np.int64]) -> list[Id]:
        """These ids."""
        return cast(list[Id], self.values[rows].tolist())

    def arrays(self) -> dict[str, Array]:
        """What is stored."""
        return {"ids": self.values}


@dataclass(frozen=True)
class TextIds:
    """Ascending strings (n,), with their ascending checksums (n,) and the row that each of these stands for."""

    text: Ragged
    checksums: Array
    rows: Array

    def __len__(self) -> int:
        return len(self.text)

    def find(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        wanted = [encoded(cast(str, id)) for id in ids]
        checksums = np.fromiter(map(crc32, wanted), np.uint32, len(wanted))
        begin = self.checksums.searchsorted(checksums)
        end = self.checksums.searchsorted(checksums, "right")
        found = np.full(len(wanted), -1, np.int64)
        for place in np.flatnonzero(begin < end).tolist():
            for row in self.rows[begin[place] : end[place]].tolist():
                if self.text[row].tobytes() == wanted[place]:
                    found[place] = row
        return found

    def raw(self, rows: NDArray[np.int64]) -> list[bytes]:
        """These ids as they are sorted."""
        return text_rows(self.text, rows)

    def at(self, rows: NDArray[np.int64]) -> list[Id]:
        """These ids."""
        return [decoded(id) for id in self.raw(rows)]

    def checksums_of_rows(self) -> NDArray[np.uint32]:
        """The checksum of each id, in their order."""
        found = np.empty(len(self), np.uint32)
        found[np.asarray(self.rows)] = self.checksums
        return found

    def arrays(self) -> dict[str, Array]:
        """What is stored."""
        return {
            "ids.starts": self.text.starts,
            "ids.values": self.text.values,
            "ids.checksums": self.checksums,
            "ids.rows": self.rows,
        }


Ids: TypeAlias = IntegerIds | TextIds


def kind_of(id: Id) -> str:
    """The kind of an id, as it is stored."""
    return "string" if isinstance(id, str) else "integer"


def raw_ids(ids: Sequence[Id]) -> Raw:
    """Ids of one kind as they are sorted."""
    if ids and isinstance(ids[0], str):
        return [encoded(cast(str, id)) for id in ids]
    return np.array(ids, np.int64)


def joined_ids(parts: Sequence[Raw]) -> Raw:
    """All ids of several parts, one part after the other."""
    if isinstance(parts[0], list):
        return [id for part in parts for id in part]
    return np.concatenate(cast(Sequence[NDArray[np.int64]], parts))


def sorted_ids(ids: Raw) -> tuple[Ids, NDArray[np.int64]]:
    """Ids (n,) in ascending order, and the place (n,) that each had before."""
    if not isinstance(ids, list):
        order = np.argsort(ids, kind="stable")
        return IntegerIds(ids[order]), order
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    ascending = [ids[place] for place in order.tolist()]
    checksums = np.fromiter(map(crc32, ascending), np.uint32, len(ids))
    return TextIds(texts(ascending), *by_checksum(checksums)), order


def by_checksum(checksums: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The checksums of rows (n,) in ascending order, and the row of each."""
    rows = np.argsort(checksums, kind="stable").astype(np.uint32)
    return checksums[rows], rows


def stored_ids(arrays: Mapping[str, Array]) -> Ids:
    """The inverse of `arrays`."""
    if "ids" in arrays:
        return IntegerIds(arrays["ids"])
    text = Ragged(arrays["ids.starts"], arrays["ids.values"])
    return TextIds(text, arrays["ids.checksums"], arrays["ids.rows"])
