"""An index: the folder that makes images searchable, with the model that made their codes.

    index.json          store, bits, classes
    model/model.onnx    the model, so that the index depends neither on other files nor on PyTorch
    items.db            codes, ids, labels, paths and label scores, in SQLite; Milvus keeps them itself
    items.commits       the number of commits of items.db
    images/             only images that came without a file: uploads, named by their id

The id of an image is the first 16 hex digits of the SHA-256 of its bytes: the same image is stored once, whatever its
name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.codes import Packed, check_bits, check_packed, pack
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError, unknown_name
from centerhash.core.files import atomic_folder, parse_json, read_plain, refuse_links, write_json
from centerhash.core.options import Options
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data.views import with_rotations
from centerhash.search.database import FILES
from centerhash.search.items import (
    Counts,
    File,
    Filter,
    Item,
    ItemStore,
    LabelScores,
    check_ids,
    check_labels,
)
from centerhash.search.library import GivenLabels, add_images, is_below, photo_info, shown_name, stored_photo
from centerhash.search.query import (
    Date,
    LabelQuery,
    ModelInfo,
    Query,
    filter_of,
    label_scores,
    no_model,
    query_by_code,
    query_by_features,
    query_by_item,
    query_by_labels,
    read_model_info,
    visual_codes,
    with_taught,
    without_model,
)
from centerhash.search.results import Added, Result, Results, add_taught, as_result
from centerhash.search.store import Store
from centerhash.search.taught import Suggestions, TaughtLabel, TaughtLabels
from centerhash.search.typed import Typed, check_known, read_typed
from centerhash.search.uploads import ID_DIGITS, IMAGES, Uploads, has_file

if TYPE_CHECKING:  # what reads images takes long to import, so it is when the first one comes
    from centerhash.data.images import ImageSource
    from centerhash.model.base import Model
    from centerhash.model.portable import PortableModel
    from centerhash.networks.encoder import Encoder
    from centerhash.networks.engines import Engine
    from centerhash.search.duplicates import Duplicates

SPEC, MODEL = "index.json", "model"
LOCAL = "sqlite"  # the store in the folder of the index; others are "milvus:ADDRESS"
_SPEC_BYTES = 1 << 26  # of index.json
_PAGE = 1 << 16  # codes that are added at a time
_WAIT = 5.0  # seconds for another process that writes


class Only(TypedDict, total=False):
    """Which items pass: the filters of `Index.search`, `newest` and `months`."""

    having: str | Sequence[str]
    without: str | Sequence[str]
    under: str | Path | None
    after: Date | None
    before: Date | None
    camera: str | None
    named: str | Sequence[str]


class IndexSpec(Options):
    """The content of index.json."""

    format: Literal[2] = 2
    store: str = Field(pattern=r"^(sqlite|milvus:.+#.+)$")
    bits: int
    classes: tuple[str, ...]
    model: bool = True  # whether the folder holds one


class Index:
    """Store and search images with their model; use `create` or `open`. Threads may share an index."""

    def __init__(self, folder: Path, spec: IndexSpec, info: ModelInfo, store: ItemStore) -> None:
        self.folder, self.spec, self.model_info, self.store = folder, spec, info, store
        self.read_only, self.shared, self.closed = False, False, False
        self._borrowed: Store | None = None  # for writing, of a shared index
        self.uploads = Uploads(folder)
        self.lock = store.lock  # one thread changes the index at a time; searches do not wait
        self._encoding: dict[str, Any] = {}  # how images are read: device, engine, max_pixels
        self._preparing = Lock()  # of the encoder: there is one, with its decoders
        self._model: PortableModel | None = None
        self._encoder: Encoder | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: Model | str | Path | None = None,
        *,
        bits: int | None = None,
        store: str = LOCAL,
    ) -> Self:
        """Create an empty index for the codes of a model, by default the built-in one, and open it.

        `model` is a model, or the folder of a run. The index stores it as model.onnx, which is exported first if the
        model has none. With `bits` instead of a model, the index holds codes of that length from other programs.
        `store` is "sqlite", or "milvus:ADDRESS" for a Milvus server, with "#NAME" for the name of the collection.
        """
        from centerhash.model.base import Model
        from centerhash.model.loading import load

        if model is not None and bits is not None:
            raise InputError(
                "an index has either a model or codes of `bits` from other programs: give one of both."
            )
        if not isinstance(model, Model | str | Path | None):
            raise InputError(f"model must be a model or the folder of a run, got {type(model).__name__}.")
        if bits is not None:
            _create_folder(Path(folder), check_bits(bits), store)
        else:
            made = model if isinstance(model, Model) else load("coco" if model is None else model)
            _create_folder(Path(folder), made, store)
        return cls.open(folder)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        read_only: bool = False,
        shared: bool = False,
        device: str = "auto",
        engine: str = "auto",
        max_pixels: int | None = None,
    ) -> Self:
        """Open an index; one process may write to it, any number may read.

        With `shared`, this process has the right to write only during each change, so that others may write in between.
        If another process has this right, wait some seconds for it.

        Images are read on `device`, and rejected above `max_pixels`, 100 million by default. `engine` runs the
        network: "onnx", "openvino", or "auto" for the fastest one installed.
        """
        place = Path(folder)
        spec = read_spec(place)
        refuse_links(place, (SPEC, MODEL, IMAGES, *FILES))
        info = read_model_info(place / MODEL) if spec.model else without_model(spec.bits)
        if spec.store == LOCAL:
            store: ItemStore = Store.open(place, read_only=read_only or shared, wait=_WAIT)
        else:
            from centerhash.search.milvus import MilvusStore

            store = MilvusStore.open(spec.store, read_only=read_only)
        if not store.bits == info.bits == spec.bits or info.classes != spec.classes:
            store.close()
            raise DataError(
                f"'{place}' is damaged or mixed from different indexes: it has {spec.bits} bits, its model {info.bits}, "
                f"its items {store.bits}, or their classes differ. Create it again."
            )
        index = cls(place, spec, info, store)
        index.read_only, index.shared = read_only, shared and spec.store == LOCAL
        index._encoding = {"device": device, "engine": engine}
        if max_pixels is not None:
            index._encoding["max_pixels"] = max_pixels
        return index

    @property
    def model(self) -> PortableModel:
        """Return the model that makes the codes; it is loaded on first use."""
        if not self.spec.model:
            raise no_model("add and search codes, or create an index with a model")
        if self._model is None:  # not under `lock`, which a search would wait for while a change is written
            from centerhash.model.portable import PortableModel

            self._model = PortableModel.load(self.folder / MODEL)
        return self._model

    def encoder(self) -> Encoder:
        """Return what reads images; it is loaded on first use."""
        if self.spec.model and self.model_info.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images. "
                "Search by an id or by labels, add codes with `centerhash index import`, or train on images."
            )
        with self._preparing:
            self._encoder = self._encoder or self.model.encoder(**self._encoding)
            return self._encoder

    @property
    def used_engine(self) -> Engine | None:
        """Return the engine that runs the network; None before the first image is read."""
        return None if self._encoder is None else self._encoder.used_engine

    # --- changes

    def add(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        labels: GivenLabels = None,
        progress: bool | Progress = True,
        batch: int = 256,
        with_removed: bool = False,
    ) -> Added:
        """Add images: files, folders, patterns. Every `batch` of new ones is stored durably before the next.

        A crash loses at most the batch in progress, and the same call resumes. Files whose path, size and modification
        time are stored are not read again; other known images are recognized by content. A file whose content has
        changed replaces its item. Images whose files are gone from the folders are hidden until they are back. Labels
        come from the labels.csv in a folder or above it, and are predicted by the model for all other images. `labels`
        "given", "predicted" or "none" selects one source, and a mapping assigns labels to paths. An image that was
        moved gets the new path and is not encoded again. An image that was removed is not added again by its folder,
        unless it is named itself, its content has changed, or `with_removed` is set.
        """
        self._check_writable()
        if type(batch) is not int or batch < 1:
            raise InputError(f"batch must be a whole number of at least 1, got {batch!r}.")
        with resolve_progress(progress) as report:
            entries = _listed(images, "images")
            return add_images(self, entries, labels, batch, report, with_removed=with_removed)

    def add_bytes(self, data: bytes, name: str = "") -> Result:
        """Add an image without a file; its bytes are kept in images/. A known image stays as it is.

        Errors and results refer to the image by `name`.
        """
        self._check_writable()
        if not isinstance(data, bytes):
            raise InputError(f"the bytes of an image file are needed, got {type(data).__name__}.")
        try:
            features = self.encoder().features([data])
        except ImageError as error:
            raise ImageError(
                str(error).replace("image bytes", f"'{name}'" if name else "image bytes")
            ) from None
        id = hashlib.sha256(data).hexdigest()[:ID_DIGITS]
        labels = self.model.label_names(features)
        packed, visual, scores = self.codes_of(features, labels)
        with self.writing() as store:
            if not self._has_file(id):
                # the file first: an item without its image is worse than an image without its item
                path = self.uploads.write(id, data)
                file = replace(File.at(str(self.folder / path)), path=path)
                photo = replace(photo_info(data, file), name=shown_name(name))
                store.add(packed, [id], labels, [[file]], visual, scores, [photo], replace=True)
        return self.get(id)

    def codes_of(
        self, features: NDArray[np.float32], labels: Sequence[Sequence[str]]
    ) -> tuple[Packed, Packed | None, list[LabelScores] | None]:
        """Return semantic and visual codes and label scores of images by their features (n, D)."""
        packed, visual = pack(self.model.encode_features(features)), visual_codes(self.model, features)
        return packed, visual, label_scores(self.model, features, labels)

    @contextmanager
    def writing(self) -> Iterator[ItemStore]:
        """Within the block, return the store that changes are written to; one thread has it at a time.

        An index that was opened with `shared` takes the right to write now.
        """
        self._check_writable()
        with self.lock:
            if not self.shared or self._borrowed is not None:
                yield self._borrowed or self.store
                return
            with Store.open(self.folder, wait=_WAIT) as self._borrowed:
                try:
                    yield self._borrowed
                finally:
                    self._borrowed = None

    def _has_file(self, id: str) -> bool:
        """Return whether an item is stored and its file, if it has one, still exists."""
        if id not in self.store:
            return False
        paths = self.store.get([id])[0].paths
        return not paths or any(has_file(self.uploads, path) for path in paths)

    def add_codes(
        self,
        packed: Packed,
        ids: Sequence[object],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
        visual: Sequence[Packed | None] | None = None,
        scores: Sequence[LabelScores] | None = None,
    ) -> Added:
        """Add codes (N, ceil(K/8)) of the same model; known ids are skipped.

        Ids are strings; numbers are converted. Paths are absolute.
        """
        self._check_writable()
        packed, keys = check_packed(packed, self.model_info.bits), check_ids(list(map(str, ids)))
        for path in paths or ():
            if path is not None and not Path(path).is_absolute():
                raise InputError(
                    f"the path of an item is absolute, got '{path}': an index may be opened from another folder."
                )
        columns: list[Sequence[Any] | None] = [keys, labels, paths, visual, scores]
        for column in columns:
            if column is not None and len(column) != len(packed):
                raise InputError(
                    f"{len(packed):,} codes do not fit {len(column):,} ids, labels, paths or scores."
                )
        added = 0
        for start in range(0, len(keys), _PAGE):
            with self.writing() as store:
                known = set(store.present(keys[start : start + _PAGE]))
                new = [row for row in range(start, min(start + _PAGE, len(keys))) if keys[row] not in known]
                chosen: list[Any] = [None if one is None else [one[row] for row in new] for one in columns]
                chosen.append(None if paths is None else [stored_photo(paths[row]) for row in new])
                store.add(packed[new], *chosen)
            added += len(new)
        return Added(added, len(keys) - added, {})

    def import_codes(self, path: str | Path) -> Added:
        """Add the codes of a code file or of a folder of shards; see `exchange.import_codes`."""
        from centerhash.search.exchange import import_codes

        return import_codes(self, Path(path))

    def export(self, path: str | Path, to: str = "npz", *, progress: bool | Progress = True) -> int:
        """Write all items for other programs, and return how many: "npz", "npy", "parquet", "faiss" or "pgvector"."""
        from centerhash.search.exchange import export_items

        with resolve_progress(progress) as report:
            return export_items(self, Path(path), to, report)

    def backup(self, folder: str | Path, *, progress: bool | Progress = True) -> int:
        """Copy the index into a new folder, verified, also while another process writes to it; return its size."""
        from centerhash.search.backup import back_up

        with resolve_progress(progress) as report:
            return back_up(self, Path(folder), report)

    def remove(self, ids_or_paths: str | Path | Sequence[str | Path]) -> int:
        """Remove items by id, by the path of their image or by a folder of it; return how many were removed.

        Files stay, and later scans of their folders leave them out: see `add`. A folder that was added as a whole is no
        longer followed once it is removed; adding it again adds all its images.
        """
        with self.writing() as store:
            with store.transaction():
                ids = list(dict.fromkeys(id for found in self.find(ids_or_paths).values() for id in found))
                items = store.get(ids)
                removed = store.remove(ids)
                dropped = [name for name in store.roots() if is_below(name, ids_or_paths)]
                if dropped:
                    store.set_roots((), dropped)
                self._note_removed(store, items, dropped)
            for path in (path for item in items for path in item.paths):
                if self.uploads.holds(path):
                    self.uploads.drop(self.folder / path)
        return removed

    def _note_removed(self, store: ItemStore, items: Sequence[Item], dropped: Sequence[str]) -> None:
        """Remember the files of removed items that are there, except in folders that are no longer followed."""
        kept = store.roots()

        def is_dropped(path: str) -> bool:
            folder = os.path.dirname(path)  # noqa: PTH120 - of many files
            return is_below(folder, dropped) and not is_below(folder, kept)

        if dropped:
            store.forget_removed([path for path in store.removed() if is_dropped(path)])
        files = [(item.id, file) for item in items for file in item.files]
        there = [
            (id, file)
            for id, file in files
            if not self.uploads.holds(file.path)
            and has_file(self.uploads, file.path)
            and not is_dropped(file.path)
        ]
        if there:
            store.note_removed(there)

    def relocate(self, id: str, old: str | Path, new: str | Path) -> None:
        """Store the new path of an image that was moved; its other paths stay."""
        with self.writing() as store:
            store.change_files([(id, File.at(str(Path(new).resolve())))], [str(old)])

    def compact(self) -> None:
        """Reclaim the space of removed items, and of uploads that a crash kept from being indexed."""
        with self.writing() as store:
            store.compact()
            for file in self.uploads.files():
                if file.stem not in store:
                    self.uploads.drop(file)

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError(f"'{self.folder}' was opened read-only: open it for writing to change it.")

    # --- queries

    def search(
        self,
        image: ImageSource | None = None,
        *,
        id: str | None = None,
        labels: LabelQuery | None = None,
        code: Any = None,
        k: int = 10,
        by: str = "both",
        within: int | None = None,
        rotations: bool = True,
        **only: Unpack[Only],
    ) -> Results:
        """Return the `k` items nearest to an image, an item of the index by its `id`, `labels` with weights, or a `code`.

        A code is K values of -1 and +1 or of 0 and 1, or packed bytes, also as hex digits. An image is a path, bytes,
        a PIL image or a uint8 array (height, width, 3). Labels are a mapping of names to weights, a list of names, or
        a text such as "dog:0.7, person:0.3" or "a dog without person" (see `read`). They need a central method.

        `by` is "visual", "semantic" or "both". "both" ranks copies of the image first, then by the semantic distance
        plus a small part of the visual one. For labels, it ranks by probabilities and shares.

        Results have a Hamming distance of at most `within`, all labels of `having` and none of `without`. They have a
        file `under` a folder, and every word of `named` in the names of their file or folders. They were taken since
        the first day of `after` and before that of `before` ("2024", "2024-06" or "2024-06-01"). The name of their
        camera contains `camera`. Photos without the labels of a query are not results, so there may be fewer than `k`.
        An item is not among its own results.

        An image is compared rotated by 90, 180 and 270 degrees as well, which takes four times as long;
        `rotations=False` skips this.
        """
        if type(k) is not int or k < 1:
            raise InputError(f"k must be a whole number of at least 1, got {k!r}.")
        given = {"image": image, "id": id, "labels": labels, "code": code}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise InputError(
                f"search by exactly one of an image, an id, labels or a code, got {' and '.join(names) or 'none'}."
            )
        if image is not None:  # not within the snapshot, which is to be short
            query = self._query_by_image(image, rotations)
        with self.store.snapshot():
            if isinstance(labels, str):
                ranked = with_taught(self.model_info, self.store.taught()).classes
                if not ranked:
                    raise no_model("search by an id or by a code, or teach a label")
                typed = check_known(self.read(labels), ranked)
                labels = {label: weight for label, weight in typed.weights.items() if label in ranked}
                others = [label for label in typed.weights if label not in labels]
                only["having"] = [*_names(only.get("having", ())), *others]
                only["without"] = [*_names(only.get("without", ())), *typed.without]
                only["named"] = [*_names(only.get("named", ())), *typed.named]
                if typed and not labels:  # nothing to rank by
                    newest, _ = self.newest(0, k, **only)
                    return Results(newest, (), np.zeros(self.model_info.bits, np.int8), len(self))
            if id is not None:
                query = query_by_item(self.model_info, self.store.get([id])[0])
            elif labels is not None:
                query = query_by_labels(with_taught(self.model_info, self.store.taught()), labels)
            elif code is not None:
                query = query_by_code(self.model_info, code)
            ranking = query.ranking(self.model_info, by, within)
            hits = self.store.search(ranking, k if query.item is None else k + 1, self._filter(only))
            asked = None if query.weights is None else list(query.weights)
            kept = [(item, distance) for item, distance in hits if item.id != query.item][:k]
            found = [as_result(item, distance, self.uploads, query.visual, asked) for item, distance in kept]
            found = add_taught(found, [item for item, _ in kept], self.store.taught(), asked)
            return Results(found, query.explained, query.code, len(self))

    def _query_by_image(self, image: ImageSource, rotations: bool) -> Query:
        """Return a query by an image, and by further views of it if items have visual codes."""
        from PIL import Image

        if not isinstance(image, str | Path | bytes | Image.Image | np.ndarray):
            raise InputError(
                f"an image is a path, bytes, a PIL image or a uint8 array, got {type(image).__name__}."
            )
        encoder, views = self.encoder(), self.encoder().views(image)
        if self.model.visual_bits is None:
            views = views[:1]
        elif rotations:
            views = with_rotations(views)
        return query_by_features(self.model, encoder.engine.features(views))

    def read(self, text: str) -> Typed:
        """Read what a person typed: labels with weights, labels that must not be there, and words in file names.

        A word that is neither a label nor in the name of a file or folder is `unknown`.
        """
        classes = with_taught(self.model_info, self.store.taught()).classes
        typed = read_typed(text, classes)
        if typed.unknown:
            others = [label for label in self.labels() if label not in classes]
            typed = read_typed(text, [*classes, *others], self.store.has_name)
        return typed

    def _filter(self, only: Only) -> Filter:
        named = only.get("having") or only.get("without")
        info = with_taught(self.model_info, self.store.taught() if named else {})
        return filter_of(self.store, info, self.folder / IMAGES, **only)

    def newest(
        self,
        offset: int = 0,
        limit: int = 100,
        **only: Unpack[Only],
    ) -> tuple[list[Result], int]:
        """Return a page of the images, last taken first, and the number of all images that pass the filter.

        Filters are those of `search`: `having`, `without`, `under`, `named`, `after`, `before` and `camera`.
        """
        for name, number in (("offset", offset), ("limit", limit)):
            if type(number) is not int or number < 0:
                raise InputError(f"{name} must be a whole number of at least 0, got {number!r}.")
        items, total = self.store.newest(offset, limit, self._filter(only))
        return self._as_results(items), total

    def _as_results(self, items: Sequence[Item]) -> list[Result]:
        """Return items as users see them, without a query."""
        return add_taught([as_result(item, 0, self.uploads) for item in items], items, self.store.taught())

    def months(self, **only: Unpack[Only]) -> dict[str, int]:
        """Return the months in which images that pass the filter were taken ("2024-06"), newest first, with counts."""
        return self.store.months(self._filter(only))

    def counts(self, **only: Unpack[Only]) -> Counts:
        """Count the items that pass the filter by label, camera and folder: what a further filter would leave."""
        found = self.store.counts(self._filter(only))
        return replace(found, folders=self._named_uploads(found.folders))

    def cameras(self) -> dict[str, int]:
        """Return every camera with the number of its images, sorted by name."""
        return self.store.cameras()

    def duplicates(
        self,
        *,
        kind: str | None = None,
        prefer: str | Path | Sequence[str | Path] = (),
        progress: bool | Progress = True,
    ) -> Duplicates:
        """Return groups of items that are the same photo or look alike, and which to keep: see `search.duplicates`."""
        from centerhash.search.duplicates import index_duplicates

        return index_duplicates(self, kind=kind, prefer=prefer, progress=progress)

    def get(self, id: str) -> Result:
        """Return one item by its id, at distance 0; InputError if there is none."""
        return self._as_results(self.store.get([id]))[0]

    def image(self, id: str) -> Path:
        """Return the image file of an item; an upload that has changed is an ImageError."""
        paths = self.paths(id)
        if not paths:
            raise InputError(f"the item '{id}' has no image: only its code was imported.")
        there = next((path for path in paths if has_file(self.uploads, path)), paths[0])
        return self.uploads.checked(Path(there))

    def paths(self, id: str) -> tuple[str, ...]:
        """Return the paths of all files with the content of an item, sorted; InputError if there is no such item."""
        return self.get(id).paths

    def find(self, ids_or_paths: str | Path | Sequence[str | Path]) -> dict[str, list[str]]:
        """Return the ids that each id, path of an image or folder of images refers to; the files may be missing."""
        entries = list(dict.fromkeys(map(str, _listed(ids_or_paths, "ids or paths"))))
        found = {entry: [entry] if entry in self.store else [] for entry in entries}
        # unlike Path.resolve, realpath also accepts links that lead to themselves
        places = {Path(os.path.realpath(entry)): entry for entry in entries if not found[entry]}
        for id, stored in self.store.paths() if places else ():
            path = self.uploads.path(stored)
            if path is not None:
                for place in (path, *path.parents):
                    if (
                        place in places and id not in found[places[place]][-1:]
                    ):  # which has several paths there
                        found[places[place]].append(id)
        return found

    # --- taught labels: see `teaching`

    def teach(
        self,
        name: str,
        like: str | Path | Sequence[str | Path] = (),
        unlike: str | Path | Sequence[str | Path] = (),
    ) -> TaughtLabel:
        """Teach a label by items that show it and items that do not: ids, paths of images or folders of them.

        The label is learned from stored codes; no image is read. Queries, filters and results have it like any other
        label, and items that are added later too. Further examples of a taught label improve it; an example that is
        given again changes sides.
        """
        return TaughtLabels(self).teach(name, like, unlike)

    def taught(self) -> dict[str, TaughtLabel]:
        """Return the taught labels by name, with their examples and the number of items that carry them."""
        return TaughtLabels(self).all()

    def suggest(self, name: str, k: int = 10) -> Suggestions:
        """Return k items to confirm or reject as examples of a taught label: the likeliest and the most uncertain."""
        return TaughtLabels(self).suggest(name, k)

    def rename_taught(self, name: str, new: str) -> None:
        """Rename a taught label."""
        TaughtLabels(self).rename(name, new)

    def forget(self, name: str) -> None:
        """Remove a taught label; the images that carried it stay."""
        TaughtLabels(self).forget(name)

    def export_taught(self, path: str | Path) -> int:
        """Write all taught labels with the codes of their examples as json, and return how many."""
        return TaughtLabels(self).export(Path(path))

    def import_taught(self, path: str | Path) -> list[str]:
        """Add the taught labels that an index of the same model exported, and return their names."""
        return TaughtLabels(self).import_(Path(path))

    def items(self) -> Iterator[Item]:
        """Iterate over all items, in the order in which they were added."""
        return self.store.items()

    def missing(self) -> list[str]:
        """Return the ids of the images whose file is missing: `add` the folder where they are now, or `remove` them."""
        there = dict[str, bool]()
        for id, path in self.store.paths():
            there[id] = there.get(id, False) or has_file(self.uploads, path)
        return [id for id, found in there.items() if not found]

    def labels(self) -> dict[str, int]:
        """Return every label that an item carries, and every taught one, with the number of its items, by name."""
        return self.store.labels()

    def folders(self) -> dict[str, int]:
        """Return the folders of the images with the number of images directly in each."""
        return self._named_uploads(self.store.folders())

    def _named_uploads(self, folders: Mapping[str, int]) -> dict[str, int]:
        """Return counts by folder, with the whole path of that of uploads."""
        uploads = os.path.realpath(self.folder / IMAGES)
        return {uploads if name == IMAGES else name: count for name, count in folders.items()}

    @property
    def version(self) -> Hashable:
        """Return a value that changes whenever the index changes."""
        return self.store.version

    def info(self) -> dict[str, Any]:
        """Return store, model, size and labels."""
        return {
            "index": str(self.folder),
            "store": self.spec.store,
            "size": len(self),
            "uploads": sum(1 for _ in self.uploads.files()),
            "missing": len(self.missing()),
            "bits": self.model_info.bits,
            "method": self.model_info.method,
            "backbone": self.model_info.backbone,
            "classes": len(self.model_info.classes),
            "labels": self.labels(),
            "details": self.store.info(),
        }

    def verify(self) -> list[str]:
        """Read everything and return one sentence for each damage, naming the file."""
        found = []
        try:
            if self.spec.model:
                self.model.content()  # raises if the model is damaged
        except InputError as error:
            found.append(str(error))
        found += [*self.store.verify(), *self.uploads.damaged()]
        for id, path in self.store.paths() if not found else ():  # a damaged store cannot be read to the end
            file = self.uploads.path(path)
            if file is None:
                found.append(
                    f"the item '{id}' has the path '{path}', which is no image of this index: remove it."
                )
            elif self.uploads.holds(path) and not file.exists():
                found.append(f"'{file}', the image of the item '{id}', is missing.")
        return found

    def refresh(self) -> bool:
        """Return whether the index has changed since the last call, also by another process."""
        return self.store.refresh()

    def close(self) -> None:
        """Release files, connections and the right to write; a second call does nothing."""
        with self.lock:  # a change in progress is finished first
            self.closed = True
            self.store.close()

    def __len__(self) -> int:
        return len(self.store)

    def __bool__(self) -> bool:
        return True  # also an empty index

    def __contains__(self, id: object) -> bool:
        return id in self.store

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def __repr__(self) -> str:
        size = "closed" if self.closed else f"{len(self):,} items"
        return f"Index('{self.folder}', {size}, {self.model_info.bits} bits, {self.spec.store})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def verify_index(folder: str | Path) -> list[str]:
    """Return the damages of an index, also of one that cannot be opened; InputError if the folder is no index."""
    if not is_index(Path(folder)):
        read_spec(Path(folder))  # raises
    try:
        with Index.open(folder, read_only=True) as index:
            return index.verify()
    except InputError as error:
        return [str(error)]


# --- the folder


def is_index(folder: Path) -> bool:
    """Return whether a folder holds an index."""
    return os.path.isfile(folder / SPEC)  # noqa: PTH113 - Path.is_file raises if the folder is closed to us


def _create_folder(folder: Path, model: Model | int, store: str) -> None:
    """Create the folder of an empty index atomically: it is prepared next to its place and renamed.

    Without a model, `model` is the number of bits.
    """
    if is_index(folder):
        raise ConfigError(f"'{folder}' is an index already: open it and add to it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists and is not empty: choose a new folder for the index.")
    if store != LOCAL:
        if not store.startswith("milvus:"):
            raise unknown_name("store", store, (LOCAL, "milvus:ADDRESS"))
        from centerhash.search.milvus import MilvusStore, complete_address

        store = complete_address(store, blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest())
    if isinstance(model, int):
        spec = IndexSpec(store=store, bits=model, classes=(), model=False)
    else:
        spec = IndexSpec(store=store, bits=model.bits, classes=model.classes)
    with atomic_folder(folder) as draft:
        if not isinstance(model, int):
            model.save_portable(draft / MODEL)
        made = Store.create(draft, spec.bits) if store == LOCAL else MilvusStore.create(store, spec.bits)
        made.close()
        write_json(draft / SPEC, spec.model_dump())


def read_spec(folder: Path) -> IndexSpec:
    """Read index.json, or raise DataError with what the folder is instead."""
    file = folder / SPEC
    try:
        stored = parse_json(read_plain(file, _SPEC_BYTES).decode())
        if not isinstance(stored, dict) or stored.get("format") != 1:
            return IndexSpec.model_validate(stored)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{folder}' is no index ({SPEC} is missing): create one first, with `centerhash index create` or "
            "centerhash.Index.create."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}.") from None
    except ValueError as error:  # no json, no UTF-8, other fields
        raise DataError(f"'{file}' is damaged or of another version: {str(error).splitlines()[0]}") from None
    raise DataError(
        f"'{folder}' was made by an earlier version, whose format is not supported: move it away, then run "
        "`centerhash index create` and `centerhash index add` again."
    )


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return check_labels([names] if isinstance(names, str) else names)


def _listed(entries: str | Path | Sequence[str | Path], what: str) -> list[str | Path]:
    """Return one entry or several as a list, or raise InputError for what is neither text nor path."""
    found = [entries] if isinstance(entries, str | Path) else entries
    if not isinstance(found, Sequence) or not all(isinstance(entry, str | Path) for entry in found):
        raise InputError(f"{what} must be a path or a list of them, got {entries!r:.80}.")
    return list(found)
