"""A segment: items that do not change any more, in the order of their ids, as a few arrays that can be mapped.

Because rows are in the order of ids, a scan that keeps the order of rows also keeps ties in the order of ids, and
ids are found by bisection. Labels are stored twice: those of every item, and the items of every label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search.engines.base import Id, Item
from centerhash.search.engines.idcolumns import Ids, joined_ids, raw_ids, sorted_ids, stored_ids
from centerhash.search.engines.ragged import Ragged, decoded, encoded, ends_of, joined, text_rows, texts

NO_PATH = b"\xff"  # a byte that UTF-8 never has


@dataclass(frozen=True)
class Segment:
    """n items in the order of their ids."""

    codes: Packed  # (n, ceil(K/8))
    ids: Ids  # (n,)
    labels: Ragged  # n rows: the numbers of each item's labels
    members: Ragged  # L rows: the ascending rows of each label's items
    label_text: Ragged  # L rows: the names of the labels, ascending
    paths: Ragged  # n rows

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def label_names(self) -> list[str]:
        """The names (L,) of the labels, ascending."""
        return [decoded(name) for name in text_rows(self.label_text, np.arange(len(self.label_text)))]

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """The number of each label name."""
        return {name: number for number, name in enumerate(self.label_names)}

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """The items of these rows."""
        ids, codes = self.ids.at(rows), np.array(self.codes[rows])
        labels = [
            tuple(self.label_names[number] for number in self.labels[row].tolist()) for row in rows.tolist()
        ]
        paths = [None if path == NO_PATH else decoded(path) for path in text_rows(self.paths, rows)]
        return [Item(*item) for item in zip(ids, codes, labels, paths, strict=True)]

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

    def label_counts(self, removed: NDArray[np.int64]) -> dict[str, int]:
        """How many items carry each label, without the `removed` rows."""
        gone = np.bincount(self.labels.take(removed).values, minlength=len(self.label_text))
        counts = (self.members.lengths() - gone).tolist()
        return {name: count for name, count in zip(self.label_names, counts, strict=True) if count}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored of a segment."""
        named = {
            "labels": self.labels,
            "members": self.members,
            "names": self.label_text,
            "paths": self.paths,
        }
        ragged = {f"{name}.starts": rows.starts for name, rows in named.items()}
        values = {f"{name}.values": rows.values for name, rows in named.items()}
        return {"codes": self.codes, **self.ids.arrays(), **ragged, **values}


def stored_segment(arrays: Mapping[str, NDArray[Any]]) -> Segment:
    """The inverse of `Segment.arrays`."""
    ragged = [
        Ragged(arrays[f"{name}.starts"], arrays[f"{name}.values"])
        for name in ("labels", "members", "names", "paths")
    ]
    return Segment(arrays["codes"], stored_ids(arrays), *ragged)


def build(
    packed: Packed, ids: Sequence[Id], labels: Sequence[Sequence[str]], paths: Sequence[str | None]
) -> Segment:
    """Make a segment of items in any order; all ids are different."""
    column, order = sorted_ids(raw_ids(ids))
    names = sorted(set(chain.from_iterable(labels)))
    numbers = {name: number for number, name in enumerate(names)}
    places = order.tolist()
    lengths = np.fromiter((len(labels[place]) for place in places), np.int64, len(places))
    values = np.fromiter((numbers[label] for place in places for label in labels[place]), np.uint32)
    text = texts(NO_PATH if path is None else encoded(path) for path in map(paths.__getitem__, places))
    return _segment(packed[order], column, Ragged(ends_of(lengths), values), names, text)


def merge(parts: Sequence[tuple[Segment, NDArray[np.int64]]]) -> Segment:
    """Make one segment of the given rows of several; all their ids are different."""
    column, order = sorted_ids(joined_ids([segment.ids.raw(rows) for segment, rows in parts]))
    names = sorted(set(chain.from_iterable(segment.label_names for segment, _ in parts)))
    numbers = {name: number for number, name in enumerate(names)}
    labels = [_renumbered(segment, rows, numbers) for segment, rows in parts]
    return _segment(
        np.concatenate([segment.codes[rows] for segment, rows in parts])[order],
        column,
        joined(labels).take(order),
        names,
        joined([segment.paths.take(rows) for segment, rows in parts]).take(order),
    )


def _renumbered(segment: Segment, rows: NDArray[np.int64], numbers: Mapping[str, int]) -> Ragged:
    """The labels of these rows by the numbers that they have in a larger list of names."""
    table = np.array([numbers[name] for name in segment.label_names], np.uint32)
    taken = segment.labels.take(rows)
    return Ragged(taken.starts, table[taken.values])


def _segment(codes: Packed, ids: Ids, labels: Ragged, names: Sequence[str], paths: Ragged) -> Segment:
    """Add the items of every label, the inverse of the labels of every item."""
    owners = np.repeat(np.arange(len(labels), dtype=np.uint32), labels.lengths())
    members = owners[np.argsort(labels.values, kind="stable")]
    starts = ends_of(np.bincount(labels.values, minlength=len(names)))
    return Segment(codes, ids, labels, Ragged(starts, members), texts(map(encoded, names)), paths)
