"""Several segments into one, whose columns are made a few rows at a time, as they are written.

Beside the rows at hand, memory holds a few numbers of each: where it comes from, the checksum of its id, where its
texts begin, and the rows of every label. Codes, ids, paths and looks go from mapped files to the new one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from centerhash.search.engines.checked import Array
from centerhash.search.engines.idcolumns import TextIds, by_checksum
from centerhash.search.engines.mapped import Column
from centerhash.search.engines.ragged import Ragged, encoded, ends_of, joined, texts
from centerhash.search.engines.segments import PAIR, Segment, inverse, seen_type

Rows: TypeAlias = NDArray[np.int64]
Arrays: TypeAlias = "dict[str, Array | Column]"
Renumbered: TypeAlias = Callable[[int, NDArray[Any]], NDArray[Any]]  # of a part, values as they become

BLOCK = 1 << 12  # rows that are made at a time
_PART = 32  # bits above which a place says its part; those below are its row


def merge(parts: Sequence[tuple[Segment, Rows]]) -> Arrays:
    """The arrays of one segment of the given ascending rows of several; all their ids are different."""
    segments, order = [segment for segment, _ in parts], _Order(_places(parts))
    names = sorted(set(chain.from_iterable(segment.label_names for segment in segments)))
    numbers = {name: number for number, name in enumerate(names)}
    tables = [np.array([numbers[name] for name in each.label_names], np.uint32) for each in segments]
    pairs = np.dtype(seen_type(len(names)))

    def label(part: int, values: NDArray[Any]) -> NDArray[Any]:
        numbers: NDArray[Any] = tables[part][values]
        return numbers

    def pair(part: int, values: NDArray[Any]) -> NDArray[Any]:
        numbers: NDArray[Any] = tables[part][values >> PAIR].astype(pairs) << PAIR
        return numbers | (values & ((1 << PAIR) - 1)).astype(pairs)

    labels = [segment.labels for segment in segments]
    members, text = inverse(partial(order.rows, labels, label), len(names)), texts(map(encoded, names))
    arrays: Arrays = {
        "codes": order.column([segment.codes for segment in segments]),
        **_ids(segments, order),
        **order.ragged("labels", labels, label),
        **{"members.starts": members.starts, "members.values": members.values},
        **{"names.starts": text.starts, "names.values": text.values},
        **order.ragged("paths", [segment.paths for segment in segments]),
    }
    if any(len(segment.seen.values) for segment in segments):
        arrays |= order.ragged("seen", [segment.seen for segment in segments], pair, pairs)
    if any(segment.has_looks for segment in segments):
        arrays["visual"] = order.column([segment.visual for segment in segments])
        arrays["looks"] = order.column([segment.looks for segment in segments])
    return arrays


def _places(parts: Sequence[tuple[Segment, Rows]]) -> Rows:
    """Where the items come from, in the order of their ids."""
    if isinstance(parts[0][0].ids, TextIds):
        streams = [
            _texts(part, cast(TextIds, segment.ids), rows) for part, (segment, rows) in enumerate(parts)
        ]
        total = sum(len(rows) for _, rows in parts)
        return np.fromiter((place for _, place in heapq.merge(*streams)), np.int64, total)
    ids = np.concatenate([segment.ids.raw(rows) for segment, rows in parts])
    return np.concatenate([part << _PART | rows for part, (_, rows) in enumerate(parts)])[np.argsort(ids)]


def _texts(part: int, ids: TextIds, rows: Rows) -> Iterator[tuple[bytes, int]]:
    """The ids of a part, ascending, with their places."""
    for top in range(0, len(rows), BLOCK):
        some = rows[top : top + BLOCK]
        yield from zip(ids.raw(some), (part << _PART | some).tolist(), strict=True)


def _ids(segments: Sequence[Segment], order: _Order) -> Arrays:
    """The ids of the new segment: integers, or texts with their sorted checksums."""
    if not isinstance(segments[0].ids, TextIds):
        return {"ids": order.column([segment.ids.arrays()["ids"] for segment in segments])}
    ids = [cast(TextIds, segment.ids) for segment in segments]
    unsorted = order.column([each.checksums_of_rows() for each in ids]).blocks()
    checksums, rows = by_checksum(np.concatenate(list(unsorted)))
    text = order.ragged("ids", [each.text for each in ids])
    return {**text, "ids.checksums": checksums, "ids.rows": rows}


@dataclass(frozen=True)
class _Order:
    """The new rows (n,) by the places that they come from."""

    places: Rows

    def blocks(self) -> Iterator[tuple[Rows, Rows]]:
        """The parts and the rows there of a few new rows."""
        for top in range(0, len(self.places), BLOCK):
            some = self.places[top : top + BLOCK]
            yield some >> _PART, some & ((1 << _PART) - 1)

    def taken(
        self, arrays: Sequence[Array], take: Callable[[Array, Rows], NDArray[Any]]
    ) -> Iterator[NDArray[Any]]:
        """What `take` gives of each part's array and rows of it, for a few new rows at a time."""
        for owners, rows in self.blocks():
            found = [take(array, rows[owners == part]) for part, array in enumerate(arrays)]
            block = np.empty((len(rows), *found[0].shape[1:]), found[0].dtype)
            for part, values in enumerate(found):
                block[owners == part] = values
            yield block

    def column(self, arrays: Sequence[Array]) -> Column:
        """The same column of all parts, in the new order."""
        shape = (len(self.places), *arrays[0].shape[1:])
        return Column(arrays[0].dtype, shape, lambda: self.taken(arrays, lambda array, rows: array[rows]))

    def rows(self, parts: Sequence[Ragged], renumbered: Renumbered | None = None) -> Iterator[Ragged]:
        """Rows of different lengths, in the new order, a few at a time."""
        for owners, rows in self.blocks():
            taken = [each.take(rows[owners == part]) for part, each in enumerate(parts)]
            if renumbered is not None:
                taken = [
                    Ragged(each.starts, renumbered(part, np.asarray(each.values)))
                    for part, each in enumerate(taken)
                ]
            back = np.empty(len(rows), np.int64)
            back[np.argsort(owners, kind="stable")] = np.arange(len(rows))
            yield joined(taken).take(back)

    def ragged(
        self,
        name: str,
        parts: Sequence[Ragged],
        renumbered: Renumbered | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> Arrays:
        """Rows of different lengths as they are stored; of another type where they are renumbered to one."""
        lengths = np.concatenate(list(self.taken([each.starts for each in parts], _lengths)))
        starts = ends_of(lengths)
        kind = parts[0].values.dtype if dtype is None else dtype
        values = Column(
            kind,
            (int(starts[-1]),),
            lambda: (np.asarray(block.values) for block in self.rows(parts, renumbered)),
        )
        return {f"{name}.starts": starts, f"{name}.values": values}


def _lengths(starts: Array, rows: Rows) -> Rows:
    found: Rows = starts[rows + 1].astype(np.int64) - starts[rows]
    return found
