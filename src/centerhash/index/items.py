"""Items, filters and results of an index, the facts that it stores once, and checks of the values that callers pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, packed_width
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.rendering import RowSequence, to_frame
from centerhash.model.base import LabelMatch

# A label maps to its probability and its area share, in 255ths.
LabelScores: TypeAlias = Mapping[str, tuple[int, int]]
AttributeValue: TypeAlias = float | str | None
# A number is filtered by inclusive bounds, a text by the texts that match.
Condition: TypeAlias = tuple[float, float] | tuple[str, ...]
Keys: TypeAlias = NDArray[np.int64]

DATABASE_FORMAT = 5
# A probability or share is stored in one byte.
LEVELS = 255
# Both count bytes of UTF-8; labels and text attributes are texts.
MAX_ID_BYTES, MAX_TEXT_BYTES = 512, 1 << 15


@dataclass(frozen=True, eq=False)
class Item:
    """One stored item: packed code (ceil(K/8),), general code (ceil(V/8),), labels, label scores and attributes.

    `labels` are those that it carries, in the order in which the index first stored them. `scores` also contains labels
    that it does not carry; it is empty for an item without scores. An attribute without a value is None.
    """

    key: int
    id: str
    code: Packed
    general: Packed | None = None
    labels: tuple[str, ...] = ()
    scores: LabelScores = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class Counts:
    """The number of items that pass a filter, the number of those that carry each label, and their ascending keys."""

    total: int
    labels: dict[str, int]
    keys: Keys


@dataclass(frozen=True, eq=False)
class Filter:
    """Select items with all labels of `having`, none of `without`, attributes in `where`, and keys `among` these.

    An item has a label that it carries, or whose probability is at least `model.base.FILTER_FROM`. A missing attribute
    never matches.
    """

    having: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    where: Mapping[str, Condition] = field(default_factory=dict)
    among: Keys | None = None


@dataclass(frozen=True)
class AddResult:
    """Counts of one `add`: new items, and items whose ids were stored before."""

    added: int
    known: int


@dataclass(frozen=True)
class Result:
    """One result of a search.

    `distance` and `general` are the Hamming distances of the semantic and of the general codes; `general` is None if the
    query or the item has no general code. `probability` and `share` are those of the labels of the query, otherwise of
    the labels that the item carries; None if the item has no scores.
    """

    id: str
    key: int
    distance: int
    general: int | None = None
    labels: tuple[str, ...] = ()
    probability: Mapping[str, float] | None = None
    share: Mapping[str, float] | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        # `dataclasses.asdict` takes ten times as long.
        return {**vars(self), "labels": list(self.labels), "attributes": dict(self.attributes)}


class Results(RowSequence[Result]):
    """The results of a search, best first.

        results = index.search(id="a.jpg", k=10)
        print(results[0].id, results[0].distance)
        table = results.to_pandas()

    `labels` explain the query if the model has centers. `code` (K,) is the semantic code of the query, and `size` the
    number of items in the index.
    """

    def __init__(self, rows: Sequence[Result], labels: Sequence[LabelMatch], code: Codes, size: int) -> None:
        super().__init__(rows)
        self.labels, self.code, self.size = tuple(labels), code, size

    def to_dict(self) -> dict[str, Any]:
        """Return what `centerhash index search --json` prints."""
        return {
            "labels": [asdict(row) for row in self.labels],
            "results": [row.to_dict() for row in self],
            "bits": len(self.code),
            "size": self.size,
        }

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per result and the fields of `Result`."""
        return to_frame([row.to_dict() for row in self]).reindex(columns=list(Result.__annotations__))

    def __repr__(self) -> str:
        nearest = f", nearest {self[0].id!r} at distance {self[0].distance}" if self else ""
        return f"Results({len(self):,} of {self.size:,} items{nearest})"


class Meta(NamedTuple):
    """The row of the table `meta`."""

    version: int = -1  # number of commits
    rows: int = 0  # including removed items
    items: int = 0
    hidden: int = 0
    texts: int = 0  # rows of the table
    next_key: int = 0
    next_number: int = 0  # the next default id


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts of an index that never change: widths of codes, attributes, and the part of its model for queries.

    A label is predicted if the cosine of the logits to its center in `directions` is at least `label_threshold`.
    """

    bits: int
    general_bits: int | None = None
    attributes: Mapping[str, type] = field(default_factory=dict)  # float or str
    method: str | None = None  # None without a model
    backbone: str | None = None
    classes: tuple[str, ...] = ()
    label_threshold: float = 0.0
    hash_centers: Codes | None = None  # (C, K)
    directions: NDArray[np.float32] | None = None  # (C, K)
    format: int = DATABASE_FORMAT

    def to_json(self) -> str:
        """Return the facts as JSON, with the names of types and the bytes of arrays in hex digits."""
        types = {name: kind.__name__ for name, kind in self.attributes.items()}
        facts = {**vars(self), "attributes": types}
        return json.dumps(facts, default=lambda array: array.tobytes().hex())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON of `to_json`; DataError for another format."""
        facts = json.loads(text)
        if facts["format"] != DATABASE_FORMAT:
            raise DataError("the index is of another version of centerhash: create it again.")
        for name, dtype in (("hash_centers", "i1"), ("directions", "<f4")):
            if facts[name] is not None:
                facts[name] = np.frombuffer(bytes.fromhex(facts[name]), dtype).reshape(-1, facts["bits"])
        types = {name: {"float": float, "str": str}[kind] for name, kind in facts["attributes"].items()}
        return cls(**facts | {"classes": tuple(facts["classes"]), "attributes": types})

    @property
    def centers(self) -> Codes:
        """The hash centers (C, K); ConfigError for a method without centers."""
        if self.method is None:
            raise ConfigError("this index has no model, only codes: search by an id, a code or examples.")
        if self.hash_centers is None:
            raise ConfigError(
                f"a model of method '{self.method}' has no hash centers, so it does not support label queries and "
                "weights. Train a model of a central method, such as ics-softmax."
            )
        return self.hash_centers

    @property
    def columns(self) -> dict[str, np.dtype[Any]]:
        """The types of all columns of fixed width. A text is stored as its number + 1, a missing one as 0."""
        codes = {"semantic": self.bits, "general": self.general_bits}
        types: dict[str, Any] = {name: ("u1", (packed_width(bits),)) for name, bits in codes.items() if bits}
        types |= {"key": "<u4", "flags": "u1"}
        for name, kind in self.attributes.items():
            types[attribute_column(name)] = "<f8" if kind is float else "<u4"
        return {name: np.dtype(kind) for name, kind in types.items()}


def attribute_column(name: str) -> str:
    """Return the name of the column that holds an attribute."""
    return f"attribute {name}"


# --- checks of values that callers pass


def _is_text(text: object, least: int, most: int) -> bool:
    """Return whether a value is a text of `least` to `most` bytes of UTF-8."""
    try:
        return isinstance(text, str) and least <= len(text.encode()) <= most
    except UnicodeEncodeError:
        return False


def is_id(id: object) -> bool:
    """Return whether a value can be an id."""
    return _is_text(id, 1, MAX_ID_BYTES)


def check_ids(ids: Iterable[object]) -> list[str]:
    """Return ids as strings, also those that are numbers; InputError for other values."""
    if isinstance(ids, str):
        raise InputError(f"ids are a list, got the text {ids!r:.80}: put it into a list.")
    texts = [str(id) if isinstance(id, int | np.integer) and not isinstance(id, bool) else id for id in ids]
    for id in texts:
        if not is_id(id):
            expected = f"a number or a text of 1 to {MAX_ID_BYTES} bytes of UTF-8"
            raise InputError(f"an id is {expected}, got {id!r:.80}.")
    return [str(id) for id in texts]


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of one item, each once, or raise InputError."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InputError(f"the labels of an item are a list of texts, got {labels!r:.80}.")
    return tuple(dict.fromkeys(check_text(label, "a label") for label in labels))


def check_text(text: object, name: str) -> str:
    """Return a text that can be stored, or raise InputError."""
    if not _is_text(text, 0, MAX_TEXT_BYTES):
        raise InputError(f"{name} is a text of at most {MAX_TEXT_BYTES:,} bytes of UTF-8, got {text!r:.80}.")
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
    declared: Mapping[str, type], attributes: Mapping[str, Iterable[AttributeValue]], count: int
) -> dict[str, NDArray[Any]]:
    """Return the column of each declared attribute: numbers with NaN for missing ones, or texts and None as objects."""
    unknown = next((name for name in attributes if name not in declared), None)
    if unknown is not None:
        raise InputError(
            f"this index has no attribute '{unknown}', but {', '.join(declared) or 'none'}: attributes are declared when "
            "an index is created."
        )
    columns: dict[str, NDArray[Any]] = {}
    for name, kind in declared.items():
        values = list(attributes.get(name, [None] * count))
        if kind is str:
            values = [value if value is None else check_text(value, f"'{name}'") for value in values]
        try:
            columns[attribute_column(name)] = np.fromiter(values, object if kind is str else np.float64)
        except (TypeError, ValueError):
            raise InputError(f"the attribute '{name}' is a number or None for each item.") from None
    return columns
