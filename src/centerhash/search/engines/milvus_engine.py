"""Search on more than one machine: Milvus, the same code for a milvus-lite file, a server or a cluster.

The collection holds one row per item: a key made of the id, the code as BINARY_VECTOR under a BIN_FLAT index, the
labels as an array that filters are pushed down to, the path, and the visual code, presences and shares as one text.
Answers by the semantic code are exact, ties included. Milvus breaks ties as it likes and answers with at most 16,384
rows, so a group of equal distances that is cut off is read again whole, in parts by key where it is larger than that.
Other rankings order the few hundred items whose codes are nearest.

Milvus does not see to it that keys are unique: `add` looks first, so let one writer add at a time.

What a question sees is the store's `consistency`. "Strong" waits for a tick of the server's clock, a fifth of a second. A
process that writes sees what it wrote itself by "Session", and one that only reads all but the last seconds by "Bounded",
both in a few milliseconds; so these are the defaults. What is there before a change is always read with "Strong".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from centerhash.codes import Packed
from centerhash.core.errors import DataError, InputError
from centerhash.search.engines import answers
from centerhash.search.engines.base import Batch, Filter, HammingIndex, Hits, Id, Item, plain_id
from centerhash.search.engines.milvus_connection import Connection
from centerhash.search.engines.milvus_rows import (
    Row,
    any_of,
    bits_of,
    check_bits,
    check_collection,
    check_consistency,
    expression,
    fits,
    id_of,
    insert_batches,
    item_of,
    key_of,
    row_of,
    schema_of,
    unescaped,
)
from centerhash.search.engines.rankings import Ranking
from centerhash.search.engines.segments import build
from centerhash.search.engines.snapshot import Part

DEFAULT_COLLECTION = "centerhash"
WRITING, READING = (
    "Session",
    "Bounded",
)  # the consistency of a process that writes, and of one that only reads
CHANGING = "Strong"  # what is there decides what may be added
MAX_ANSWERS = 16_384  # Milvus' own limit for one search or query
_KEYS = 4_096  # in one expression
_SCAN_ROWS = 4_096
_SCAN_ROWS_OF_A_FILE = 500  # milvus-lite's time for a page grows with the square of its rows
_SEARCH_ANSWERS = 65_536  # of all the queries in one request
_SEARCH_QUERIES = 1_024
_RANKED = 500  # items by their codes that other rankings put into order
_ALL = ("code", "labels", "path", "parts")

Found: TypeAlias = list[tuple[int, str]]  # distances and keys
Ring: TypeAlias = tuple[int, int] | None  # the least and the largest distance, or any


class MilvusIndex(HammingIndex):
    """An exact index in a Milvus collection; make one with `create` or `open`."""

    def __init__(
        self,
        connection: Connection,
        collection: str,
        bits: int,
        read_only: bool,
        consistency: str,
        *,
        whole: bool = True,
    ) -> None:
        super().__init__(bits)
        self.collection = collection
        self.read_only = read_only
        self._connection = connection
        self.consistency = consistency
        self._whole = whole  # False for a collection of before, which has no place for looks and presences

    @classmethod
    def create(
        cls,
        address: str,
        bits: int,
        collection: str = DEFAULT_COLLECTION,
        *,
        consistency: str = WRITING,
        timeout: float = 60.0,
    ) -> Self:
        """Make an empty collection for codes of `bits` (K) bits, a multiple of 8.

        `address` is a milvus-lite file (it ends in .db) or a server such as http://host:19530. Questions read with
        Milvus' `consistency`: "Strong", "Session", "Bounded" or "Eventually".
        """
        check_bits(bits)
        check_collection(collection)
        check_consistency(consistency)
        connection = Connection(address, timeout, create=True)
        try:
            if connection.call("has_collection", collection):
                raise DataError(
                    f"'{connection.shown}' has a collection '{collection}' already: open it, or choose another."
                )
            schema, index = schema_of(bits)
            connection.call(
                "create_collection", collection, schema=schema, index_params=index, consistency_level="Strong"
            )
            return cls(connection, collection, bits, False, consistency)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(
        cls,
        address: str,
        collection: str = DEFAULT_COLLECTION,
        read_only: bool = False,
        *,
        consistency: str | None = None,
        timeout: float = 60.0,
    ) -> Self:
        """Open a collection that `create` made; without a `consistency` by that for writing or reading."""
        check_collection(collection)
        consistency = consistency or (READING if read_only else WRITING)
        check_consistency(consistency)
        connection = Connection(address, timeout)
        try:
            if not connection.call("has_collection", collection):
                raise DataError(f"no collection '{collection}' at '{connection.shown}'. Create it first.")
            bits, whole = bits_of(connection.call("describe_collection", collection), collection)
            connection.call("load_collection", collection)
            return cls(connection, collection, bits, read_only, consistency, whole=whole)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connection; the child process of a milvus-lite file ends with its last user."""
        self._connection.close()

    def __len__(self) -> int:
        return int(self._query("", ["count(*)"])[0]["count(*)"])

    def __contains__(self, id: object) -> bool:
        plain = plain_id(id)
        return plain is not None and bool(self._rows([key_of(plain)]))

    def present(self, ids: Sequence[Id]) -> list[Id]:
        """Those of these ids that are there, in the same order, whoever added them."""
        found: list[Id] = []
        for part in parts(list(filter(fits, ids)), _KEYS):
            there = self._rows([key_of(id) for id in part], level=CHANGING)
            found += [id for id in part if key_of(id) in there]
        return found

    def ids(self) -> Iterator[Id]:
        """All ids in ascending order, read page by page."""
        return (id_of(row["id"]) for row in self._scan([]))

    def labels(self) -> dict[str, int]:
        """Every label with the number of its items; Milvus cannot count them, so all items' labels are read."""
        counts = Counter(label for row in self._scan(["labels"]) for label in row["labels"])
        return dict(sorted((unescaped(label), count) for label, count in counts.items()))

    def _add(self, batch: Batch) -> None:
        self._check_writable()
        self._check_kind(batch.ids[0])
        nothing = [None] * len(batch.ids)
        columns = (batch.ids, map(bytes, batch.packed), batch.labels, batch.paths)
        looks = (batch.visual or nothing, batch.seen or nothing)
        rows = [row_of(*row) for row in zip(*columns, *looks, strict=True)]
        if not self._whole:
            for row in rows:
                del row["parts"]
        done: list[str] = []
        try:
            for some in insert_batches(rows):
                done.extend(row["id"] for row in some)
                self._connection.call("upsert", self.collection, some)  # unlike insert, safe to repeat
        except BaseException:
            self._delete(done)
            raise

    def _remove(self, ids: Sequence[Id]) -> int:
        self._check_writable()
        removed = 0
        for part in parts(ids, _KEYS):
            present = list(self._rows([key_of(id) for id in part], level=CHANGING))
            self._delete(present)
            removed += len(present)
        return removed

    def _get(self, ids: Sequence[Id]) -> list[Item | None]:
        items: list[Item | None] = []
        for part in parts(ids, _KEYS):
            keys = [key_of(id) for id in part]
            rows = self._rows(keys, _ALL if self._whole else _ALL[:-1])
            items.extend(item_of(rows[key]) if key in rows else None for key in keys)
        return items

    def _rank(self, ranking: Ranking, k: int, only: Filter) -> Hits:
        near = self._search(ranking.code[None], max(_RANKED, 2 * k), only)[0]
        items = [item for item in self._get(near.ids) if item is not None]
        if not items:
            return Hits((), np.empty(0, np.int64))
        return answers.ranked([Part(build(Batch.of(items)))], ranking, self.bits, k, Filter())

    def _search(self, packed: Packed, k: int, only: Filter) -> list[Hits]:
        def ties_end(answer: Found) -> bool:
            return len(answer) > k and answer[k - 1][0] < answer[-1][0]

        condition = expression(only)
        first = max(2 * k, 64)  # more than asked for: most ties at the cut end there
        found = self._ask_for_more(packed, first, condition, None, ties_end)
        for query, answer in enumerate(found):
            if len(answer) == MAX_ANSWERS and not ties_end(answer):
                found[query] = self._beyond(packed[query], k, answer, condition)
        return [hits(answer, k) for answer in found]

    def _within(self, packed: Packed, radius: int, only: Filter) -> list[Hits]:
        condition = expression(only)
        found = self._ask_for_more(packed, 1_024, condition, (0, radius), lambda answer: False)
        for query, answer in enumerate(found):
            if len(answer) == MAX_ANSWERS:
                shells = (self._shell(packed[query], distance, condition) for distance in range(radius + 1))
                found[query] = [pair for shell in shells for pair in shell]
        return [hits(answer) for answer in found]

    def _ask_for_more(
        self, packed: Packed, limit: int, condition: str, ring: Ring, enough: Callable[[Found], bool]
    ) -> list[Found]:
        """Ask for ever more answers to each code (Q, K/8) until they are all, or enough, or Milvus gives no more."""
        limit = min(limit, MAX_ANSWERS)
        answers: dict[int, Found] = {}
        waiting = list(range(len(packed)))
        while waiting:
            for query, answer in zip(
                waiting, self._ask(packed[waiting], limit, condition, ring), strict=True
            ):
                if len(answer) < limit or limit == MAX_ANSWERS or enough(answer):
                    answers[query] = answer
            waiting = [query for query in waiting if query not in answers]
            limit = min(4 * limit, MAX_ANSWERS)
        return [answers[query] for query in range(len(packed))]

    def _beyond(self, code: Packed, k: int, nearest: Found, condition: str) -> Found:
        """The k nearest and all ties of the last, where even the largest answer, `nearest`, cuts through ties."""
        cut = nearest[-1][0]
        found = [pair for pair in nearest if pair[0] < cut]
        for distance in range(cut, self.bits + 1):
            found += self._shell(code, distance, condition)
            if len(found) >= k:
                break
        return found

    def _shell(self, code: Packed, distance: int, condition: str) -> Found:
        """All items at exactly this distance of the code (K/8,): halved by key until an answer holds them all."""
        (found,) = self._ask(code[None], MAX_ANSWERS, condition, (distance, distance))
        if len(found) < MAX_ANSWERS:
            return found
        middle = sorted(key for _, key in found)[len(found) // 2]
        both = f"{condition} and " if condition else ""
        return [
            *self._shell(code, distance, f'{both}id < "{middle}"'),
            *self._shell(code, distance, f'{both}id >= "{middle}"'),
        ]

    def _ask(self, packed: Packed, limit: int, condition: str, ring: Ring) -> list[Found]:
        """Milvus' own answers, nearest first, to each code (Q, K/8)."""
        parameters = {}
        if ring is not None:
            parameters["radius"] = ring[1] + 1  # Milvus keeps distances below it
            if ring[0]:
                parameters["range_filter"] = ring[0]
        answers: list[Found] = []
        for batch in parts(packed, min(_SEARCH_QUERIES, max(1, _SEARCH_ANSWERS // limit))):
            found = self._connection.call(
                "search",
                self.collection,
                data=[code.tobytes() for code in batch],
                limit=limit,
                filter=condition,
                search_params={"metric_type": "HAMMING", "params": parameters},
                consistency_level=self.consistency,
            )
            answers += [[(round(hit["distance"]), hit["id"]) for hit in answer] for answer in found]
        return answers

    def _query(
        self, condition: str, fields: Sequence[str], level: str | None = None, **options: Any
    ) -> list[Row]:
        return list(
            self._connection.call(
                "query",
                self.collection,
                filter=condition,
                output_fields=list(fields),
                consistency_level=level or self.consistency,
                **options,
            )
        )

    def _rows(
        self, keys: Sequence[str], fields: Sequence[str] = (), level: str | None = None
    ) -> dict[str, Row]:
        """The rows of those of the keys that are there."""
        return {row["id"]: row for row in self._query(any_of(keys), ["id", *fields], level)}

    def _scan(self, fields: Sequence[str]) -> Iterator[Row]:
        """All rows in the order of their keys."""
        last = ""
        page = _SCAN_ROWS_OF_A_FILE if self._connection.embedded else _SCAN_ROWS
        in_order = {"iterator": "True", "reduce_stop_for_best": "True"}  # as pymilvus' own iterator asks
        while rows := self._query(f'id > "{last}"', ["id", *fields], limit=page, **in_order):
            rows.sort(key=lambda row: str(row["id"]))
            yield from rows
            last = rows[-1]["id"]

    def _delete(self, keys: Sequence[str]) -> None:
        for part in parts(keys, _KEYS):
            self._connection.call("delete", self.collection, filter=any_of(part))

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError(
                f"the index at '{self._connection.shown}' was opened with read_only=True: open it for writing."
            )

    def _check_kind(self, id: Id) -> None:
        """Refuse an id of another kind than those that are there."""
        there = self._query('id > ""', ["id"], CHANGING, limit=1)
        if there and there[0]["id"][0] != key_of(id)[0]:
            kind = "integer" if there[0]["id"][0] == "i" else "string"
            raise InputError(f"this index holds {kind} ids, got {id!r}: an index holds one kind.")


def hits(found: Found, k: int | None = None) -> Hits:
    """The answer to a query: by distance, then by id, which is the order of the keys; cut to `k`."""
    best = sorted(found)[:k]
    distances = np.array([distance for distance, _ in best], dtype=np.int64)
    return Hits(tuple(id_of(key) for _, key in best), distances)


def parts(things: Any, size: int) -> Iterator[Any]:
    """Cut a sequence, or the rows of an array, into pieces of at most `size`."""
    return (things[start : start + size] for start in range(0, len(things), size))
