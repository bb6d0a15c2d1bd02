"""The class `Index`: add and search items by their embeddings, codes, ids and labels."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, pack
from centerhash.core.checks import check_features, whole_number
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import atomic_folder, explain_write_errors, refuse_links
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data.images import MAX_PIXELS
from centerhash.index import query as queries
from centerhash.index import writing
from centerhash.index.items import (
    AddResult,
    Counts,
    Facts,
    Filter,
    Item,
    Keys,
    LabelScores,
    Results,
    Value,
    attribute_column,
    check_attributes,
    check_ids,
    check_labels,
    check_scores,
    check_text,
    is_id,
    no_model,
)
from centerhash.index.like import bits_of, example_weights, some_bits
from centerhash.index.near_pairs import NearPairs, code_pairs
from centerhash.index.query import LabelQuery, Query, as_result
from centerhash.index.ranking import both
from centerhash.index.store import LABELS, Snapshot, Store

if TYPE_CHECKING:  # what runs models takes long to import
    from centerhash.model.base import Model
    from centerhash.model.portable import PortableModel
    from centerhash.networks.encoder import Encoder

Items: TypeAlias = list[Item]  # the class has a method `list`
Names: TypeAlias = list[str]

ITEMS, MODEL = "items.db", "model"
_FILES = (ITEMS, f"{ITEMS}-wal", f"{ITEMS}-shm", f"{ITEMS}-journal", MODEL)
_PAGE = 1 << 16  # items that are encoded and written at a time, at least
_MAX_NAME = 64  # characters of the name of an attribute


class FilterArguments(TypedDict, total=False):
    """The filters of `Index.search`, `list` and `count`."""

    having: str | Sequence[str]
    without: str | Sequence[str]
    where: Mapping[str, Any] | None
    among: Sequence[str] | NDArray[Any] | None


class Index:
    """An index in a folder: codes of items, their labels and attributes, and the model that made them.

        index = Index.create("shop.index", model, attributes={"price": float})
        index.add(embeddings, ids=ids, labels=labels, attributes={"price": prices})
        index.search(embedding, k=10, having="shoe", where={"price": (0, 50)})

    The folder holds items.db (SQLite) and model/model.onnx. Threads may share an index, and processes may share a
    folder: any number reads while one writes. A search reads one commit and waits for nobody.

    `bits` is K, the length of the semantic codes, and `general_bits` that of the general ones, None without. `classes`
    are those of the model, which a query by labels may name; `attributes` of items are float or str by name.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.read_only, self._store, self.facts = folder, store.read_only, store, store.facts
        self.bits, self.general_bits = self.facts.bits, self.facts.general_bits
        self.classes, self.attributes = self.facts.classes, self.facts.attributes
        self._encoding: dict[str, Any] = {}  # how images are read: device, engine, max_pixels
        self._loading = Lock()  # of the model
        self._model: PortableModel | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: Model | str | Path | None = None,
        *,
        bits: int | None = None,
        general_bits: int | None = None,
        attributes: Mapping[str, type] | None = None,
    ) -> Self:
        """Create an empty index for the codes of a model, by default the built-in one, and open it.

        `model` is a model, or the folder of a run; the index stores it as model.onnx. With `bits` instead, the index has
        no model and holds codes of that length, and with `general_bits` general codes too. `attributes` of items are
        numbers (float) or texts (str), by name.
        """
        if bits is None and general_bits is not None:
            raise InputError("`general_bits` is of an index without a model: give `bits` as well.")
        if model is not None and bits is not None:
            raise InputError("an index has either a model or codes of `bits`: give one of both.")
        kinds, target = _checked_types(attributes or {}), Path(folder)
        _check_new(target)
        with atomic_folder(target) as draft:
            if bits is None:
                facts = _save_model(model, draft / MODEL, kinds)
            else:
                general = None if general_bits is None else whole_number(general_bits, "bits", 1)
                facts = Facts(whole_number(bits, "bits", 1), general, kinds)
            Store.create(draft / ITEMS, facts).close()
        return cls.open(target)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        read_only: bool = False,
        device: str = "auto",
        engine: str = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> Self:
        """Open an index. Its model is loaded when an embedding or an image first needs it.

        Images are read on `device`, and rejected above `max_pixels`. `engine` runs the network:
        "onnx", "openvino", or "auto" for the fastest one installed.
        """
        place = Path(folder)
        if not (place / ITEMS).is_file():
            raise _no_index(place)
        refuse_links(place, _FILES)
        index = cls(place, Store(place / ITEMS, read_only=read_only))
        index._encoding = {"device": device, "engine": engine, "max_pixels": max_pixels}
        return index

    # --- facts

    @property
    def version(self) -> int:
        """The number of commits, also of other processes."""
        return self._store.meta().version

    @property
    def model(self) -> PortableModel:
        """The model that makes the codes; it is loaded on first use."""
        if self.facts.method is None:
            raise no_model("add and search codes, or create an index with a model")
        from centerhash.model.portable import PortableModel

        with self._loading:
            self._model = self._model or PortableModel.load(self.folder / MODEL)
            return self._model

    def encoder(self) -> Encoder:
        """Return what reads images; it is loaded on first use."""
        model = self.model
        if self.facts.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images. "
                "Search by an embedding, an id or labels, or train on images."
            )
        return model.encoder(**self._encoding)

    # --- changes

    def add(
        self,
        embeddings: NDArray[Any] | None = None,
        *,
        codes: Packed | None = None,
        general: Packed | None = None,
        ids: Sequence[object] | None = None,
        labels: Sequence[Sequence[str]] | None = None,
        scores: Sequence[LabelScores] | None = None,
        attributes: Mapping[str, Sequence[Value] | NDArray[Any]] | None = None,
        replace: bool = False,
        progress: bool | Progress = False,
    ) -> AddResult:
        """Add items by their embeddings (N, D), or by packed codes (N, ceil(K/8)) of the same model.

        Embeddings are encoded by the model, which also predicts the labels unless `labels` are given: a list of names
        for each item. With codes, `general` are packed general codes (N, ceil(V/8)), a row of zeros for an item without
        one; `scores` map labels to their probability and area share in 255ths.

        `ids` are texts or numbers; items of known ids are skipped, or replaced if `replace` is set. Without ids, items
        are numbered from the largest number in use + 1. A crash loses at most the commit in progress, and the same call
        resumes.
        """
        if (embeddings is None) == (codes is None):
            raise InputError("items are added by either embeddings or codes: give one of both.")
        if embeddings is not None and (general is not None or scores is not None):
            raise InputError(
                "the model makes general codes and scores of embeddings: give them only with codes."
            )
        if general is not None:
            if self.general_bits is None:
                raise InputError("this index has no general codes: create one with general_bits=.")
            general = check_packed(general, self.general_bits, "general codes")
        given: Any = (
            check_packed(codes, self.bits)
            if codes is not None
            else check_features(np.asarray(embeddings), self.model.spec.features)
        )
        count, names = len(given), None if ids is None else check_ids(ids)
        if names is not None and len(set(names)) != len(names):
            ((twice, _),) = Counter(names).most_common(1)
            raise InputError(f"the id {twice!r} comes twice: give every item its own id.")
        values = check_attributes(self.attributes, attributes or {}, count)
        columns: dict[str, Any] = {
            "semantic": given,
            "general": general,
            "ids": names,
            "labels": None if labels is None else [check_labels(row) for row in labels],
            "scores": None if scores is None else [check_scores(row) for row in scores],
            **{attribute_column(name): column for name, column in values.items()},
        }
        for name, column in columns.items():
            if column is not None and len(column) != count:
                raise InputError(f"{name} has {len(column):,} rows for {count:,} items.")
        added, page = 0, max(_PAGE, len(self) // 4)
        with resolve_progress(progress) as report:
            for start in range(0, count, page):
                end = min(start + page, count)
                rows = {
                    name: None if column is None else column[start:end] for name, column in columns.items()
                }
                if embeddings is not None:
                    rows |= self._encoded(np.asarray(rows["semantic"], np.float32), rows["labels"])
                added += writing.add(self._store, rows, replace=replace)
                report("items", end, count)
        return AddResult(added, count - added)

    def _encoded(self, features: NDArray[np.float32], labels: Any) -> dict[str, Any]:
        """Return packed codes, general codes, labels and label scores of embeddings (n, D)."""
        model = self.model
        names = model.label_names(features) if labels is None else labels
        return {
            "semantic": pack(model.encode_features(features)),
            "general": None if self.general_bits is None else pack(model.general_codes(features)),
            "labels": names,
            "scores": queries.label_scores(model, features, names),
        }

    def remove(self, ids: str | Sequence[str]) -> int:
        """Remove items and return how many of these ids were stored."""
        return writing.remove(self._store, _listed(ids))

    def hide(self, ids: str | Sequence[str]) -> int:
        """Hide items from searches, lists and counts until they are shown; return how many were not hidden."""
        return writing.set_hidden(self._store, _listed(ids), True)

    def show(self, ids: str | Sequence[str]) -> int:
        """Show items that were hidden; return how many were."""
        return writing.set_hidden(self._store, _listed(ids), False)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Make all changes of this thread within the block one durable commit, and yield the connection.

        Whoever keeps facts beside the items in tables of their own writes them through it. A block within another one
        is part of its commit. Inside, `get`, `keys`, `ids`, `in` and `items` see what was written; searches are refused.
        """
        return self._store.transaction()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one commit within the block, whatever others write; yield the connection of this thread."""
        with self._store.reading() as snapshot:
            yield snapshot.sql

    def compact(self) -> None:
        """Reclaim the space of removed items. Keys stay as they are."""
        writing.compact(self._store)

    # --- queries

    def search(
        self,
        query: NDArray[Any] | None = None,
        *,
        code: Any = None,
        id: str | None = None,
        labels: LabelQuery | None = None,
        like: str | Sequence[str] | NDArray[Any] | None = None,
        unlike: str | Sequence[str] | NDArray[Any] = (),
        k: int = 10,
        by: str | None = None,
        within: int | None = None,
        copies: bool = False,
        **filters: Unpack[FilterArguments],
    ) -> Results:
        """Return the `k` items nearest to an embedding (D,), a `code`, an item by its `id`, `labels`, or examples.

        A code is K values of -1 and +1 or of 0 and 1, or packed bytes, also as hex digits; or {"semantic": code,
        "general": (V, W)} with packed general codes of V views of the query. Labels are a mapping of names to weights, a
        list of names, or a text such as "dog:0.7, person:0.3"; they need a model with centers. `like` and `unlike` are
        ids or embeddings of examples.

        `by` is "semantic", "general" or "both", the default if there are general codes: the semantic distance plus a
        tenth of the general one. With `copies`, items whose general code is very near to one of any view come first. For
        labels, "both" ranks by their probabilities and shares.

        Results have a Hamming distance of at most `within`, all labels of `having` and none of `without`. `where` maps
        attributes to (low, high), inclusive, None if open, or to a text or a list of texts. `among` are ids or an array
        of keys. Items that do not fit the labels of a query are no results, so there may be fewer than `k`. An item is
        not among its own results.
        """
        whole_number(k, "k", 1)
        given = {"an embedding": query, "code": code, "id": id, "labels": labels, "like": like}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            got = " and ".join(names) or "none"
            raise InputError(f"search by exactly one of an embedding, code, id, labels or like, got {got}.")
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            if query is not None:
                made = queries.query_by_features(self.model, self._features(query, one=True))
            elif code is not None:
                made = queries.query_by_code(self.facts, code)
            elif id is not None:
                made = queries.query_by_item(self.facts, self._items(snapshot, _listed(id))[0])
            elif labels is not None:
                made = queries.query_by_labels(self.facts, labels)
            else:
                made = self._query_by_examples(snapshot, like, unlike)
            ranking = made.ranking(self.facts, by, within, copies)
            mask = snapshot.allowed(self._filter(snapshot, filters))
            rows = ranking.first(snapshot.view, k + len(made.items), mask)
            items = [item for item in snapshot.items(rows) if item.id not in made.items][:k]
            packed, shown = pack(made.code[None])[0], None if made.weights is None else list(made.weights)
            results = [as_result(item, packed, made.general, shown) for item in items]
            size = snapshot.meta.items - snapshot.meta.hidden
            return Results(results, made.explained, made.code, size)

    def _query_by_examples(self, snapshot: Snapshot, like: Any, unlike: Any) -> Query:
        """Return a query by items like it and unlike it: ids, or embeddings."""
        sides: Any = []
        ids: Any = []
        for examples in (like, unlike):
            if isinstance(examples, np.ndarray):
                features, model = self._features(examples), self.model
                general = [] if self.general_bits is None else [model.general_codes(features)]
                sides.append(np.hstack([model.encode_features(features), *general]))
            else:
                keys = snapshot.known_keys(_listed(examples))
                rows = snapshot.rows_of_items(list(keys.values()))
                sides.append(bits_of(snapshot.view, rows, self.bits, self.general_bits))
                ids += keys
        if not len(sides[0]):
            raise InputError("a search by examples needs at least one item in `like`.")
        others = some_bits(snapshot.view, self.bits, self.general_bits)
        weights = example_weights(sides[0], sides[1], others)
        code = np.where(weights[: self.bits] >= 0, np.int8(1), np.int8(-1))
        return Query(code, bit_weights=weights, items=tuple(ids))

    def _features(self, embeddings: Any, *, one: bool = False) -> NDArray[np.float32]:
        features = np.atleast_2d(np.asarray(embeddings))
        if one and len(features) != 1:
            raise InputError(
                f"a search takes one embedding (D,), got {len(features):,}: search by each of them."
            )
        return np.asarray(check_features(features, self.model.spec.features), np.float32)

    def _filter(self, snapshot: Snapshot, filters: FilterArguments) -> Filter:
        among = filters.get("among")
        if among is not None and not (isinstance(among, np.ndarray) and among.dtype.kind in "iu"):
            among = np.array(list(snapshot.known_keys(_listed(among)).values()), np.int64)
        values: Any = {**filters, "among": among}
        return queries.filter_of(self.attributes, **values)

    def list(
        self,
        offset: int = 0,
        limit: int = 100,
        *,
        order: str | None = None,
        **filters: Unpack[FilterArguments],
    ) -> tuple[Items, int]:
        """Return a page of the items, and the number of all items that pass the filter of `search`.

        `order` is an attribute that is a number, the largest first and missing ones last; without it, and among equal
        values, the item that was added last comes first.
        """
        whole_number(offset, "offset", 0)
        whole_number(limit, "limit", 0)
        if order is not None and self.attributes.get(order) is not float:
            numbers = [name for name, kind in self.attributes.items() if kind is float]
            allowed = ", ".join(numbers) or "there is none"
            raise InputError(f"items are ordered by a number ({allowed}), got {order!r}.")
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            mask, view = snapshot.allowed(self._filter(snapshot, filters)), snapshot.view
            total = view.meta.rows if mask is None else int(np.count_nonzero(mask))
            if order is not None:
                rows = view.top(attribute_column(order), offset + limit, mask)[offset:]
            else:
                last = range(total - 1, -1, -1)[offset : offset + limit]
                rows = np.array(last, np.int64) if mask is None else np.flatnonzero(mask)[list(last)]
            return snapshot.items(rows), total

    def count(self, **filters: Unpack[FilterArguments]) -> Counts:
        """Count the items that pass the filter of `search`, in all and by the labels that they carry."""
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            mask = snapshot.allowed(self._filter(snapshot, filters))
            keys = snapshot.view["key"].astype(np.int64)
            keys = keys if mask is None else keys[mask]
            return Counts(len(keys), snapshot.label_counts(mask), keys)

    def labels(self) -> dict[str, int]:
        """Return every label that an item carries with the number of its items, sorted by name."""
        return self.count().labels

    @overload
    def get(self, ids: str) -> Item: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str]) -> Items: ...
    def get(self, ids: str | Sequence[str]) -> Item | Items:
        """Return the item of an id, or the items of several; InputError if one is not stored."""
        with self._store.reading() as snapshot:
            items = self._items(snapshot, _listed(ids))
        return items[0] if isinstance(ids, str) else items

    def _items(self, snapshot: Snapshot, ids: Sequence[str]) -> Items:
        keys = set(snapshot.known_keys(ids).values())
        items = {item.id: item for item in snapshot.items(snapshot.rows_of_items(list(keys)))}
        return [items[id] for id in ids]

    def keys(self, ids: str | Sequence[str]) -> Keys:
        """Return the keys (n,) of ids, -1 for one that is not stored. A key is never used again for another item."""
        names = _listed(ids)
        with self._store.reading() as snapshot:
            known = snapshot.keys(names)
        return np.array([known.get(id, -1) for id in names], np.int64)

    def ids(self, keys: Sequence[int] | NDArray[Any]) -> Names:
        """Return the ids of keys; InputError if an item of them is not stored."""
        numbers = np.asarray(keys, np.int64).tolist()
        with self._store.reading() as snapshot:
            known = snapshot.ids(numbers)
        missing = next((key for key in numbers if key not in known), None)
        if missing is not None:
            raise InputError(f"no item of the key {missing} in the index, which holds {len(self):,}.")
        return [known[key] for key in numbers]

    def items(self) -> Iterator[Item]:
        """Iterate over all items in the order of adding, also hidden ones, some at a time."""
        key = 0
        while True:
            with self._store.reading() as snapshot:
                items = snapshot.items_from(key)
            if not items:
                return
            yield from items
            key = items[-1].key + 1

    __iter__ = items

    def near_pairs(self, most: int, *, progress: bool | Progress = False) -> NearPairs:
        """Return the keys of all pairs of items whose general codes differ in at most `most` bits, and in how many."""
        if self.general_bits is None:
            raise InputError("this index has no general codes, so it cannot compare items by them.")
        with self._store.reading("key", "flags", "general") as snapshot:
            view = snapshot.view
            mask = both(view.shown, view.has_general)
            rows = slice(None) if mask is None else np.flatnonzero(mask)
            general, keys = view["general"][rows], view["key"][rows].astype(np.int64)
        with resolve_progress(progress) as report:
            pairs = code_pairs(general, whole_number(most, "most", 0), report)
        return pairs._replace(first=keys[pairs.first], second=keys[pairs.second])

    # --- the whole index

    def export(self, path: str | Path, to: str = "npz", *, progress: bool | Progress = True) -> int:
        """Write all items for other programs as "npz" or "parquet", or to "milvus:ADDRESS", and return how many."""
        from centerhash.index.exchange import export_items, export_to_milvus

        with resolve_progress(progress) as report:
            if str(path).startswith("milvus:"):
                return export_to_milvus(self, str(path), report)
            return export_items(self, Path(path), to, report)

    def import_codes(self, path: str | Path) -> AddResult:
        """Add the codes of a code file or of a folder of shards."""
        from centerhash.index.exchange import import_codes

        return import_codes(self, Path(path))

    def verify(self) -> Names:
        """Read everything and return a sentence for each damaged file, about the first damage in it."""
        problems = self._store.verify()
        try:
            if self.facts.method is not None:
                self.model.content()  # raises if the model is damaged
        except InputError as error:
            problems.append(str(error))
        return problems

    def backup(self, folder: str | Path, *, progress: bool | Progress = True) -> int:
        """Copy the index into a new folder, verified, also while another process writes; return its number of items."""
        target = Path(folder)
        _check_new(target)
        with atomic_folder(target) as draft, resolve_progress(progress) as report:
            self._store.back_up(draft / ITEMS, report)
            with explain_write_errors(target):
                if self.facts.method is not None:
                    self.model.content()
                    shutil.copytree(self.folder / MODEL, draft / MODEL)
            with Index.open(draft) as copy:
                problems, count = copy.verify(), len(copy)
            if problems:
                raise DataError(f"nothing was backed up: {problems[0].replace(str(draft), str(self.folder))}")
        return count

    def info(self) -> dict[str, Any]:
        """Return model, size and labels."""
        meta, info = self._store.meta(), self.facts
        return {
            "index": str(self.folder),
            "size": meta.items - meta.hidden,
            "hidden": meta.hidden,
            "bits": self.bits,
            "general_bits": self.general_bits,
            "attributes": {name: kind.__name__ for name, kind in self.attributes.items()},
            "method": info.method,
            "backbone": info.backbone,
            "classes": len(info.classes),
            "labels": self.labels(),
            "bytes": self._store.bytes(),
            "removed": meta.rows - meta.items,
        }

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        self._store.close()

    def __len__(self) -> int:
        meta = self._store.meta()
        return meta.items - meta.hidden

    def __bool__(self) -> bool:
        return True  # also an empty index

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and is_id(id) and int(self.keys(id)[0]) >= 0

    def __repr__(self) -> str:
        size = "closed" if self._store.closed else f"{len(self):,} items"
        return f"Index('{self.folder}', {size}, {self.bits} bits)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def verify_index(folder: str | Path) -> list[str]:
    """Return the damages of an index, also of one that cannot be opened; DataError if the folder is no index."""
    if not is_index(Path(folder)):
        raise _no_index(Path(folder))
    try:
        with Index.open(folder, read_only=True) as index:
            return index.verify()
    except InputError as error:
        return [str(error)]


def is_index(folder: Path) -> bool:
    """Return whether a folder holds an index."""
    return (folder / ITEMS).is_file()


def _check_new(folder: Path) -> None:
    """Raise ConfigError unless an index can be made here."""
    if is_index(folder):
        raise ConfigError(f"'{folder}' is an index already: open it and add to it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists and is not empty: choose a new folder for the index.")


def _no_index(folder: Path) -> DataError:
    advice = "create one with `centerhash index create` or centerhash.Index.create, and add its items"
    return DataError(f"'{folder}' is no index ({ITEMS} is missing): {advice}.")


def _save_model(model: Model | str | Path | None, folder: Path, attributes: Mapping[str, type]) -> Facts:
    """Write the model of a new index, and return the facts of the index."""
    from centerhash.model.base import Model
    from centerhash.model.loading import load
    from centerhash.model.portable import PortableModel

    if not isinstance(model, Model | str | Path | None):
        raise InputError(f"model must be a model or the folder of a run, got {type(model).__name__}.")
    loaded = model if isinstance(model, Model) else load("coco" if model is None else model)
    loaded.save_portable(folder)
    spec = PortableModel.load(folder).spec
    about = spec.method, spec.backbone, spec.classes, spec.label_threshold or 0.0
    centers = spec.center_codes(), spec.center_directions()
    return Facts(spec.bits, spec.general_bits, attributes, *about, *centers)


def _checked_types(attributes: Mapping[str, type]) -> dict[str, type]:
    for name, kind in attributes.items():
        if not 0 < len(check_text(name, "the name of an attribute")) <= _MAX_NAME or not name.isprintable():
            allowed = f"1 to {_MAX_NAME} printable characters"
            raise InputError(f"the name of an attribute has {allowed}, got {name!r:.80}.")
        if kind not in (float, str):
            raise InputError(f"the attribute '{name}' is a number (float) or a text (str), got {kind!r:.80}.")
    return dict(attributes)


def _listed(ids: str | Sequence[str] | NDArray[Any]) -> list[str]:
    return check_ids([ids] if isinstance(ids, str | int) else ids)
