"""Items of an index: what one is, a batch of them to add, the filter that selects some, and their columns in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import InputError
from centerhash.model.base import FILTERED

LabelScores: TypeAlias = Mapping[str, tuple[int, int]]  # probability and area share of labels, in 255ths
Value: TypeAlias = float | str | None  # of an attribute
Keys: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Where: TypeAlias = (
    tuple[float, float] | tuple[str, ...]
)  # inclusive bounds of a number, or the texts that match

FORMAT = 3  # of the database
CHUNK = 4096  # rows
TOP = 1 << 14  # rows that a view keeps in the order of an attribute
HIDDEN, REMOVED, BARE, UNSCORED = (
    1,
    2,
    4,
    8,
)  # flags of a row: BARE has no general code, UNSCORED no label scores

LEVELS = 255  # a probability or share is stored in one byte
MAX_ID_BYTES = 512  # in UTF-8
MAX_TEXT = 1 << 15  # characters of a label or of a text attribute
CARRIED = 1 << 31  # added to the number of a label in the entries of items that carry it


@dataclass(frozen=True, eq=False)
class Item:
    """One stored item: packed code (ceil(K/8),), general code (ceil(V/8),), labels, label scores and attributes.

    `labels` are those that it carries, in the order in which the index first stored them. `scores` also has labels that
    it does not carry; it is empty for an item without scores. An attribute without a value is None.
    """

    key: int
    id: str
    code: Packed
    general: Packed | None = None
    labels: tuple[str, ...] = ()
    scores: LabelScores = field(default_factory=dict)
    attributes: Mapping[str, Value] = field(default_factory=dict)
    hidden: bool = False

    def probabilities(self, labels: Iterable[str]) -> dict[str, float]:
        """Return the stored probabilities of these labels, 0 to 1."""
        return {label: self.scores[label][0] / LEVELS for label in labels if label in self.scores}

    def shares(self, labels: Iterable[str]) -> dict[str, float]:
        """Return the stored area shares of these labels, 0 to 1."""
        return {label: self.scores[label][1] / LEVELS for label in labels if label in self.scores}


@dataclass(frozen=True, eq=False)
class Counts:
    """How many items pass a filter, how many of them carry each label, by name, and their keys in ascending order."""

    total: int
    labels: dict[str, int]
    keys: Keys


@dataclass(frozen=True, eq=False)
class Filter:
    """Restrict items to those with all labels of `having`, none of `without`, and attributes in `where`.

    An item has a label that it carries, or whose probability is at least `model.base.FILTERED`. Missing attributes never
    match. `among` are keys of items.
    """

    having: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    where: Mapping[str, Where] = field(default_factory=dict)
    among: Keys | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether all items pass."""
        return not (self.having or self.without or self.where) and self.among is None


EVERYTHING = Filter()


class Entries(NamedTuple):
    """Label entries of items: arrays of equal length, with rows in ascending order."""

    rows: NDArray[Any]
    labels: NDArray[Any]  # numbers of labels, plus CARRIED in entries of items that carry them
    probabilities: NDArray[Any]  # in 255ths
    shares: NDArray[Any]  # in 255ths

    def take(self, selected: NDArray[Any] | slice) -> Self:
        """Return some of the entries."""
        return type(self)(*(column[selected] for column in self))


@dataclass(frozen=True, eq=False)
class Batch:
    """N items to add. `ids` is None for numbers; `entries.labels` are positions in `names`."""

    ids: Sequence[str] | None
    semantic: Packed  # (N, ceil(K/8))
    general: Packed | None  # (N, ceil(V/8)); None in an index without general codes
    is_bare: NDArray[np.bool_]  # (N,): items without a general code
    is_unscored: NDArray[np.bool_]  # (N,): items without label scores
    names: Sequence[str]
    entries: Entries
    attributes: Mapping[str, NDArray[np.float64] | Sequence[str | None]]

    def __len__(self) -> int:
        return len(self.semantic)

    @classmethod
    def of(
        cls,
        general_bits: int | None,
        semantic: Packed,
        general: Packed | None,
        ids: Sequence[str] | None,
        labels: Sequence[Sequence[str]] | None,
        scores: Sequence[LabelScores] | None,
        attributes: Mapping[str, Any],
    ) -> Self:
        """Return items by their columns; a general code of zeros is a missing one."""
        count = len(semantic)
        if general is None and general_bits is not None:
            general = np.zeros((count, packed_width(general_bits)), np.uint8)
        names, entries = label_entries(labels or [()] * count, scores)
        is_bare: NDArray[np.bool_] = np.zeros(count, np.bool_)
        if general is not None:
            is_bare = (general == 0).all(axis=1)
        is_unscored = np.array([not row for row in scores or [{}] * count], np.bool_)
        return cls(ids, semantic, general, is_bare, is_unscored, names, entries, attributes)

    def take(self, rows: Sequence[int]) -> Self:
        """Return the items of some rows, in ascending order."""
        if len(rows) == len(self):
            return self
        selected = np.array(rows, np.int64)
        positions = np.full(len(self), -1)
        positions[selected] = np.arange(len(selected))
        renumbered = positions[self.entries.rows]
        kept = np.flatnonzero(renumbered >= 0)
        return replace(
            self,
            ids=None if self.ids is None else [self.ids[row] for row in rows],
            semantic=self.semantic[selected],
            general=None if self.general is None else self.general[selected],
            is_bare=self.is_bare[selected],
            is_unscored=self.is_unscored[selected],
            entries=self.entries._replace(rows=renumbered).take(kept),
            attributes={
                name: values[selected] if isinstance(values, np.ndarray) else [values[row] for row in rows]
                for name, values in self.attributes.items()
            },
        )


def label_entries(
    labels: Sequence[Sequence[str]], scores: Sequence[LabelScores] | None
) -> tuple[list[str], Entries]:
    """Return the names and the entries of the labels that items carry and of their label scores."""
    names: dict[str, int] = {}
    rows, numbers, probabilities, shares = list[int](), list[int](), list[int](), list[int]()
    for row, carried in enumerate(labels):
        for name in carried:
            rows.append(row)
            numbers.append(names.setdefault(name, len(names)) + CARRIED)
            probabilities.append(LEVELS)
            shares.append(0)
        for name, (probability, share) in scores[row].items() if scores else ():
            rows.append(row)
            numbers.append(names.setdefault(name, len(names)))
            probabilities.append(probability)
            shares.append(share)
    columns = (np.array(numbers, "<u4"), np.array(probabilities, "u1"), np.array(shares, "u1"))
    return list(names), Entries(np.array(rows, np.int64), *columns)


class Part(NamedTuple):
    """The label entries of a chunk of rows, sorted by label, then row."""

    labels: NDArray[Any]  # those that occur, ascending; CARRIED ones come last
    starts: NDArray[Any]  # where the entries of each begin, and the number of all
    rows: NDArray[Any]  # within the chunk
    probabilities: NDArray[Any]
    shares: NDArray[Any]

    @classmethod
    def of(cls, entries: Entries) -> Self:
        """Sort entries."""
        order = np.lexsort((entries.rows, entries.labels))
        rows, labels, probabilities, shares = entries.take(order)
        starts = np.flatnonzero(np.diff(labels.astype(np.int64), prepend=-1))
        ends = np.append(starts, len(order)).astype("<u4")
        return cls(labels[starts].astype("<u4"), ends, rows.astype("<u2"), probabilities, shares)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` returned, or raise ValueError."""
        labels, entries = np.frombuffer(data, "<u4", 2).tolist()
        sizes, arrays, offset = (labels, labels + 1, entries, entries, entries), list[Any](), 8
        for dtype, size in zip(("<u4", "<u4", "<u2", "u1", "u1"), sizes, strict=True):
            arrays.append(np.frombuffer(data, dtype, size, offset))
            offset += arrays[-1].nbytes
        if offset != len(data):
            raise ValueError(f"{len(data)} bytes instead of {offset}")
        return cls(*arrays)

    def to_bytes(self) -> bytes:
        """Return the arrays, after the numbers of labels and of entries."""
        sizes = np.array([len(self.labels), len(self.rows)], "<u4")
        return b"".join(array.tobytes() for array in (sizes, *self))

    def entries(self) -> Entries:
        """Return all entries, sorted by label."""
        return Entries(
            self.rows, np.repeat(self.labels, np.diff(self.starts)), self.probabilities, self.shares
        )

    def of_label(self, label: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return rows, probabilities and shares of the entries of a label."""
        position = self.labels.searchsorted(np.uint32(label))
        if position == len(self.labels) or self.labels[position] != label:
            return self.rows[:0], self.probabilities[:0], self.shares[:0]
        selected = slice(self.starts[position], self.starts[position + 1])
        return self.rows[selected], self.probabilities[selected], self.shares[selected]

    def of_row(self, row: int) -> list[tuple[int, int, int]]:
        """Return label, probability and share of the entries of a row."""
        positions = (self.rows == row).nonzero()[0]
        labels = self.labels[self.starts.searchsorted(positions, "right") - 1].tolist()
        return list(
            zip(labels, self.probabilities[positions].tolist(), self.shares[positions].tolist(), strict=True)
        )

    def carried(self, mask: NDArray[np.bool_] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the labels that items of the chunk carry, and how many of those in the mask carry each."""
        first = self.labels.searchsorted(np.uint32(CARRIED))
        starts = self.starts[first:].astype(np.int64)
        if mask is None or not len(starts) - 1:
            counts = np.diff(starts)
        else:
            rows = self.rows[starts[0] :]
            counts = np.add.reduceat(mask[rows].astype(np.int64), starts[:-1] - starts[0])
        return self.labels[first:].astype(np.int64) - CARRIED, counts


def joined(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries."""
    return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


NO_ENTRIES = label_entries((), None)[1]
NO_PART = Part.of(NO_ENTRIES)


# --- columns in memory


class Meta(NamedTuple):
    """The one row of the table `meta`."""

    version: int  # number of commits
    rows: int  # with those of removed items
    items: int
    hidden: int
    labels: int  # names in the table of labels
    texts: int  # in the table of texts
    next_key: int
    next_number: int  # the id of the next item that is added without one

    @property
    def size(self) -> int:
        """Return the number of items that are not hidden."""
        return self.items - self.hidden

    @property
    def chunks(self) -> int:
        """Return the number of chunks of each column."""
        return -(-self.rows // CHUNK)


NOTHING = Meta(-1, 0, 0, 0, 0, 0, 0, 0)  # before the first commit


class Column(NamedTuple):
    """The type of a column of fixed width, and how many values a row has."""

    dtype: str
    width: int = 1

    def read(self, data: bytes) -> NDArray[Any]:
        """Return the rows in a blob, or raise ValueError."""
        values = np.frombuffer(data, self.dtype)
        return values if self.width == 1 else values.reshape(-1, self.width)

    def empty(self, rows: int) -> NDArray[Any]:
        """Return an array of some rows whose values are to be set."""
        return np.empty(rows if self.width == 1 else (rows, self.width), self.dtype)


@dataclass(frozen=True)
class Facts:
    """What is true of an index for good: the widths of its codes, its attributes, and what queries need of its model."""

    bits: int
    general_bits: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)  # "number" or "text" by name
    model: Mapping[str, Any] | None = None
    format: int = FORMAT


def attribute_column(name: str) -> str:
    """Return the name of the column that holds an attribute."""
    return f"attribute {name}"


def columns_of(facts: Facts) -> dict[str, Column]:
    """Return the columns of fixed width of an index."""
    columns = {"semantic": Column("u1", packed_width(facts.bits))}
    if facts.general_bits is not None:
        columns["general"] = Column("u1", packed_width(facts.general_bits))
    columns |= {"key": Column("<u4"), "flags": Column("u1")}
    for name, kind in facts.attributes.items():
        columns[attribute_column(name)] = Column("<f8" if kind == "number" else "<u4")
    return columns


@dataclass(frozen=True)
class View:
    """The loaded columns of one commit. Nobody writes to the first `meta.rows` rows of its arrays, nor to its parts."""

    meta: Meta
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # with spare room
    parts: Sequence[Part] | None = None
    labels: tuple[str, ...] = ()  # names by number

    @property
    def columns(self) -> set[str]:
        """Return the names of the columns that are loaded."""
        return {*self.arrays, *(() if self.parts is None else ["labels"])}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name][: self.meta.rows]

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Return the number of each label by name."""
        return {name: number for number, name in enumerate(self.labels)}

    @property
    def semantic(self) -> NDArray[np.uint8]:
        """Return the packed semantic codes (N, ceil(K/8))."""
        return self["semantic"]

    @property
    def general(self) -> NDArray[np.uint8] | None:
        """Return the packed general codes (N, ceil(V/8)); None in an index without."""
        return self["general"] if "general" in self.arrays else None

    @cached_property
    def _has_flags(self) -> bool:
        return bool(self["flags"].any())

    def _without(self, flags: int) -> Bools | None:
        """Return which rows have none of these flags; None: all."""
        return (self["flags"] & flags) == 0 if self._has_flags else None

    @cached_property
    def shown(self) -> Bools | None:
        """Return which rows are items that are not hidden; None: all."""
        return (
            self._without(HIDDEN | REMOVED) if self.meta.hidden or self.meta.items < self.meta.rows else None
        )

    @cached_property
    def has_general(self) -> Bools | None:
        """Return which rows have a general code; None: all."""
        return self._without(BARE)

    @cached_property
    def unscored(self) -> Rows:
        """Return the rows without label scores."""
        scored = self._without(UNSCORED)
        return np.empty(0, np.int64) if scored is None else np.flatnonzero(~scored)

    def scores(self, label: int, least: float) -> tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]:
        """Return rows (ascending), probabilities and shares of the entries of a label from a probability on."""
        parts = [NO_PART.of_label(0), *(part.of_label(label) for part in self.parts or ())]
        rows, probabilities, shares = map(np.concatenate, zip(*parts, strict=True))
        first = np.repeat(np.arange(-1, len(parts) - 1) * CHUNK, [len(part[0]) for part in parts])
        if least <= 0:
            return first + rows, probabilities, shares
        kept = np.flatnonzero(probabilities >= least)
        return first[kept] + rows[kept], probabilities[kept], shares[kept]

    def rows_having(self, label: str) -> list[Rows]:
        """Return rows of items that carry a label, and rows of those in which it is probable."""
        number = self.label_numbers.get(label)
        if number is None:
            return []
        return [self.scores(number + CARRIED, 0)[0], self.scores(number, FILTERED * LEVELS)[0]]

    def label_counts(self, mask: Bools | None) -> dict[str, int]:
        """Return how many of the rows in a mask carry each label, sorted by name."""
        counts = np.zeros(len(self.labels), np.int64)
        for chunk, part in enumerate(self.parts or ()):
            labels, numbers = part.carried(
                None if mask is None else mask[chunk * CHUNK : (chunk + 1) * CHUNK]
            )
            counts[labels] += numbers
        names = {name: int(count) for name, count in zip(self.labels, counts, strict=True) if count}
        return dict(sorted(names.items()))

    @cached_property
    def _tops(self) -> dict[str, Rows]:
        return {}

    def top(self, column: str, count: int, mask: Bools | None) -> Rows:
        """Return the rows in the mask with the largest values, descending; missing values come last.

        Of all that are not hidden, the first ones are computed once for a commit.
        """
        rows = None if mask is None else np.flatnonzero(mask)
        if mask is not self.shown or count > TOP:
            return _largest(self[column], rows, count)
        if column not in self._tops:
            self._tops[column] = _largest(self[column], rows, TOP)
        return self._tops[column][:count]


def _largest(column: NDArray[np.float64], rows: Rows | None, count: int) -> Rows:
    """Return the rows (all if None) with the largest values, descending; of equal ones the last comes first."""
    values = column if rows is None else column[rows]
    values = np.where(np.isnan(values), -np.inf, values)
    if len(values) > count > 0:
        best = np.flatnonzero(values >= np.partition(values, -count)[-count])
    else:
        best = np.arange(len(values))
    ordered: Rows = best[np.lexsort((-best, -values[best]))][:count]
    return ordered if rows is None else rows[ordered]


def updated(
    old: NDArray[Any] | None,
    column: Column,
    changed: Iterator[tuple[int, NDArray[Any]]],
    known: int,
    rows: int,
) -> NDArray[Any]:
    """Return an array with the changed chunks of a column; views may be reading the `known` first rows of the old one.

    It is the same array if only later rows are new and it has room for them, else a copy.
    """
    array = old
    if array is None or len(array) < rows:
        array = column.empty(rows + rows // 8 + CHUNK)
        if old is not None:
            array[:known] = old[:known]
    for chunk, values in changed:
        top = chunk * CHUNK
        used = min(max(known - top, 0), len(values))
        if values[:used].tobytes() != array[top : top + used].tobytes():
            array = array.copy() if array is old else array
            array[top : top + used] = values[:used]
        array[top + used : top + len(values)] = values[used:]
    return array


# --- checks of what callers pass


def is_id(id: str) -> bool:
    """Return whether a text can be an id: 1 to 512 bytes of UTF-8."""
    try:
        return 1 <= len(id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def check_ids(ids: Iterable[object]) -> list[str]:
    """Return ids as strings (numbers are converted), or raise InputError for what cannot be one."""
    if isinstance(ids, str):
        raise InputError(f"ids are a list, got the text {ids!r:.80}: put it into a list.")
    checked = []
    for id in ids:
        if isinstance(id, int | np.integer) and not isinstance(id, bool):
            id = str(id)
        if not isinstance(id, str) or not is_id(id):
            raise InputError(
                f"an id is a number or a text of 1 to {MAX_ID_BYTES} bytes of UTF-8, got {id!r:.80}."
            )
        checked.append(str(id))
    return checked


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of one item, each once, or raise InputError."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InputError(f"the labels of an item are a list of texts, got {labels!r:.80}.")
    return tuple(dict.fromkeys(check_text(label, "a label") for label in labels))


def check_text(text: object, name: str) -> str:
    """Return a text that can be stored, or raise InputError."""
    try:
        if isinstance(text, str) and len(text) <= MAX_TEXT:
            text.encode()
            return str(text)
    except UnicodeEncodeError:
        pass
    raise InputError(
        f"{name} is a text of valid Unicode of at most {MAX_TEXT:,} characters, got {text!r:.80}."
    )


def check_scores(scores: LabelScores) -> LabelScores:
    """Return the label scores of one item, or raise InputError."""
    for label, pair in scores.items():
        check_text(label, "a label")
        if len(pair) != 2 or not all(type(value) is int and 0 <= value <= LEVELS for value in pair):
            raise InputError(
                f"probability and share of '{label}' are two whole numbers of 0 to {LEVELS}, got {pair!r}."
            )
    return scores


def check_attributes(
    declared: Mapping[str, type], columns: Mapping[str, Iterable[Value]], count: int
) -> dict[str, NDArray[np.float64] | list[str | None]]:
    """Return a column for each declared attribute: numbers with NaN for missing ones, or texts and None."""
    unknown = next((name for name in columns if name not in declared), None)
    if unknown is not None:
        raise InputError(
            f"this index has no attribute '{unknown}', but {', '.join(declared) or 'none'}: attributes are declared when "
            "an index is created."
        )
    checked: dict[str, NDArray[np.float64] | list[str | None]] = {}
    for name, kind in declared.items():
        values = columns.get(name, [None] * count)
        if kind is str:
            checked[name] = [
                None if value is None else check_text(value, f"the attribute '{name}'") for value in values
            ]
            continue
        try:
            checked[name] = np.array([np.nan if value is None else value for value in values], np.float64)
        except (TypeError, ValueError):
            raise InputError(f"the attribute '{name}' is a number or None for each item.") from None
    return checked
