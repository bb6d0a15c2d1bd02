"""Items of an index: what one is, a batch of them to add, the filter that selects some, and their columns in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import InputError
from centerhash.model.base import FILTERED

# Probability and area share of labels, in 255ths.
LabelScores: TypeAlias = Mapping[str, tuple[int, int]]
# Of an attribute.
Value: TypeAlias = float | str | None
# Inclusive bounds of a number, or the texts that match.
Where: TypeAlias = tuple[float, float] | tuple[str, ...]
Keys: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

# Of the database.
FORMAT = 4
# Rows of a chunk of a column.
CHUNK = 4096
# Rows that a view keeps in the order of an attribute.
TOP = 1 << 14
# Flags of a row: BARE has no general code, UNSCORED no label scores.
HIDDEN, REMOVED, BARE, UNSCORED = 1, 2, 4, 8
# A probability or share is stored in one byte.
LEVELS = 255
# Added to the number of a label in the entries of items that carry it.
CARRIED = 1 << 31
# The column of label entries.
LABELS = "labels"
# In UTF-8.
MAX_ID_BYTES = 512
# Characters of a label or of a text attribute.
MAX_TEXT = 1 << 15


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


# --- label entries


class Entries(NamedTuple):
    """Label entries of items: arrays of equal length, with rows in ascending order."""

    rows: NDArray[Any]
    labels: NDArray[Any]  # numbers of labels, plus CARRIED in entries of items that carry them
    probabilities: NDArray[Any]  # in 255ths
    shares: NDArray[Any]  # in 255ths

    @classmethod
    def of(
        cls, labels: Sequence[Sequence[str]], scores: Sequence[LabelScores] | None
    ) -> tuple[list[str], Self]:
        """Return the names of the labels that items carry or have scores of, and the entries, which count them."""
        numbers: dict[str, int] = {}
        entries = list[tuple[int, int, int, int]]()
        for row, carried in enumerate(labels):
            for name in carried:
                entries.append((row, numbers.setdefault(name, len(numbers)) + CARRIED, LEVELS, 0))
            for name, pair in scores[row].items() if scores else ():
                entries.append((row, numbers.setdefault(name, len(numbers)), *pair))
        columns = np.array(entries, np.int64).reshape(-1, 4).T
        types = ("<i8", "<u4", "u1", "u1")
        return list(numbers), cls(*(column.astype(of) for column, of in zip(columns, types, strict=True)))

    def take(self, selected: NDArray[Any] | slice) -> Self:
        """Return some of the entries."""
        return type(self)(*(column[selected] for column in self))

    def of_rows(self, rows: Rows) -> Self:
        """Return the entries of ascending rows, which become 0, 1, ..."""
        positions = np.searchsorted(rows, self.rows)
        positions[positions == len(rows)] = 0
        kept = np.flatnonzero(rows[positions] == self.rows) if len(rows) else slice(0)
        return self._replace(rows=positions).take(kept)


def joined(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries."""
    return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


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
        """Read what `to_bytes` returned."""
        labels, entries = np.frombuffer(data, "<u4", 2).tolist()
        sizes, arrays, offset = (labels, labels + 1, entries, entries, entries), list[Any](), 8
        for dtype, size in zip(("<u4", "<u4", "<u2", "u1", "u1"), sizes, strict=True):
            arrays.append(np.frombuffer(data, dtype, size, offset))
            offset += arrays[-1].nbytes
        return cls(*arrays)

    def to_bytes(self) -> bytes:
        """Return the arrays, after the numbers of labels and of entries."""
        sizes = np.array([len(self.labels), len(self.rows)], "<u4")
        return b"".join(array.tobytes() for array in (sizes, *self))

    def entries(self, first: int = 0) -> Entries:
        """Return all entries, with the rows of a chunk that starts at row `first`."""
        labels = np.repeat(self.labels, np.diff(self.starts))
        return Entries(self.rows + np.int64(first), labels, self.probabilities, self.shares)

    def place(self, label: np.uint32) -> slice:
        """Return where the entries of a label are."""
        position = self.labels.searchsorted(label)
        if position == len(self.labels) or self.labels[position] != label:
            return slice(0)
        return slice(self.starts[position], self.starts[position + 1])

    def of_row(self, row: int) -> list[tuple[int, int, int]]:
        """Return label, probability and share of the entries of a row."""
        positions = (self.rows == row).nonzero()[0]
        labels = self.labels[self.starts.searchsorted(positions, "right") - 1]
        columns = labels, self.probabilities[positions], self.shares[positions]
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def carried(self, mask: Bools | None) -> Iterator[tuple[int, int]]:
        """Yield the labels that items of the chunk carry, and how many of those in the mask carry each."""
        first = self.labels.searchsorted(np.uint32(CARRIED))
        starts = self.starts[first:].astype(np.int64)
        counts = np.diff(starts)
        if mask is not None and len(counts):
            is_counted = mask[self.rows[starts[0] :]]
            counts = np.add.reduceat(is_counted, starts[:-1] - starts[0], dtype=np.int64)
        yield from zip((self.labels[first:] - np.uint32(CARRIED)).tolist(), counts.tolist(), strict=True)


NO_PART = Part.of(Entries.of((), None)[1])


# --- what is stored


class Meta(NamedTuple):
    """The one row of the table `meta`."""

    version: int = -1  # number of commits
    rows: int = 0  # with those of removed items
    items: int = 0
    hidden: int = 0
    labels: int = 0  # names in the table of texts
    texts: int = 0  # in the table of texts, with those of labels
    next_key: int = 0
    next_number: int = 0  # the id of the next item that is added without one

    @property
    def size(self) -> int:
        """Return the number of items that are not hidden."""
        return self.items - self.hidden

    @property
    def chunks(self) -> int:
        """Return the number of chunks of each column."""
        return -(-self.rows // CHUNK)


@dataclass(frozen=True)
class Facts:
    """What is true of an index for good: the widths of its codes, its attributes, and what queries need of its model."""

    bits: int
    general_bits: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)  # "number" or "text" by name
    model: Mapping[str, Any] | None = None
    format: int = FORMAT

    @property
    def columns(self) -> dict[str, Column]:
        """Return the columns of fixed width. Texts are stored as their number + 1, and 0 is a missing one."""
        columns = {"semantic": Column("u1", packed_width(self.bits))}
        if self.general_bits is not None:
            columns["general"] = Column("u1", packed_width(self.general_bits))
        columns |= {"key": Column("<u4"), "flags": Column("u1")}
        kinds = {"number": Column("<f8"), "text": Column("<u4")}
        return columns | {attribute_column(name): kinds[kind] for name, kind in self.attributes.items()}


class Column(NamedTuple):
    """The type of a column of fixed width, and how many values a row has."""

    dtype: str
    width: int = 1

    def read(self, data: bytes) -> NDArray[Any]:
        """Return the rows in a blob."""
        values = np.frombuffer(data, self.dtype)
        return values if self.width == 1 else values.reshape(-1, self.width)

    def empty(self, rows: int) -> NDArray[Any]:
        """Return an array of some rows whose values are to be set."""
        return np.empty(rows if self.width == 1 else (rows, self.width), self.dtype)


def attribute_column(name: str) -> str:
    """Return the name of the column that holds an attribute."""
    return f"attribute {name}"


@dataclass(frozen=True, eq=False)
class Batch:
    """N items to add, by column; texts are objects. `ids` is None for numbers; entries count `labels`."""

    ids: Sequence[str] | None
    columns: Mapping[str, NDArray[Any]]
    labels: Sequence[str]
    entries: Entries

    def __len__(self) -> int:
        return len(self.columns["semantic"])

    @classmethod
    def of(
        cls,
        semantic: Packed,
        general: Packed | None,
        ids: Sequence[str] | None,
        labels: Sequence[Sequence[str]] | None,
        scores: Sequence[LabelScores] | None,
        attributes: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Return items by what a caller passes; a general code of zeros is a missing one."""
        count = len(semantic)
        flags = UNSCORED * np.array([not row for row in scores or [{}] * count], np.uint8)
        columns = {"semantic": semantic, "flags": flags}
        if general is not None:
            columns["general"] = general
            flags |= BARE * (~general.any(axis=1)).astype(np.uint8)
        columns |= {attribute_column(name): values for name, values in attributes.items()}
        return cls(ids, columns, *Entries.of(labels or [()] * count, scores))

    def take(self, rows: Rows) -> Self:
        """Return the items of ascending rows."""
        ids = None if self.ids is None else [self.ids[row] for row in rows.tolist()]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return type(self)(ids, columns, self.labels, self.entries.of_rows(rows))


# --- columns in memory


@dataclass(frozen=True)
class View:
    """The loaded columns of one commit. Nobody writes to the first `meta.rows` rows of its arrays, nor to its parts."""

    meta: Meta
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # with spare room
    parts: Sequence[Part] | None = None
    labels: Mapping[int, str] = field(default_factory=dict)  # names by number

    @property
    def columns(self) -> set[str]:
        """Return the names of the columns that are loaded."""
        return {*self.arrays, *(() if self.parts is None else [LABELS])}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name][: self.meta.rows]

    @property
    def semantic(self) -> Packed:
        """Return the packed semantic codes (N, ceil(K/8))."""
        return self["semantic"]

    @property
    def general(self) -> Packed | None:
        """Return the packed general codes (N, ceil(V/8)); None in an index without."""
        return self["general"] if "general" in self.arrays else None

    @cached_property
    def _flags(self) -> int:
        """Return the flags that any row has."""
        return int(np.bitwise_or.reduce(self["flags"]))

    def _without(self, flags: int) -> Bools | None:
        return (self["flags"] & flags) == 0 if self._flags & flags else None

    @cached_property
    def shown(self) -> Bools | None:
        """Return which rows are items that are not hidden; None: all."""
        return self._without(HIDDEN | REMOVED)

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
        parts = [NO_PART, *(self.parts or ())]
        places = [part.place(np.uint32(label)) for part in parts]
        rows, probabilities, shares = (
            np.concatenate([part[column][place] for part, place in zip(parts, places, strict=True)])
            for column in (2, 3, 4)
        )
        sizes = [int(place.stop) - int(place.start or 0) for place in places]
        kept = np.flatnonzero(probabilities >= least)
        first = np.repeat(np.arange(-1, len(parts) - 1) * CHUNK, sizes)[kept]
        return first + rows[kept], probabilities[kept], shares[kept]

    def having(self, label: str) -> Bools:
        """Return which rows carry a label, or have it with a probability of at least FILTERED."""
        mask = np.zeros((self.meta.chunks, CHUNK), np.bool_)
        number = next((number for number, name in self.labels.items() if name == label), None)
        if number is not None:
            scored, carried, least = np.uint32(number), np.uint32(number + CARRIED), FILTERED * LEVELS
            for of_chunk, part in zip(mask, self.parts or (), strict=True):
                of_chunk[part.rows[part.place(carried)]] = True
                place = part.place(scored)
                of_chunk[part.rows[place][part.probabilities[place] >= least]] = True
        return mask.reshape(-1)[: self.meta.rows]

    def label_counts(self, mask: Bools | None) -> dict[str, int]:
        """Return how many of the rows in a mask carry each label, sorted by name."""
        counts = dict.fromkeys(self.labels, 0)
        for chunk, part in enumerate(self.parts or ()):
            chosen = None if mask is None else mask[chunk * CHUNK : (chunk + 1) * CHUNK]
            for label, count in part.carried(chosen):
                counts[label] += count
        return dict(sorted((self.labels[label], count) for label, count in counts.items() if count))

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
    changed: Iterable[tuple[int, NDArray[Any]]],
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


def _is_text(text: object, most: int) -> bool:
    """Return whether this is a text that can be stored, of so many characters."""
    try:
        return isinstance(text, str) and len(text) <= most and text.encode() is not None
    except UnicodeEncodeError:
        return False


def is_id(id: object) -> bool:
    """Return whether this can be an id: a text of 1 to 512 bytes of UTF-8."""
    return _is_text(id, MAX_ID_BYTES) and 1 <= len(str(id).encode()) <= MAX_ID_BYTES


def check_ids(ids: Iterable[object]) -> list[str]:
    """Return ids as strings (numbers are converted), or raise InputError for what cannot be one."""
    if isinstance(ids, str):
        raise InputError(f"ids are a list, got the text {ids!r:.80}: put it into a list.")
    checked = []
    for id in ids:
        if isinstance(id, int | np.integer) and not isinstance(id, bool):
            id = str(id)
        if not is_id(id):
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
    if not _is_text(text, MAX_TEXT):
        raise InputError(
            f"{name} is a text of valid Unicode of at most {MAX_TEXT:,} characters, got {text!r:.80}."
        )
    return str(text)


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
) -> dict[str, NDArray[Any]]:
    """Return a column for each declared attribute: numbers with NaN for missing ones, or texts and None as objects."""
    unknown = next((name for name in columns if name not in declared), None)
    if unknown is not None:
        raise InputError(
            f"this index has no attribute '{unknown}', but {', '.join(declared) or 'none'}: attributes are declared when "
            "an index is created."
        )
    checked: dict[str, NDArray[Any]] = {}
    for name, kind in declared.items():
        values = columns.get(name, [None] * count)
        if kind is str:
            texts = [value if value is None else check_text(value, f"'{name}'") for value in values]
            checked[name] = np.array(texts, object)
            continue
        try:
            checked[name] = np.array([np.nan if value is None else value for value in values], np.float64)
        except (TypeError, ValueError):
            raise InputError(f"the attribute '{name}' is a number or None for each item.") from None
    return checked
