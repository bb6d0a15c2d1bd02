"""A segment: items that do not change any more, in the order of their ids, as a few arrays that can be mapped.

Because rows are in the order of ids, a scan that keeps the order of rows also keeps ties in the order of ids, and
ids are found by bisection. Labels are stored twice: those of every item, and the items of every label. Visual codes,
presences and shares are columns that a segment need not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.search.engines.base import LEVELS, VISUAL_BITS, Batch, Filter, Item, Seen
from centerhash.search.engines.checked import Array
from centerhash.search.engines.idcolumns import Ids, raw_ids, sorted_ids, stored_ids
from centerhash.search.engines.ragged import Ragged, decoded, encoded, ends_of, text_rows, texts

NO_PATH = b"\xff"  # a byte that UTF-8 never has
_BYTE = 8  # bits of a presence and of a share
PAIR = 2 * _BYTE


@dataclass(frozen=True)
class Segment:
    """n items in the order of their ids."""

    codes: Array  # (n, ceil(K/8))
    ids: Ids  # (n,)
    labels: Ragged  # n rows: the numbers of each item's labels
    members: Ragged  # L rows: the ascending rows of each label's items
    label_text: Ragged  # L rows: the names of the labels, ascending
    paths: Ragged  # n rows
    visual: Array  # (n, 16)
    looks: Array  # (n,): 1 where there is a visual code
    seen: Ragged  # n rows: number of a label, presence and share in one integer each; empty: not known

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def label_names(self) -> list[str]:
        """The names (L,) of the labels, ascending; also of such that no item carries but in which it was seen."""
        return [decoded(name) for name in text_rows(self.label_text, np.arange(len(self.label_text)))]

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """The number of each label name."""
        return {name: number for number, name in enumerate(self.label_names)}

    @cached_property
    def has_looks(self) -> bool:
        """Whether any item has a visual code."""
        return bool(np.asarray(self.looks).any())

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """The items of these rows."""
        ids, codes = self.ids.at(rows), np.array(self.codes[rows])
        labels = [
            tuple(self.label_names[number] for number in self.labels[row].tolist()) for row in rows.tolist()
        ]
        paths = [None if path == NO_PATH else decoded(path) for path in text_rows(self.paths, rows)]
        looks = [np.array(self.visual[row]) if self.looks[row] else None for row in rows.tolist()]
        seen = [
            {self.label_names[value >> PAIR]: (value >> _BYTE & LEVELS, value & LEVELS) for value in values}
            for values in (self.seen[row].tolist() for row in rows.tolist())
        ]
        return [Item(*item) for item in zip(ids, codes, labels, paths, looks, seen, strict=True)]

    def with_path(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these rows that have a path."""
        return rows[~_starts_with(self.paths, rows, NO_PATH)]

    def seen_as(self, label: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The ascending rows (m,) for which a presence of this label is stored, the presences and the shares (m,)."""
        number = self.label_numbers.get(label, -1)
        known = np.asarray(self.seen.values)
        places = np.flatnonzero(known >> PAIR == number)
        values = known[places]
        owners = np.asarray(self.seen.starts).searchsorted(places, side="right").astype(np.int64) - 1
        pairs = np.stack([values >> _BYTE & LEVELS, values & LEVELS]) / LEVELS
        return owners, pairs[0], pairs[1]

    def carrying(self, labels: Sequence[str]) -> NDArray[np.uint32]:
        """The ascending rows of the items that carry all of these labels, of which there is one at least."""
        numbers = [self.label_numbers.get(label) for label in labels]
        if None in numbers:
            return np.empty(0, np.uint32)
        members = sorted((self.members[number] for number in numbers if number is not None), key=len)
        rows: NDArray[np.uint32] = members[0]
        for others in members[1:]:
            among = np.zeros(len(self), bool)  # quicker than to merge sorted rows
            among[others] = True
            rows = rows[among[rows]]
        return rows

    def matching(self, only: Filter) -> NDArray[np.uint32]:
        """The ascending rows of the items that a filter lets through."""
        rows = self.carrying(only.having) if only.having else np.arange(len(self), dtype=np.uint32)
        for label in only.without:
            others = np.ones(len(self), bool)
            others[self.carrying([label])] = False
            rows = rows[others[rows]]
        if only.under is not None:
            found = [rows[_starts_with(self.paths, rows, encoded(folder))] for folder in only.under]
            rows = np.unique(np.concatenate([np.empty(0, np.uint32), *found]))
        return rows

    def passing(self, rows: NDArray[np.int64], only: Filter) -> NDArray[np.bool_]:
        """Which (m,) of these rows a filter lets through; for a few rows of many."""
        carried = self.labels.take(rows)
        owners, numbers = np.repeat(np.arange(len(rows)), carried.lengths()), np.asarray(carried.values)
        kept = np.ones(len(rows), bool)
        for labels, wanted in ((only.having, True), (only.without, False)):
            for label in labels:
                carries = np.zeros(len(rows), bool)
                carries[owners[numbers == self.label_numbers.get(label, -1)]] = True
                kept &= carries == wanted
        if only.under is not None:
            inside = np.zeros(len(rows), bool)
            for folder in only.under:
                inside |= _starts_with(self.paths, rows.astype(np.uint32), encoded(folder))
            kept &= inside
        return kept

    def label_counts(self, removed: NDArray[np.int64]) -> dict[str, int]:
        """How many items carry each label, without the `removed` rows."""
        gone = np.bincount(np.asarray(self.labels.take(removed).values), minlength=len(self.label_text))
        counts = (self.members.lengths() - gone).tolist()
        return {name: count for name, count in zip(self.label_names, counts, strict=True) if count}

    def arrays(self) -> dict[str, Array]:
        """What is stored of a segment."""
        named = {
            "labels": self.labels,
            "members": self.members,
            "names": self.label_text,
            "paths": self.paths,
        }
        if len(self.seen.values):
            named["seen"] = self.seen
        ragged = {f"{name}.starts": rows.starts for name, rows in named.items()}
        values = {f"{name}.values": rows.values for name, rows in named.items()}
        looks = {"visual": self.visual, "looks": self.looks} if self.has_looks else {}
        return {"codes": self.codes, **self.ids.arrays(), **ragged, **values, **looks}


def stored_segment(arrays: Mapping[str, Array]) -> Segment:
    """The inverse of `Segment.arrays`."""
    rows = len(arrays["codes"])

    def ragged(name: str) -> Ragged:
        return Ragged(arrays[f"{name}.starts"], arrays[f"{name}.values"])

    visual, looks, seen = _nothing(rows)
    return Segment(
        arrays["codes"],
        stored_ids(arrays),
        ragged("labels"),
        ragged("members"),
        ragged("names"),
        ragged("paths"),
        arrays.get("visual", visual),
        arrays.get("looks", looks),
        ragged("seen") if "seen.starts" in arrays else seen,
    )


def _nothing(rows: int) -> tuple[Packed, NDArray[np.uint8], Ragged]:
    """Visual codes, which rows have one, and what is seen, of items without any: views that take no memory."""
    none = np.zeros((), np.uint8)
    empty = Ragged(np.broadcast_to(np.zeros((), np.uint32), (rows + 1,)), np.empty(0, np.uint32))
    return np.broadcast_to(none, (rows, packed_width(VISUAL_BITS))), np.broadcast_to(none, (rows,)), empty


def build(batch: Batch) -> Segment:
    """Make a segment of items in any order; all ids are different."""
    column, order = sorted_ids(raw_ids(batch.ids))
    places = order.tolist()
    labels, seen = batch.labels, batch.seen or [{}] * len(places)
    names = sorted({*chain.from_iterable(labels), *chain.from_iterable(seen)})
    numbers = {name: number for number, name in enumerate(names)}
    lengths = np.fromiter((len(labels[place]) for place in places), np.int64, len(places))
    values = np.fromiter((numbers[label] for place in places for label in labels[place]), np.uint32)
    text = texts(NO_PATH if path is None else encoded(path) for path in map(batch.paths.__getitem__, places))
    return _segment(
        batch.packed[order],
        column,
        Ragged(ends_of(lengths), values),
        names,
        text,
        *_looks([None] * len(places) if batch.visual is None else [batch.visual[place] for place in places]),
        _seen_rows([seen[place] for place in places], numbers),
    )


def _looks(visual: Sequence[bytes | None]) -> tuple[Packed, NDArray[np.uint8]]:
    """Visual codes (n, 16), and which rows (n,) have one."""
    blank = bytes(packed_width(VISUAL_BITS))
    codes = np.frombuffer(b"".join(code or blank for code in visual), np.uint8)
    there = np.fromiter((code is not None for code in visual), np.uint8, len(visual))
    return codes.reshape(len(visual), len(blank)), there


def _seen_rows(seen: Sequence[Seen], numbers: Mapping[str, int]) -> Ragged:
    """Presences and shares of n items, each with the number of its label."""
    lengths = np.fromiter(map(len, seen), np.int64, len(seen))
    values = np.fromiter(
        (
            numbers[label] << PAIR | presence << _BYTE | share
            for row in seen
            for label, (presence, share) in row.items()
        ),
        seen_type(len(numbers)),
    )
    return Ragged(ends_of(lengths), values)


def seen_type(names: int) -> type[np.uint32] | type[np.uint64]:
    """What holds the number of any of so many labels, a presence and a share."""
    return np.uint32 if names <= 1 << PAIR else np.uint64


def _starts_with(paths: Ragged, rows: NDArray[np.integer[Any]], beginning: bytes) -> NDArray[np.bool_]:
    """Which (m,) of these rows begin with these bytes."""
    first = paths.starts[rows].astype(np.int64)
    found: NDArray[np.bool_] = paths.starts[rows + 1].astype(np.int64) - first >= len(beginning)
    for place in reversed(range(len(beginning))):  # folders differ at their end, so few rows are left soon
        left = np.flatnonzero(found)
        found[left] = paths.values[first[left] + place] == beginning[place]
    return found


def _segment(
    codes: Packed,
    ids: Ids,
    labels: Ragged,
    names: Sequence[str],
    paths: Ragged,
    visual: Packed,
    looks: NDArray[np.uint8],
    seen: Ragged,
) -> Segment:
    """Add the items of every label, the inverse of the labels of every item."""
    members = inverse(lambda: [labels], len(names))
    return Segment(codes, ids, labels, members, texts(map(encoded, names)), paths, visual, looks, seen)


def inverse(blocks: Callable[[], Iterable[Ragged]], names: int) -> Ragged:
    """The ascending rows of each of L labels, by the numbers of the labels of all rows, which come in blocks."""
    counts = np.zeros(names, np.int64)
    for block in blocks():
        counts += np.bincount(np.asarray(block.values), minlength=names)
    starts, top = ends_of(counts), 0
    free, members = starts[:-1].astype(np.int64), np.empty(int(starts[-1]), np.uint32)
    for block in blocks():
        values = np.asarray(block.values)
        owners = np.repeat(np.arange(top, top + len(block), dtype=np.uint32), block.lengths())
        order = np.argsort(values, kind="stable")
        ascending = values[order]
        places = free[ascending] + np.arange(len(values)) - ascending.searchsorted(ascending)
        members[places] = owners[order]
        free += np.bincount(values, minlength=names)
        top += len(block)
    return Ragged(starts, members)
