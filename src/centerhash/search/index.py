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
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.codes import Packed, check_bits, check_packed, pack
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError, unknown_name
from centerhash.core.files import atomic_folder, parse_json, read_plain, refuse_links, write_json
from centerhash.core.options import Options
from centerhash.core.progress import Progress, resolve_progress
from centerhash.search.database import FILES
from centerhash.search.items import (
    MAX_NAME,
    File,
    Filter,
    Item,
    ItemStore,
    LabelScores,
    PhotoInfo,
    check_ids,
    check_labels,
)
from centerhash.search.query import (
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
    without_model,
)
from centerhash.search.results import Added, Result, Results, as_result
from centerhash.search.store import Store
from centerhash.search.uploads import ID_DIGITS, IMAGES, Uploads, has_file

if TYPE_CHECKING:  # what reads images takes long to import, so it is when the first one comes
    from centerhash.data.images import ImageSource
    from centerhash.data.listing import Found, Paths
    from centerhash.model.base import Model
    from centerhash.model.portable import PortableModel
    from centerhash.networks.encoder import Encoder, Step
    from centerhash.networks.engines import Engine
    from centerhash.search.duplicates import Duplicates

Labels: TypeAlias = tuple[str, ...]
GivenLabels: TypeAlias = Mapping[Any, Sequence[str]] | str | None  # by path, or a word of LABELS

SPEC, MODEL = "index.json", "model"
LOCAL = "sqlite"  # the store in the folder of the index; others are "milvus:ADDRESS"
LABELS = ("given", "predicted", "none")
_LEVELS_ABOVE = 3  # folders above the images in which their labels.csv is looked for
_SPEC_BYTES = 1 << 26  # of index.json
_PAGE = 1 << 16  # codes that are added at a time


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
        self.read_only, self.closed = False, False
        self.uploads = Uploads(folder)
        self.lock = store.lock  # one thread changes the index at a time; searches do not wait
        self._encoding: dict[str, Any] = {}  # how images are read: device, engine, max_pixels
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
        device: str = "auto",
        engine: str = "auto",
        max_pixels: int | None = None,
    ) -> Self:
        """Open an index; one process may write to it, any number may read.

        Images are read on `device`, and rejected above `max_pixels`, 100 million by default. `engine` runs the
        network: "onnx", "openvino", or "auto" for the fastest one installed.
        """
        place = Path(folder)
        spec = read_spec(place)
        refuse_links(place, (SPEC, MODEL, IMAGES, *FILES))
        info = read_model_info(place / MODEL) if spec.model else without_model(spec.bits)
        if spec.store == LOCAL:
            store: ItemStore = Store.open(place, read_only=read_only)
        else:
            from centerhash.search.milvus import MilvusStore

            store = MilvusStore.open(spec.store, read_only=read_only)
        if not store.bits == info.bits == spec.bits or info.classes != spec.classes:
            store.close()
            raise DataError(
                f"'{place}' has codes of {spec.bits} bits, its model of {info.bits}, its items of {store.bits}, or their "
                "classes differ: it is damaged, or mixed from different indexes. Create it again."
            )
        index = cls(place, spec, info, store)
        index.read_only = read_only
        index._encoding = {"device": device, "engine": engine}
        if max_pixels is not None:
            index._encoding["max_pixels"] = max_pixels
        return index

    @property
    def model(self) -> PortableModel:
        """Return the model that makes the codes; it is loaded on first use."""
        if not self.spec.model:
            raise no_model("add and search codes, or create an index with a model")
        with self.lock:
            if self._model is None:
                from centerhash.model.portable import PortableModel

                self._model = PortableModel.load(self.folder / MODEL)
            return self._model

    def encoder(self) -> Encoder:
        """Return what reads images; it is loaded on first use."""
        if self.spec.model and self.model_info.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images: "
                "search by an id or by labels, add codes with `centerhash index import`, or train on images."
            )
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
    ) -> Added:
        """Add images: files, folders, patterns. Every `batch` of new ones is stored durably before the next.

        A crash loses at most the batch in progress, and the same call resumes: known images are skipped by content.
        Labels come from the labels.csv in a folder or above it, and are predicted by the model for all other images;
        `labels` "given", "predicted" or "none" selects one source, or a mapping gives the labels of paths. An image
        whose stored path no longer exists gets the new path and is not encoded again.
        """
        self._check_writable()
        if type(batch) is not int or batch < 1:
            raise InputError(f"batch must be a whole number of at least 1, got {batch!r}.")
        files, labelling = _images_and_labels(self.model, _listed(images, "images"), labels)
        with resolve_progress(progress) as report:
            done = _Adding(self, labelling).run(files.images, batch, report)
        return replace(done, skipped=files.skipped)

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
        with self.lock:
            if not self._has_file(id):
                # the file first: an item without its image is worse than an image without its item
                path = self.uploads.write(id, data)
                file = replace(File.at(str(self.folder / path)), path=path)
                photo = replace(photo_info(data, file), name=_shown_name(name))
                labels = self.model.label_names(features)
                self._store([id], [(file,)], features, labels, [photo], replace=True)
            return self.get(id)

    def _store(
        self,
        ids: Sequence[str],
        files: Sequence[Sequence[File]],
        features: NDArray[np.float32],
        labels: Sequence[Sequence[str]],
        photos: Sequence[PhotoInfo],
        *,
        replace: bool = False,
    ) -> None:
        """Store images by their features (n, D)."""
        packed, visual = pack(self.model.encode_features(features)), visual_codes(self.model, features)
        scores = label_scores(self.model, features, labels)
        self.store.add(packed, ids, labels, files, visual, scores, photos, replace=replace)

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
            with self.lock:
                known = set(self.store.present(keys[start : start + _PAGE]))
                new = [row for row in range(start, min(start + _PAGE, len(keys))) if keys[row] not in known]
                chosen: list[Any] = [None if one is None else [one[row] for row in new] for one in columns]
                self.store.add(packed[new], *chosen)
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
        """Remove items by id, by the path of their image or by a folder of it; return how many were removed."""
        self._check_writable()
        with self.lock:
            ids = list(dict.fromkeys(id for found in self.find(ids_or_paths).values() for id in found))
            items = self.store.get(ids)
            removed = self.store.remove(ids)
            for path in (path for item in items for path in item.paths):
                if self.uploads.holds(path):
                    self.uploads.drop(self.folder / path)
        return removed

    def compact(self) -> None:
        """Reclaim the space of removed items, and of uploads that a crash kept from being indexed."""
        self._check_writable()
        with self.lock:
            self.store.compact()
            for file in self.uploads.files():
                if file.stem not in self.store:
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
        having: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        under: str | Path | None = None,
        within: int | None = None,
    ) -> Results:
        """Return the `k` items nearest to an image, an item of the index by its `id`, `labels` with weights, or a `code`.

        A code is K values of -1 and +1 or of 0 and 1, or packed bytes, also as hex digits. An image is a path, bytes,
        a PIL image or a uint8 array (height, width, 3). Labels are a mapping of names to weights, a list of names, or
        a text such as "dog:0.7, person:0.3", and need a central method. `by` is "both" (semantic distance plus a
        small part of the visual one; for labels, probabilities and shares), "visual" or "semantic" (one kind of code
        alone). Results carry all labels of `having` and none of `without`, have their file `under` a folder, and a
        Hamming distance of at most `within`. An item is not among its own results.
        """
        if type(k) is not int or k < 1:
            raise InputError(f"k must be a whole number of at least 1, got {k!r}.")
        only = self._filter(having, without, under)
        query = self._query(image, id, labels, code)
        ranking = query.ranking(self.model_info, by, within)
        hits = self.store.search(ranking, k if query.item is None else k + 1, only)
        asked = None if query.weights is None else list(query.weights)
        found = [
            as_result(item, distance, self.uploads, query.visual, asked)
            for item, distance in hits
            if item.id != query.item
        ]
        return Results(found[:k], query.explained, query.code, len(self))

    def _query(
        self, image: ImageSource | None, id: str | None, labels: LabelQuery | None, code: Any
    ) -> Query:
        given = {"image": image, "id": id, "labels": labels, "code": code}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise InputError(
                f"search by exactly one of an image, an id, labels or a code, got {' and '.join(names) or 'none'}."
            )
        if id is not None:
            return query_by_item(self.model_info, self.store.get([id])[0])
        if labels is not None:
            return query_by_labels(self.model_info, labels)
        if code is not None:
            return query_by_code(self.model_info, code)
        from PIL import Image

        if not isinstance(image, str | Path | bytes | Image.Image | np.ndarray):
            raise InputError(
                f"an image is a path, bytes, a PIL image or a uint8 array, got {type(image).__name__}."
            )
        return query_by_features(self.model, self.encoder().features([image]))

    def _filter(
        self, having: str | Sequence[str], without: str | Sequence[str], under: str | Path | None
    ) -> Filter:
        return filter_of(self.store, self.model_info, having, without, under, self.folder / IMAGES)

    def newest(
        self,
        offset: int = 0,
        limit: int = 100,
        *,
        having: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        under: str | Path | None = None,
    ) -> tuple[list[Result], int]:
        """Return a page of the images, last modified first, and the number of all images that pass the filter."""
        for name, number in (("offset", offset), ("limit", limit)):
            if type(number) is not int or number < 0:
                raise InputError(f"{name} must be a whole number of at least 0, got {number!r}.")
        items, total = self.store.newest(offset, limit, self._filter(having, without, under))
        return [as_result(item, 0, self.uploads) for item in items], total

    def duplicates(
        self, *, near: int | None = None, kind: str | None = None, progress: bool | Progress = True
    ) -> Duplicates:
        """Return groups of items that are the same photo or look alike, and which to keep: see `search.duplicates`."""
        from centerhash.search.duplicates import index_duplicates

        return index_duplicates(self, near=near, kind=kind, progress=progress)

    def get(self, id: str) -> Result:
        """Return one item by its id, at distance 0; InputError if there is none."""
        return as_result(self.store.get([id])[0], 0, self.uploads)

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
        """Return every label that an item carries with the number of its items, sorted by name."""
        return self.store.labels()

    def folders(self) -> dict[str, int]:
        """Return the folders of the images with the number of images directly in each."""
        uploads = os.path.realpath(self.folder / IMAGES)
        return {uploads if name == IMAGES else name: count for name, count in self.store.folders().items()}

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


# --- adding images


@dataclass(frozen=True)
class _Labelling:
    """Labels of images: given ones by path, otherwise predicted ones or none."""

    model: Model
    given: Mapping[str, Labels]  # by the path as text, which takes a fraction of a Path's memory
    predict: bool = True

    def __call__(self, paths: Sequence[Path], features: NDArray[np.float32]) -> list[Labels]:
        """Return the labels of the images at `paths`, of which these are the features (N, D)."""
        others = self.model.label_names(features) if self.predict else [()] * len(paths)
        return [self.given.get(str(path), other) for path, other in zip(paths, others, strict=True)]


@dataclass
class _Waiting:
    """A new image: its files, and what is stored of it."""

    files: list[File]
    photo: PhotoInfo
    features: NDArray[np.float32]


@dataclass
class _Adding:
    """One call of `add`: what waits to be stored, and the counts so far."""

    index: Index
    labelling: _Labelling
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    read: dict[str, tuple[File, PhotoInfo]] = field(default_factory=dict)  # by path
    again: list[tuple[str, File]] = field(default_factory=list)  # files of known images, by their id
    done: Added = field(default_factory=lambda: Added(0, 0, {}))

    def run(self, files: Paths, batch: int, progress: Progress) -> Added:
        """Encode and store `files`; every `batch` of new ones is stored durably before the next."""
        seen = 0
        with closing(self.index.encoder().stream(files, self._new_id)) as steps:
            for step in steps:
                self._collect(step, files, batch)
                seen += step.seen
                progress("images", seen, len(files))
        self._write(self.waiting)
        self._note()
        predicts = self.labelling.predict and self.labelling.model.has_centers
        return replace(self.done, predicted=self.done.added - self.done.given if predicts else 0)

    def _count(self, **more: int) -> None:
        self.done = replace(
            self.done, **{name: getattr(self.done, name) + number for name, number in more.items()}
        )

    def _collect(self, step: Step, files: Sequence[Path], batch: int) -> None:
        """Count what became of a few files, and store full batches."""
        self.done.broken.update((str(files[place]), str(error)) for place, error in step.broken.items())
        before = len(self.waiting)
        for id, place, features in zip(step.keys, step.places, step.features, strict=True):
            file, photo = self.read.pop(str(files[place]))
            if id in self.waiting:
                self.waiting[id].files.append(file)
            else:
                self.waiting[id] = _Waiting([file], photo, features)
        twice = before + len(step.keys) - len(self.waiting)
        self._count(known=step.known + twice)
        while len(self.waiting) >= batch:
            self._write({id: self.waiting.pop(id) for id in list(islice(self.waiting, batch))})
        if len(self.again) >= batch:
            self._note()

    def _new_id(self, image: ImageSource) -> str | None:
        """Return the id of an image file that is not stored yet, otherwise None; note where known ones are."""
        from centerhash.data.images import content_key

        if not isinstance(image, str | Path):
            raise InputError(f"only files are added, got {type(image).__name__}.")
        file = File.at(os.path.realpath(image))
        id = content_key(image)[:ID_DIGITS]
        if id in self.index.store:
            self.again.append((id, file))
            return None
        self.read[str(image)] = file, photo_info(image, file)
        return id

    def _note(self) -> None:
        """Store where known images are; nothing is encoded. Those whose other files are missing have moved."""
        store, moved = self.index.store, 0
        with self.index.lock:
            found, self.again = self.again, []
            ids = store.present(list(dict.fromkeys(id for id, _ in found)))
            for item in store.get(ids):
                missing = [path for path in item.paths if not has_file(self.index.uploads, path)]
                here = {file.path for id, file in found if id == item.id}
                if len(missing) == len(item.paths) and missing:
                    moved += 1
                    store.change_files([], missing)
                labels = next(
                    (self.labelling.given[path] for path in here if path in self.labelling.given), None
                )
                if missing and labels is not None and labels != item.labels:
                    store.add_items([replace(store.get([item.id])[0], labels=labels)], replace=True)
            store.change_files(found)
        self._count(moved=moved, known=-moved)

    def _write(self, images: Mapping[str, _Waiting]) -> None:
        """Store images by id; they are stored durably on return."""
        if not images:
            return
        waiting, ids = list(images.values()), list(images)
        paths = [Path(one.files[0].path) for one in waiting]
        features = np.stack([one.features for one in waiting])
        labels = self.labelling(paths, features)
        with self.index.lock:
            known = set(self.index.store.present(ids))  # another thread may have been quicker
            rows = [row for row, id in enumerate(ids) if id not in known]
            chosen = [str(paths[row]) for row in rows]
            if rows:
                self.index._store(
                    [ids[row] for row in rows],
                    [waiting[row].files for row in rows],
                    features[rows],
                    [labels[row] for row in rows],
                    [waiting[row].photo for row in rows],
                )
        given = sum(path in self.labelling.given for path in chosen)
        self._count(added=len(rows), given=given, known=len(ids) - len(rows))


def photo_info(image: str | Path | bytes, file: File) -> PhotoInfo:
    """Read when a photo was taken, the camera and its size; without a date in EXIF, that of the file."""
    from centerhash.data.images import read_header

    header = read_header(image)
    taken = header.taken
    if taken is None and file.modified is not None:
        with suppress(ValueError, OverflowError, OSError):  # a time outside of the years that have a date
            # the clock on the wall, as that of a camera
            taken = datetime.fromtimestamp(file.modified).replace(tzinfo=UTC).timestamp()
    return PhotoInfo(taken, header.camera, header.width, header.height)


def _shown_name(name: str) -> str | None:
    """Return the name of an upload without folders and control characters; None if nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(sign for sign in last if sign.isprintable()).strip()
    return shown[:MAX_NAME] or None


def _images_and_labels(
    model: Model, entries: Sequence[str | Path], labels: GivenLabels
) -> tuple[Found, _Labelling]:
    """Return the image files of `entries`, and the source of their labels: see `Index.add`."""
    from centerhash.data.listing import find_images

    if isinstance(labels, Mapping):
        known = {str(Path(path).resolve()): check_labels(names) for path, names in labels.items()}
        return find_images(entries), _Labelling(model, known)
    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    given = _given_labels(entries) if labels in (None, "given") else {}
    if labels == "given" and not given:
        raise ConfigError(
            "no labels.csv in or above the folders lists any of the images: name such a folder, or choose labels "
            "'predicted' instead of 'given'."
        )
    known = {str(path.resolve()): names for path, names in given.items()}
    files = find_images(
        [*entries, *given]
    )  # a labels.csv may list files whose suffix is not that of an image
    return files, _Labelling(model, known, predict=labels in (None, "predicted"))


def _given_labels(entries: Sequence[str | Path]) -> dict[Path, Labels]:
    """Return the labels of every image in the `entries` that are folders, by the labels.csv in or above them."""
    from centerhash.data.layouts.tabular import read_image_folder

    found: dict[Path, Labels] = {}
    for entry in map(Path, entries):
        home = _labels_home(entry) if entry.is_dir() else None
        if home is not None:
            inside, folder = entry.resolve(), read_image_folder(home)
            for path, row in zip(folder.paths or (), folder.labels, strict=True):
                if home == entry or path.resolve().is_relative_to(inside):
                    # as the listing of the folder names it, or it would be read twice
                    named = entry / path.relative_to(inside) if path.is_relative_to(inside) else path
                    found[named] = tuple(folder.classes[column] for column in np.flatnonzero(row).tolist())
    return found


def _labels_home(folder: Path) -> Path | None:
    """Return the folder whose labels.csv may describe the images in `folder`: itself, or one of the next above it."""
    above = folder.resolve().parents[:_LEVELS_ABOVE]
    # Path.is_file would raise if a folder is closed to us
    return next((home for home in (folder, *above) if os.path.isfile(home / "labels.csv")), None)  # noqa: PTH113


def _listed(entries: str | Path | Sequence[str | Path], what: str) -> list[str | Path]:
    """Return one entry or several as a list, or raise InputError for what is neither text nor path."""
    found = [entries] if isinstance(entries, str | Path) else entries
    if not isinstance(found, Sequence) or not all(isinstance(entry, str | Path) for entry in found):
        raise InputError(f"{what} must be a path or a list of them, got {entries!r:.80}.")
    return list(found)
