"""The store for more than one machine: Milvus, a server or a cluster.

The collection holds one row per item: a key made of the id, the code as BINARY_VECTOR under a BIN_FLAT index, the
labels as an array that filters are pushed down to, date and camera, hashes of the paths and of all folders above them,
whether a file is there, and the rest of the item as one JSON text. Results by the semantic code are exact, items at equal
distance in the order of their ids. Milvus orders them as it likes and returns at most 16,384 rows, so a group of equal
distances that is cut off is read again completely, in parts by key if it is larger. Other rankings order the few hundred
items whose codes are nearest.

Milvus does not enforce unique keys: `add` looks first, so let one process add at a time.

`consistency` decides which changes a query sees. "Strong" waits for a tick of the server's clock, a fifth of a second.
The defaults take a few milliseconds: a process that writes sees its own changes by "Session", and one that only reads all
but those of the last seconds by "Bounded". What is stored before a change is always read with "Strong".
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import numpy as np

from centerhash.codes import Packed
from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.extras import require
from centerhash.model.base import FILTERED
from centerhash.search.items import (
    LEVELS,
    MAX_ID_BYTES,
    MAX_NAME,
    TIMES,
    VISUAL_BITS,
    Batch,
    Counts,
    File,
    Filter,
    Item,
    ItemStore,
    PhotoInfo,
)
from centerhash.search.rankings import BySemantic, Columns, Ranking, code_distances
from centerhash.search.results import wall_clock

Row: TypeAlias = dict[str, Any]
Found: TypeAlias = list[tuple[int, str]]  # distances and keys
Ring: TypeAlias = tuple[int, int] | None  # the least and the largest distance, or any
Element = TypeVar("Element")

PREFIX = "milvus:"
CONSISTENCIES = ("Strong", "Bounded", "Session", "Eventually")
WRITING, READING, CHANGING = (
    "Session",
    "Bounded",
    "Strong",
)  # the consistency of writers, of readers, of changes
MAX_RESULTS = 16_384  # Milvus' own limit for one search or query
MAX_LABELS = 1_024  # of one item
MAX_LABEL_BYTES = 512  # in UTF-8
MAX_PLACES = 4_096  # paths of an item, and folders above them
MAX_TEXT_BYTES = 65_535  # Milvus' own limit for a text
_SCHEMES = ("http://", "https://", "tcp://", "grpc://")
_TIMEOUT = 60.0  # seconds for a request
_MARK = "centerhash"  # the description of our collections
_ESCAPED = 3  # bytes of a percent-encoded byte
_NO_CAMERA = "%"  # no percent-encoded text is this
_NEVER = TIMES[0] - 1.0  # of items without a date
_SHOWN = "shown == true"
_PLACE = 17  # characters of a hashed path: its kind and 64 bits
_PROBABLE = ")"  # begins a label that is not carried, but probable; no percent-encoded text does
_KEYS = 4_096  # in one expression, and rows of a page
_INSERT_BYTES = 4 << 20  # of one request; far below the 64 MiB that a server accepts
_RANKED = 500  # items, nearest by their codes, that other rankings order
_FIELDS = ("code", "labels", "taken", "camera", "places", "shown", "rest")


def complete_address(store: str, name: str) -> str:
    """Check the text of a store, such as "milvus:http://host:19530#photos", and add a collection name if it has none."""
    address, settings = _read_address(store)
    _check_address(address)
    if "collection" in settings:
        return store
    return f"{store}#centerhash_{name}"


def _read_address(store: str) -> tuple[str, dict[str, str]]:
    """Return the address of the server, and the settings `collection` and `consistency`."""
    rest, _, collection = store.removeprefix(PREFIX).partition("#")
    address, _, query = rest.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for name in settings:
        if name != "consistency":
            raise unknown_name("setting of a Milvus store", name, ("consistency",))
    if settings.get("consistency", CHANGING) not in CONSISTENCIES:
        raise unknown_name("consistency", settings["consistency"], CONSISTENCIES)
    if collection:
        settings["collection"] = collection
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
            raise ConfigError(
                f"a Milvus collection is named with letters, digits and '_', and no digit first, got '{collection}'."
            )
    return address, settings


def _check_address(address: str) -> None:
    if not address.startswith(_SCHEMES):
        raise ConfigError(
            f"a Milvus store needs the address of a server, such as milvus:http://127.0.0.1:19530, got '{address}'."
        )


class Connection:
    """A client of one Milvus server; every call has a timeout, and errors become DataError."""

    def __init__(self, address: str) -> None:
        _check_address(address)
        self.shown = re.sub(r"//[^/]*@", "//", address)  # without a password
        client = require("pymilvus").MilvusClient
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its errors come back as ours
        with self._explained():
            self._client: Any = client(address, timeout=_TIMEOUT, dedicated=True)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client."""
        if self._client is None:
            raise InputError(f"the index at '{self.shown}' is closed: open it again.")
        action: Callable[..., Any] = getattr(self._client, method)
        with self._explained():
            return action(*arguments, timeout=_TIMEOUT, **options)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        client, self._client = getattr(self, "_client", None), None
        if client is not None:
            client.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rejected, silent = require("pymilvus.exceptions").MilvusException, require("grpc").RpcError
        try:
            yield
        except (rejected, silent) as error:
            reason = (str(getattr(error, "message", error)).strip().splitlines() or ["no reason given"])[0]
            raise DataError(
                f"Milvus at '{self.shown}' failed: {reason[:300].rstrip('. ')}. Check the address and that the server "
                "is running."
            ) from error


class MilvusStore(ItemStore):
    """An exact store in a Milvus collection; use `create` or `open`."""

    def __init__(
        self, connection: Connection, collection: str, bits: int, read_only: bool, consistency: str
    ) -> None:
        super().__init__(bits)
        self.collection, self.consistency, self.read_only = collection, consistency, read_only
        self._connection = connection
        self._changes = 0  # by this process

    @classmethod
    def create(cls, store: str, bits: int) -> Self:
        """Create an empty collection for codes of `bits` (K) bits, a multiple of 8, and open it for writing."""
        if bits < 8 or bits % 8:
            raise ConfigError(
                f"Milvus stores codes whose bits are a multiple of 8, got {bits}: use such a length, or the local store."
            )
        address, settings = _read_address(store)
        collection, connection = settings["collection"], Connection(address)
        try:
            if connection.call("has_collection", collection):
                raise DataError(
                    f"'{connection.shown}' has a collection '{collection}' already: open it, or choose another name."
                )
            schema, index = _schema(bits)
            options = {"schema": schema, "index_params": index, "consistency_level": CHANGING}
            connection.call("create_collection", collection, **options)
        finally:
            connection.close()
        return cls.open(store)

    @classmethod
    def open(cls, store: str, *, read_only: bool = False) -> Self:
        """Open a collection that `create` made."""
        address, settings = _read_address(store)
        collection, connection = settings["collection"], Connection(address)
        try:
            if not connection.call("has_collection", collection):
                raise DataError(f"no collection '{collection}' at '{connection.shown}': create it first.")
            bits = _bits_of(connection.call("describe_collection", collection), collection)
            connection.call("load_collection", collection)
        except BaseException:
            connection.close()
            raise
        default = READING if read_only else WRITING
        return cls(connection, collection, bits, read_only, settings.get("consistency", default))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __len__(self) -> int:
        return int(self._query(_SHOWN, ["count(*)"])[0]["count(*)"])

    @property
    def hidden(self) -> int:
        """Return the number of items whose files are all gone."""
        return int(self._query("shown == false", ["count(*)"])[0]["count(*)"])

    @property
    def version(self) -> Hashable:
        """Return the changes of this process and the number of items."""
        return self._changes, len(self), self.hidden

    def present(self, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that are stored, in the same order, whoever added them."""
        stored = {key for part in _parts(ids, _KEYS) for key in self._rows(map(key_of, part), level=CHANGING)}
        return [id for id in ids if key_of(id) in stored]

    def items(self, *, hidden: bool = False) -> Iterator[Item]:
        """Iterate over all items in the order of their ids, page by page."""
        return (item_of(row) for row in self._scan(_FIELDS, "" if hidden else _SHOWN))

    def labels(self) -> dict[str, int]:
        """Return every label with the number of its items; Milvus cannot count them, so all items' labels are read."""
        counts = Counter(label for row in self._scan(["labels"], _SHOWN) for label in row["labels"])
        return dict(
            sorted(
                (unescaped(label), count)
                for label, count in counts.items()
                if not label.startswith(_PROBABLE)
            )
        )

    def cameras(self) -> dict[str, int]:
        """Return every camera with the number of its items; those of all items are read."""
        counts = Counter(unescaped(row["camera"]) for row in self._scan(["camera"], _SHOWN))
        return dict(sorted((name, count) for name, count in counts.items() if name != _NO_CAMERA))

    def files(self, folder: str) -> dict[str, tuple[str, File]]:
        """Return the files directly in a folder by name, with the id of their item."""
        found = dict[str, tuple[str, File]]()
        for row in self._scan(_FIELDS, f'ARRAY_CONTAINS(places, "{_hashed("in", folder)}")'):
            item = item_of(row)
            for file in item.files:
                place, name = os.path.split(file.path)
                if place == folder:
                    found[name] = item.id, file
        return found

    def newest(self, offset: int, limit: int, only: Filter) -> tuple[list[Item], int]:
        """Return a page of the items with an image, last taken first; all that pass the filter are read."""
        shown = [item for item in self._passing(only) if item.files]
        shown.sort(key=lambda item: (-(_NEVER if item.photo.taken is None else item.photo.taken), item.id))
        return shown[offset : offset + limit], len(shown)

    def months(self, only: Filter) -> dict[str, int]:
        """Return the months in which photos that pass the filter were taken, newest first, with counts; all are read."""
        times = [item.photo.taken for item in self._passing(only) if item.files]
        counts = Counter(f"{wall_clock(taken):%Y-%m}" for taken in times if taken is not None)
        return dict(sorted(counts.items(), reverse=True))

    def counts(self, only: Filter) -> Counts:
        """Count the items that pass the filter by label, camera and folder; all are read."""
        labels, cameras, folders = Counter[str](), Counter[str](), Counter[str]()
        for item in self._passing(only):
            probable = (name for name, (level, _) in item.scores.items() if level >= FILTERED * LEVELS)
            labels.update({*item.labels, *probable})
            cameras.update(() if item.photo.camera is None else (item.photo.camera,))
            folders.update({os.path.dirname(path) for path in item.paths})  # noqa: PTH120 - of many items
        return Counts(*(dict(sorted(one.items())) for one in (labels, cameras, folders)))

    def _passing(self, only: Filter) -> Iterator[Item]:
        return (item_of(row) for row in self._scan(_FIELDS, expression(only)))

    def _add(self, batch: Batch, replace: bool) -> None:
        self._check_writable()
        items = [Item(*row) for row in zip(batch.ids, batch.packed, *_rest(batch), strict=True)]
        rows = [row_of(item) for item in items]
        known = set() if not replace else {key_of(id) for id in self.present(batch.ids)}
        paths = {file.path for item in items for file in item.files}
        self._upsert(rows, known)
        self._take(paths, {item.id for item in items})
        self._changes += 1

    def _upsert(self, rows: Sequence[Row], known: Collection[str] = ()) -> None:
        """Store rows; if that fails, delete those that were not `known` before."""
        done: list[str] = []
        try:
            for some in _requests(rows):
                done += [row["id"] for row in some]
                self._connection.call("upsert", self.collection, some)  # unlike insert, safe to repeat
        except BaseException:
            self._delete([key for key in done if key not in known])
            raise

    def _at(self, paths: Set[str]) -> Iterator[Item]:
        """Return the items that have one of these paths, whoever added them."""
        for part in _parts(sorted(_hashed("at", path) for path in paths), _KEYS // 4):
            listed = ", ".join(f'"{place}"' for place in part)
            condition = f"ARRAY_CONTAINS_ANY(places, [{listed}])"
            for row in self._scan(_FIELDS, condition, CHANGING):
                item = item_of(row)
                if not paths.isdisjoint(file.path for file in item.files):
                    yield item

    def _take(self, paths: Set[str], owners: Set[str]) -> None:
        """Take paths from all items but their owners; an item without a path left is removed."""
        changed, empty = [], []
        for item in self._at(paths):
            if item.id not in owners:
                files = tuple(file for file in item.files if file.path not in paths)
                changed += [row_of(replace(item, files=files))] if files else []
                empty += [] if files else [key_of(item.id)]
        self._upsert(changed, [row["id"] for row in changed])
        self._delete(empty)

    def _change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str]) -> None:
        self._check_writable()
        lost, given = set(gone), dict[str, list[File]]()
        for id, file in found:
            given.setdefault(id, []).append(file)
        owners = {item.id: item for item in self._get(list(given)) if item is not None}
        paths = {file.path for id in owners for file in given[id]}
        items = {item.id: item for item in self._at(lost | paths)} | owners
        changed, empty = [], []
        for id, item in items.items():
            left = [replace(file, gone=file.gone or file.path in lost) for file in item.files]
            left = [file for file in left if file.path not in paths and not (id in owners and file.gone)]
            files = tuple(sorted([*left, *given.get(id, ())]))
            changed += [row_of(replace(item, files=files))] if files or not item.files else []
            empty += [] if files or not item.files else [key_of(id)]
        self._upsert(changed, [row["id"] for row in changed])
        self._delete(empty)
        self._changes += 1

    def _remove(self, ids: Sequence[str]) -> int:
        self._check_writable()
        stored = [key_of(id) for id in self.present(ids)]
        self._delete(stored)
        self._changes += bool(stored)
        return len(stored)

    def _get(self, ids: Sequence[str]) -> list[Item | None]:
        items: list[Item | None] = []
        for part in _parts(ids, _KEYS):
            rows = self._rows(map(key_of, part), _FIELDS)
            items += [item_of(rows[key_of(id)]) if key_of(id) in rows else None for id in part]
        return items

    def _search(self, ranking: Ranking, k: int, only: Filter) -> list[tuple[Item, int]]:
        exact = isinstance(ranking, BySemantic)
        keys = self._nearest(ranking.code, k if exact else max(_RANKED, 2 * k), expression(only))
        found = self._get([id_of(key) for key in sorted(keys)])  # every ranking keeps their order in ties
        items = [item for item in found if item is not None]
        if not items:
            return []
        columns = _columns(items)
        rows = ranking.first(columns, k, None)
        distances = code_distances(columns.semantic[rows], ranking.code).tolist()
        return [(items[row], distance) for row, distance in zip(rows.tolist(), distances, strict=True)]

    def _nearest(self, code: Packed, k: int, condition: str) -> list[str]:
        """Return the keys of the k nearest codes, in the order of distances, then of ids."""
        limit = min(max(2 * k, 64), MAX_RESULTS)  # more than k: most ties at the cut end there
        while True:
            found = self._ask(code, limit, condition, None)
            ties_end = len(found) > k and found[k - 1][0] < found[-1][0]
            if len(found) < limit or ties_end:
                break
            if limit == MAX_RESULTS:
                found = self._beyond(code, k, found, condition)
                break
            limit = min(4 * limit, MAX_RESULTS)
        return [key for _, key in sorted(found)[:k]]

    def _beyond(self, code: Packed, k: int, nearest: Found, condition: str) -> Found:
        """Return the k nearest and all ties of the last, if even the largest answer, `nearest`, cuts through ties."""
        cut = nearest[-1][0]
        found = [pair for pair in nearest if pair[0] < cut]
        for distance in range(cut, self.bits + 1):
            found += self._shell(code, distance, condition)
            if len(found) >= k:
                break
        return found

    def _shell(self, code: Packed, distance: int, condition: str) -> Found:
        """Return all items at exactly this distance of the code (K/8,): split by key until each result is complete."""
        found: Found = []
        ranges = [("", "")]  # from a key, to before another
        while ranges:
            low, high = ranges.pop()
            bounds = (condition, f'id >= "{low}"' if low else "", f'id < "{high}"' if high else "")
            some = self._ask(code, MAX_RESULTS, " and ".join(filter(None, bounds)), (distance, distance))
            if len(some) < MAX_RESULTS:
                found += some
            else:
                middle = sorted(key for _, key in some)[len(some) // 2]
                ranges += [(low, middle), (middle, high)]
        return found

    def _ask(self, code: Packed, limit: int, condition: str, ring: Ring) -> Found:
        """Return Milvus' own results for a code (K/8,), nearest first."""
        parameters = {}
        if ring is not None:
            parameters["radius"] = ring[1] + 1  # Milvus keeps distances below it
            if ring[0]:
                parameters["range_filter"] = ring[0]
        (found,) = self._connection.call(
            "search",
            self.collection,
            data=[code.tobytes()],
            limit=limit,
            filter=condition,
            search_params={"metric_type": "HAMMING", "params": parameters},
            consistency_level=self.consistency,
        )
        return [(round(hit["distance"]), hit["id"]) for hit in found]

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

    def _rows(self, keys: Any, fields: Sequence[str] = (), level: str | None = None) -> dict[str, Row]:
        """Return the rows of those of the keys that are stored."""
        return {row["id"]: row for row in self._query(_any_of(keys), ["id", *fields], level)}

    def _scan(self, fields: Sequence[str], condition: str = "", level: str | None = None) -> Iterator[Row]:
        """Iterate over all rows that pass the condition, in the order of their keys."""
        last, both = "", f"{condition} and " if condition else ""
        in_order = {"iterator": "True", "reduce_stop_for_best": "True"}  # as pymilvus' own iterator asks
        while rows := self._query(f'{both}id > "{last}"', ["id", *fields], level, limit=_KEYS, **in_order):
            rows.sort(key=lambda row: str(row["id"]))
            yield from rows
            last = rows[-1]["id"]

    def _delete(self, keys: Sequence[str]) -> None:
        for part in _parts(keys, _KEYS):
            self._connection.call("delete", self.collection, filter=_any_of(part))

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError(
                f"the index at '{self._connection.shown}' was opened read-only: open it for writing."
            )


def _columns(items: Sequence[Item]) -> Columns:
    """Return the columns of a few items."""
    shown = np.array([item.visual is not None for item in items], np.uint8)
    blank = np.zeros(VISUAL_BITS // 8, np.uint8)
    visual = np.stack([blank if item.visual is None else item.visual for item in items])
    scored = np.array([bool(item.scores) for item in items], np.uint8)

    def scores(label: str, least: float) -> tuple[Any, Any, Any]:
        rows = [row for row, item in enumerate(items) if item.scores.get(label, (-1, 0))[0] >= least]
        pairs = np.array([items[row].scores[label] for row in rows], np.uint8).reshape(-1, 2)
        return np.array(rows, np.int64), pairs[:, 0], pairs[:, 1]

    semantic = np.stack([item.code for item in items])
    return Columns(semantic, visual if shown.any() else visual[:0], shown, scored, scores)


# --- rows and expressions: keys are hexadecimal and labels percent-encoded, so no text of others is in an expression


def key_of(id: str) -> str:
    """Return the primary key of an id: hexadecimal, in the order of the ids."""
    return id.encode("utf-8", "surrogatepass").hex()


def id_of(key: str) -> str:
    """Return the id of a primary key."""
    return bytes.fromhex(key).decode("utf-8", "surrogatepass")


def escaped(text: str) -> str:
    """Percent-encode a text, so that it has no quote, backslash or control character."""
    return quote(text.encode("utf-8", "surrogatepass"), safe=" /")


def unescaped(text: str) -> str:
    """Decode a percent-encoded text."""
    return unquote(text, errors="surrogatepass")


def _fitting(text: str, what: str, most: int) -> str:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise InputError(f"Milvus stores a {what} of up to {most:,} bytes, got {size:,}: '{text[:40]}...'.")
    return escaped(text)


def expression(only: Filter) -> str:
    """Return the expression for items that pass a filter."""
    terms = [_SHOWN, *map(_shows, only.having)]
    terms += [f"not {_shows(label)}" for label in only.without]
    if only.under is not None:
        inside = " or ".join(f'ARRAY_CONTAINS(places, "{_hashed("below", folder)}")' for folder in only.under)
        terms.append(f"({inside})" if inside else 'id == ""')
    terms += [f"taken >= {only.after!r}"] if only.after is not None else []
    terms += [f"taken < {only.before!r} and taken > {_NEVER!r}"] if only.before is not None else []
    if only.cameras is not None:
        listed = ", ".join(f'"{escaped(name)}"' for name in only.cameras)
        terms.append(f"camera in [{listed}]" if listed else 'id == ""')
    return " and ".join(terms)


def _shows(label: str) -> str:
    """Return the expression for items that carry a label, or of which it is probable enough."""
    name = escaped(label)
    return f'(ARRAY_CONTAINS(labels, "{name}") or ARRAY_CONTAINS(labels, "{_PROBABLE}{name}"))'


def _hashed(kind: str, text: str) -> str:
    """Return a hash of a path ("at"), of the folder that it is "in", or of one that it is "below", with separator."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{kind[0]}{digest}"


def _places(files: Sequence[File]) -> list[str]:
    """Return the hashes of paths, of their folders, and of all folders above files that are not gone."""
    found = dict[str, None]()
    for file in files:
        found |= dict.fromkeys((_hashed("at", file.path), _hashed("in", os.path.dirname(file.path))))  # noqa: PTH120
        ends = () if file.gone else [at + 1 for at, sign in enumerate(file.path) if sign in (os.sep, "/")]
        found |= dict.fromkeys(_hashed("below", file.path[:end]) for end in ends)
    if len(found) > MAX_PLACES:
        raise InputError(f"Milvus stores up to {MAX_PLACES:,} folders of an item, got {len(found):,}.")
    return list(found)


def _any_of(keys: Any) -> str:
    return "id in [" + ", ".join(f'"{key}"' for key in keys) + "]"


def _parts(sequence: Sequence[Element], size: int) -> Iterator[Sequence[Element]]:
    return (sequence[start : start + size] for start in range(0, len(sequence), size))


def _requests(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Split rows into requests of a bounded number and size."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        more = sum(map(len, (row["id"], row["code"], row["rest"], *row["places"], *row["labels"])))
        if batch and (len(batch) == _KEYS or size + more > _INSERT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += more
    if batch:
        yield batch


def _rest(batch: Batch) -> tuple[Sequence[Any], ...]:
    """Return the columns of a batch after ids and codes, in the order of the fields of an item."""
    return batch.labels, batch.files, batch.visual, batch.scores, batch.photos


def row_of(item: Item) -> Row:
    """Return the row of one item, or raise InputError for labels and paths that do not fit."""
    visual = None if item.visual is None else item.visual.tobytes().hex()
    files, photo = [list(vars(file).values()) for file in item.files], item.photo
    rest = json.dumps([visual, dict(item.scores), files, photo.width, photo.height, photo.name])
    if len(rest) > MAX_TEXT_BYTES:
        raise InputError(
            f"Milvus stores up to {MAX_TEXT_BYTES:,} bytes of scores and paths per item, got {len(rest):,}."
        )
    if len(item.labels) > MAX_LABELS:
        raise InputError(f"Milvus stores up to {MAX_LABELS:,} labels per item, got {len(item.labels):,}.")
    return {
        "id": key_of(item.id),
        "code": item.code.tobytes(),
        "labels": [
            *(_fitting(label, "label", MAX_LABEL_BYTES) for label in item.labels),
            *(
                _PROBABLE + _fitting(label, "label", MAX_LABEL_BYTES)
                for label, (level, _) in item.scores.items()
                if level >= FILTERED * LEVELS and label not in item.labels
            ),
        ],
        "taken": _NEVER if photo.taken is None else float(photo.taken),
        "camera": _NO_CAMERA if photo.camera is None else escaped(photo.camera),
        "places": _places(item.files),
        "shown": not item.hidden,
        "rest": rest,
    }


def item_of(row: Row) -> Item:
    """Return the item of one row."""
    # not by `parse_json`: names of files may be no Unicode, and the server is trusted
    visual, scores, files, width, height, name = json.loads(row["rest"])
    taken = None if row["taken"] == _NEVER else float(row["taken"])
    camera = None if row["camera"] == _NO_CAMERA else unescaped(row["camera"])
    return Item(
        id_of(row["id"]),
        np.frombuffer(row["code"][0], dtype=np.uint8),
        tuple(unescaped(label) for label in row["labels"] if not label.startswith(_PROBABLE)),
        tuple(File(*values) for values in files),
        None if visual is None else np.frombuffer(bytearray.fromhex(visual), dtype=np.uint8),
        {label: (probability, share) for label, (probability, share) in scores.items()},
        PhotoInfo(taken, camera, width, height, name),
    )


def _schema(bits: int) -> tuple[Any, Any]:
    """Return the fields of a collection for codes of `bits` (K) bits, and its index."""
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=_MARK)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=2 * MAX_ID_BYTES)
    schema.add_field("code", DataType.BINARY_VECTOR, dim=bits)
    schema.add_field(
        "labels",
        DataType.ARRAY,
        element_type=DataType.VARCHAR,
        max_capacity=MAX_LABELS,
        max_length=_ESCAPED * MAX_LABEL_BYTES,
    )
    schema.add_field("taken", DataType.DOUBLE)
    schema.add_field("camera", DataType.VARCHAR, max_length=4 * _ESCAPED * MAX_NAME)  # 4 bytes of UTF-8
    schema.add_field(
        "places",
        DataType.ARRAY,
        element_type=DataType.VARCHAR,
        max_capacity=MAX_PLACES,
        max_length=_PLACE,
    )
    schema.add_field("shown", DataType.BOOL)
    schema.add_field("rest", DataType.VARCHAR, max_length=MAX_TEXT_BYTES)
    index = MilvusClient.prepare_index_params()
    index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
    return schema, index


def _bits_of(description: Row, collection: str) -> int:
    """Return the number of bits K of a collection, or raise DataError if it is not ours."""
    fields = {field["name"]: field for field in description["fields"]}
    if description.get("description") != _MARK or fields.keys() != {"id", *_FIELDS}:
        raise DataError(f"the collection '{collection}' is not an index of this version of centerhash.")
    return int(fields["code"]["params"]["dim"])
