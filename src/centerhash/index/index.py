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
from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.core.files import atomic_folder, explain_write_errors, refuse_links
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data.images import MAX_PIXELS
from centerhash.index import query as queries
from centerhash.index import writing
from centerhash.index.items import (
    AddResult,
    AttributeValue,
    Counts,
    Facts,
    Item,
    Keys,
    LabelScores,
    Results,
    attribute_column,
    check_attributes,
    check_ids,
    check_labels,
    check_scores,
    check_text,
    is_id,
)
from centerhash.index.like import background_bits, bits_of, example_weights
from centerhash.index.near_pairs import NearPairs, code_pairs
from centerhash.index.query import LabelQuery, Query, as_result
from centerhash.index.ranking import combined_mask
from centerhash.index.store import LABELS, Bools, Snapshot, Store

# Modules that run models take long to import.
if TYPE_CHECKING:
    from centerhash.model.base import Model
    from centerhash.model.portable import PortableModel
    from centerhash.networks.encoder import Encoder

# The method `list` of the class hides the type.
Items: TypeAlias = list[Item]
Texts: TypeAlias = list[str]

ITEMS, MODEL = "items.db", "model"
_FILES = (ITEMS, f"{ITEMS}-wal", f"{ITEMS}-shm", f"{ITEMS}-journal", MODEL)
_MIN_ITEMS_PER_COMMIT = 1 << 16
_MAX_ATTRIBUTE_NAME_LENGTH = 64


class IndexFilter(TypedDict, total=False):
    """The filters of `Index.search`, `list` and `count`: all labels of `having` and none of `without`.

    `where` maps attributes to (low, high), inclusive, None if open, or to texts. `among` are ids or an array of keys.
    """

    having: str | Sequence[str]
    without: str | Sequence[str]
    where: Mapping[str, Any] | None
    among: Sequence[str] | NDArray[Any] | None


class Index(AbstractContextManager["Index"]):
    """An index in a folder: codes of items, their labels and attributes, and the model of the codes.

        index = Index.create("shop.index", model, attributes={"price": float})
        index.add(embeddings, ids=ids, labels=labels, attributes={"price": prices})
        index.search(embedding, k=10, having="shoe", where={"price": (0, 50)})

    The folder holds items.db (SQLite) and model/model.onnx. Threads may share an index, and processes may share a
    folder: any number of them reads while one writes. A search reads one commit and waits for no lock.

    `bits` is K, the length of the semantic codes, and `general_bits` V, that of the general codes; None without them.
    `classes` are the labels that the model predicts; `attributes` of items are float or str by name.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.read_only, self._store, self.facts = folder, store.read_only, store, store.facts
        self.bits, self.general_bits = self.facts.bits, self.facts.general_bits
        self.classes, self.attributes = self.facts.classes, self.facts.attributes
        self._encoder_options: dict[str, Any] = {}
        self._model_lock = Lock()
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
        if general_bits is not None and bits is None:
            raise InputError("`general_bits` is of an index without a model: give `bits` as well.")
        if bits is not None and model is not None:
            raise InputError("an index has either a model or codes of `bits`: give one of both.")
        types, path = _checked_types(attributes or {}), Path(folder)
        _check_new(path)
        with atomic_folder(path) as draft:
            if bits is None:
                facts = _save_model(model, draft / MODEL, types)
            else:
                general = None if general_bits is None else whole_number(general_bits, "general_bits", 1)
                facts = Facts(whole_number(bits, "bits", 1), general, types)
            Store.create(draft / ITEMS, facts).close()
        return cls.open(path)

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
        path = Path(folder)
        _check_index(path)
        refuse_links(path, _FILES)
        index = cls(path, Store(path / ITEMS, read_only=read_only))
        index._encoder_options = {"device": device, "engine": engine, "max_pixels": max_pixels}
        return index

    # --- facts

    @property
    def version(self) -> int:
        """The number of commits, including those of other processes."""
        return self._store.meta().version

    @property
    def model(self) -> PortableModel:
        """The model that computes the codes; it is loaded on first use."""
        if self.facts.method is None:
            advice = "add and search codes, or create an index with a model"
            raise ConfigError(f"this index has no model, only codes: {advice}.")
        from centerhash.model.portable import PortableModel

        with self._model_lock:
            self._model = self._model or PortableModel.load(self.folder / MODEL)
            return self._model

    def encoder(self) -> Encoder:
        """Return the encoder that reads images; it is loaded on first use."""
        model = self.model
        if self.facts.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images. "
                "Search by an embedding, an id or labels, or train on images."
            )
        return model.encoder(**self._encoder_options)

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
        attributes: Mapping[str, Sequence[AttributeValue] | NDArray[Any]] | None = None,
        replace: bool = False,
        progress: bool | Progress = False,
    ) -> AddResult:
        """Add items by embeddings or codes; a crash loses at most the commit in progress, and the same call resumes.

        Args:
            embeddings: (N, D), which the model encodes.
            codes: packed codes (N, ceil(K/8)) of the same model, in place of embeddings.
            general: packed general codes (N, ceil(V/8)), with codes only; a row of zeros for an item without one.
            ids: texts or numbers; by default numbers, from the largest one in use + 1.
            labels: the labels of each item; by default, the model predicts those of embeddings.
            scores: for each item, the probability and area share of labels, in 255ths, with codes only.
            attributes: the values of all items by attribute; None is a missing value.
            replace: whether items of stored ids are replaced; otherwise they are skipped.
            progress: True shows a bar; or a callback (stage, done, total, note).

        """
        if (embeddings is None) == (codes is None):
            raise InputError("items are added by either embeddings or codes: give one of both.")
        if embeddings is not None and not (general is None and scores is None):
            raise InputError("`general` and `scores` need codes: the model computes those of embeddings.")
        columns: dict[str, Any] = {}
        if embeddings is not None:
            columns["embeddings"] = check_features(np.asarray(embeddings), self.model.spec.features)
        if codes is not None:
            columns["semantic"] = check_packed(codes, self.bits)
        if general is not None:
            if self.general_bits is None:
                raise InputError("this index has no general codes: create one with general_bits=.")
            columns["general"] = check_packed(general, self.general_bits, "general codes")
        if ids is not None:
            columns["ids"] = check_ids(ids)
            if len({*columns["ids"]}) < len(columns["ids"]):
                ((id, _),) = Counter(columns["ids"]).most_common(1)
                raise InputError(f"the id {id!r} comes twice: give every item its own id.")
        if labels is not None:
            columns["labels"] = [check_labels(names) for names in labels]
        if scores is not None:
            columns["scores"] = [check_scores(row) for row in scores]
        count = len(next(iter(columns.values())))
        columns |= check_attributes(self.attributes, attributes or {}, count)
        for name, column in columns.items():
            if len(column) != count:
                raise InputError(f"{name} has {len(column):,} rows for {count:,} items.")
        added, size = 0, max(_MIN_ITEMS_PER_COMMIT, len(self) // 4)
        with resolve_progress(progress) as report:
            for start in range(0, count, size):
                rows = {name: column[start : start + size] for name, column in columns.items()}
                if embeddings is not None:
                    rows |= self._encode(np.asarray(rows.pop("embeddings"), np.float32), rows.get("labels"))
                added += writing.add(self._store, rows, replace=replace)
                report("items", min(start + size, count), count)
        return AddResult(added, count - added)

    def _encode(self, features: NDArray[np.float32], labels: Any) -> dict[str, Any]:
        """Return packed codes, general codes, labels and label scores of embeddings (n, D), as columns to add."""
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
        return writing.remove(self._store, _id_list(ids))

    def hide(self, ids: str | Sequence[str]) -> int:
        """Hide items from searches, lists and counts; return how many were not hidden before."""
        return writing.set_hidden(self._store, _id_list(ids), True)

    def show(self, ids: str | Sequence[str]) -> int:
        """Show hidden items again; return how many were hidden."""
        return writing.set_hidden(self._store, _id_list(ids), False)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Make all changes of this thread within the block one durable commit, and yield the connection.

        Custom tables in the same file are written through this connection. A block within another one is part of its
        commit. Inside, `get`, `keys`, `ids`, `in` and `items` return what the block has written; searches are refused.
        """
        return self._store.transaction()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one commit within the block, also while others write; yield the connection of this thread."""
        with self._store.reading() as snapshot:
            yield snapshot.connection

    def compact(self) -> None:
        """Reclaim the space of removed items; keys do not change."""
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
        **filters: Unpack[IndexFilter],
    ) -> Results:
        """Return the `k` items nearest to the query, fewer if fewer fit; an item is not among its own results.

        Args:
            query: an embedding (D,).
            code: K values of -1 and +1 or of 0 and 1, or packed bytes, also as hex digits; or {"semantic": code,
                "general": (M, W)} with packed general codes of M views of the query.
            id: an item of the index.
            labels: names with weights, names, or a text such as "dog:0.7, person:0.3"; needs a model with centers.
            like: ids or embeddings (n, D) of examples.
            unlike: ids or embeddings (n, D) of counterexamples.
            k: number of results.
            by: "semantic", "general" or "both", the default if there are general codes: the semantic distance plus a
                tenth of the general one. For labels, "both" ranks by their probabilities and shares.
            within: maximum Hamming distance of the results.
            copies: whether items come first whose general code is very near to that of any view.
            **filters: `having`, `without`, `where` and `among`, see `IndexFilter`.

        """
        whole_number(k, "k", 1)
        forms = {"an embedding": query, "code": code, "id": id, "labels": labels, "like": like}
        passed = [name for name, value in forms.items() if value is not None]
        if len(passed) != 1:
            got = " and ".join(passed) or "none"
            raise InputError(f"search by exactly one of an embedding, code, id, labels or like, got {got}.")
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            if query is not None:
                encoded = queries.query_by_embedding(self.model, query)
            elif code is not None:
                encoded = queries.query_by_code(self.facts, code)
            elif id is not None:
                encoded = queries.query_by_item(self.facts, _items_of(snapshot, _id_list(id))[0])
            elif labels is not None:
                encoded = queries.query_by_labels(self.facts, labels)
            else:
                encoded = self._query_by_examples(snapshot, like, unlike)
            ranking = encoded.ranking(self.facts, by, within, copies)
            mask = self._mask(snapshot, filters)
            rows = ranking.top_rows(snapshot.view, k + len(encoded.ids), mask)
            items = [item for item in snapshot.items(rows) if item.id not in encoded.ids][:k]
            packed, meta = pack(encoded.code[None])[0], snapshot.meta
            results = [as_result(item, packed, encoded.general, encoded.weights) for item in items]
            return Results(results, encoded.explained, encoded.code, meta.items - meta.hidden)

    def _query_by_examples(self, snapshot: Snapshot, like: Any, unlike: Any) -> Query:
        """Return the query by examples and counterexamples, which are ids or embeddings."""
        liked, liked_ids = self._example_bits(snapshot, like)
        unliked, unliked_ids = self._example_bits(snapshot, unlike)
        if not len(liked):
            raise InputError("a search by examples needs at least one item in `like`.")
        background = background_bits(snapshot.view, self.bits, self.general_bits)
        weights = example_weights(liked, unliked, background)
        code = np.where(weights[: self.bits] >= 0, np.int8(1), np.int8(-1))
        return Query(code, bit_weights=weights, ids=(*liked_ids, *unliked_ids))

    def _example_bits(self, snapshot: Snapshot, examples: Any) -> tuple[NDArray[np.int8], Texts]:
        """Return the bits (n, K + V) of examples, and their ids if they are items."""
        if isinstance(examples, np.ndarray):
            features, model = np.atleast_2d(examples), self.model
            general = [] if self.general_bits is None else [model.general_codes(features)]
            return np.hstack([model.encode_features(features), *general]), []
        keys = snapshot.require_keys(_id_list(examples))
        rows = snapshot.require_rows(list(keys.values()))
        return bits_of(snapshot.view, rows, self.bits, self.general_bits), [*keys]

    def _mask(self, snapshot: Snapshot, filters: IndexFilter) -> Bools | None:
        """Return a mask of the rows that pass the filters and are not hidden; None: all."""
        among = filters.get("among")
        if among is not None and not (isinstance(among, np.ndarray) and among.dtype.kind in "iu"):
            among = np.array(list(snapshot.require_keys(_id_list(among)).values()), np.int64)
        arguments: Any = {**filters, "among": among}
        return snapshot.mask(queries.parse_filter(self.attributes, **arguments))

    def list(
        self, offset: int = 0, limit: int = 100, *, order: str | None = None, **filters: Unpack[IndexFilter]
    ) -> tuple[Items, int]:
        """Return a page of the items that pass the filters of `search`, and the number of all of them.

        `order` is a numeric attribute: the largest values come first, missing ones last. Without it, and among equal
        values, the item that was added last comes first.
        """
        whole_number(offset, "offset", 0)
        whole_number(limit, "limit", 0)
        if order is not None and self.attributes.get(order) is not float:
            numbers = [name for name, kind in self.attributes.items() if kind is float]
            allowed = ", ".join(numbers) or "there is none"
            raise InputError(f"items are ordered by a number ({allowed}), got {order!r}.")
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            mask, view = self._mask(snapshot, filters), snapshot.view
            total = view.meta.rows if mask is None else int(np.count_nonzero(mask))
            if order is not None:
                rows = view.largest(attribute_column(order), offset + limit, mask)[offset:]
            else:
                newest = range(total - 1, -1, -1)[offset : offset + limit]
                rows = np.array(newest, np.int64) if mask is None else np.flatnonzero(mask)[list(newest)]
            return snapshot.items(rows), total

    def count(self, **filters: Unpack[IndexFilter]) -> Counts:
        """Count the items that pass the filters of `search`, in total and by the labels that they carry."""
        with self._store.reading(*self._store.columns, LABELS) as snapshot:
            mask = self._mask(snapshot, filters)
            keys = snapshot.view["key"] if mask is None else snapshot.view["key"][mask]
            return Counts(len(keys), snapshot.label_counts(mask), keys.astype(np.int64))

    def labels(self) -> dict[str, int]:
        """Return the number of items that carry each label, sorted by its name."""
        return self.count().labels

    @overload
    def get(self, ids: str) -> Item: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str]) -> Items: ...
    def get(self, ids: str | Sequence[str]) -> Item | Items:
        """Return the item of an id, or the items of several ids; InputError if one is not stored."""
        with self._store.reading() as snapshot:
            items = _items_of(snapshot, _id_list(ids))
        return items[0] if isinstance(ids, str) else items

    def keys(self, ids: str | Sequence[str]) -> Keys:
        """Return the keys (n,) of ids, -1 for an id that is not stored. A key is never used for another item."""
        listed = _id_list(ids)
        with self._store.reading() as snapshot:
            key_of = snapshot.keys(listed)
        return np.array([key_of.get(id, -1) for id in listed], np.int64)

    def ids(self, keys: Sequence[int] | NDArray[Any]) -> Texts:
        """Return the ids of keys; InputError if one of these items is not stored."""
        listed = np.asarray(keys, np.int64).tolist()
        with self._store.reading() as snapshot:
            id_of = snapshot.ids(listed)
        missing = next((key for key in listed if key not in id_of), None)
        if missing is not None:
            raise InputError(f"no item of the key {missing} in the index, which holds {len(self):,}.")
        return [id_of[key] for key in listed]

    def items(self) -> Iterator[Item]:
        """Iterate over all items in the order of adding, including hidden ones; they are read in chunks."""
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
        """Return the keys of all pairs of items whose general codes differ in at most `most` bits, and the distances."""
        if self.general_bits is None:
            raise InputError("this index has no general codes, so it cannot compare items by them.")
        with self._store.reading("key", "flags", "general") as snapshot:
            view = snapshot.view
            mask = combined_mask(view.visible, view.has_general)
            rows = slice(None) if mask is None else np.flatnonzero(mask)
            general, keys = view["general"][rows], view["key"][rows].astype(np.int64)
        with resolve_progress(progress) as report:
            pairs = code_pairs(general, whole_number(most, "most", 0), report)
        return pairs._replace(first=keys[pairs.first], second=keys[pairs.second])

    # --- the whole index

    def export(self, path: str | Path, to: str = "npz", *, progress: bool | Progress = True) -> int:
        """Write all items as "npz" or "parquet", or to "milvus:ADDRESS", and return how many there are."""
        from centerhash.index.exchange import export_items, export_to_milvus

        with resolve_progress(progress) as report:
            if str(path).startswith("milvus:"):
                return export_to_milvus(self, str(path), report)
            return export_items(self, Path(path), to, report)

    def import_codes(self, path: str | Path) -> AddResult:
        """Add the codes of a code file or of a folder of shards."""
        from centerhash.index.exchange import import_codes

        return import_codes(self, Path(path))

    def verify(self) -> Texts:
        """Read everything and return one sentence per damaged file, about its first damage."""
        problems = []
        try:
            with self._store.reading() as snapshot:
                snapshot.check()
        except (DataError, OutputError) as error:
            problems.append(str(error))
        try:
            if self.facts.method is not None:
                # It raises an error if the model is damaged.
                self.model.content()
        except InputError as error:
            problems.append(str(error))
        return problems

    def backup(self, folder: str | Path, *, progress: bool | Progress = True) -> int:
        """Copy the index into a new folder, also while another process writes; verify the copy and count its items."""
        path = Path(folder)
        _check_new(path)
        with atomic_folder(path) as draft, resolve_progress(progress) as report:
            self._store.back_up(draft / ITEMS, report)
            with explain_write_errors(path):
                if self.facts.method is not None:
                    self.model.content()
                    shutil.copytree(self.folder / MODEL, draft / MODEL)
            with Index.open(draft) as copy:
                problems, count = copy.verify(), len(copy)
            if problems:
                raise DataError(f"nothing was backed up: {problems[0].replace(str(draft), str(self.folder))}")
        return count

    def info(self) -> dict[str, Any]:
        """Return the facts of the model, sizes, and the number of items by label."""
        meta, facts = self._store.meta(), self.facts
        return {
            "index": str(self.folder),
            "size": meta.items - meta.hidden,
            "hidden": meta.hidden,
            "bits": self.bits,
            "general_bits": self.general_bits,
            "attributes": {name: kind.__name__ for name, kind in self.attributes.items()},
            "method": facts.method,
            "backbone": facts.backbone,
            "classes": len(facts.classes),
            "labels": self.labels(),
            "bytes": self._store.file_bytes(),
            "removed": meta.rows - meta.items,
        }

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        self._store.close()

    def __len__(self) -> int:
        meta = self._store.meta()
        return meta.items - meta.hidden

    def __bool__(self) -> bool:
        # An empty index is true as well.
        return True

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and is_id(id) and int(self.keys(id)[0]) >= 0

    def __repr__(self) -> str:
        size = "closed" if self._store.closed else f"{len(self):,} items"
        return f"Index('{self.folder}', {size}, {self.bits} bits)"

    def __exit__(self, *exception: object) -> None:
        self.close()


def verify_index(folder: str | Path) -> list[str]:
    """Return the damages of an index, which need not open; DataError if the folder is no index."""
    _check_index(Path(folder))
    try:
        with Index.open(folder, read_only=True) as index:
            return index.verify()
    except InputError as error:
        return [str(error)]


def is_index(folder: Path) -> bool:
    """Return whether a folder holds an index."""
    return (folder / ITEMS).is_file()


def _check_new(folder: Path) -> None:
    """Raise ConfigError unless an index can be created in the folder."""
    if is_index(folder):
        raise ConfigError(f"'{folder}' is an index already: open it and add to it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists and is not empty: choose a new folder for the index.")


def _check_index(folder: Path) -> None:
    """Raise DataError unless the folder holds an index."""
    if not is_index(folder):
        advice = "create one with `centerhash index create` or centerhash.Index.create, and add its items"
        raise DataError(f"'{folder}' is no index ({ITEMS} is missing): {advice}.")


def _save_model(model: Model | str | Path | None, folder: Path, attributes: Mapping[str, type]) -> Facts:
    """Write the model of a new index and return the facts of the index."""
    from centerhash.model.base import Model
    from centerhash.model.loading import load
    from centerhash.model.portable import PortableModel

    if not isinstance(model, Model | str | Path | None):
        raise InputError(f"model must be a model or the folder of a run, got {type(model).__name__}.")
    loaded = model if isinstance(model, Model) else load("coco" if model is None else model)
    loaded.save_portable(folder)
    spec = PortableModel.load(folder).spec
    labels = spec.classes, spec.label_threshold or 0.0, spec.center_codes(), spec.center_directions()
    return Facts(spec.bits, spec.general_bits, attributes, spec.method, spec.backbone, *labels)


def _checked_types(attributes: Mapping[str, type]) -> dict[str, type]:
    for name, kind in attributes.items():
        check_text(name, "the name of an attribute")
        if not (0 < len(name) <= _MAX_ATTRIBUTE_NAME_LENGTH and name.isprintable()):
            allowed = f"1 to {_MAX_ATTRIBUTE_NAME_LENGTH} printable characters"
            raise InputError(f"the name of an attribute has {allowed}, got {name!r:.80}.")
        if kind not in (float, str):
            raise InputError(f"the attribute '{name}' is a number (float) or a text (str), got {kind!r:.80}.")
    return dict(attributes)


def _items_of(snapshot: Snapshot, ids: Sequence[str]) -> list[Item]:
    keys = set(snapshot.require_keys(ids).values())
    items = {item.id: item for item in snapshot.items(snapshot.require_rows(list(keys)))}
    return [items[id] for id in ids]


def _id_list(ids: str | Sequence[str] | NDArray[Any]) -> list[str]:
    return check_ids([ids] if isinstance(ids, str | int) else ids)
