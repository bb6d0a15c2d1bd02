"""A collection: the folder that makes an index usable, with the model that made its codes.

    collection.json     what this folder is: engine, bits, classes
    model/              a copy of the model, so that the collection stands on its own
    items/              the codes, ids, labels and paths, by the flat or the faiss engine; Milvus keeps them itself
    images/             only pictures that came without a file: uploads, named by their id

The id of an image is the first 16 letters of the SHA-256 of its bytes: the same picture is stored once, whatever
its name.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

from centerhash.codes import Packed, pack, unpack
from centerhash.core.errors import DataError, ImageError, InputError
from centerhash.data.images import MAX_PIXELS, list_images
from centerhash.model import Explained, HashModel
from centerhash.networks.engines import Engine
from centerhash.search.adding import Added, Adding, given_or_predicted, holds_with_file
from centerhash.search.answers import Answer, Found, as_found, nearest
from centerhash.search.encoder import ID_LETTERS, ImageEncoder, Progress
from centerhash.search.engines.base import MAX_ID_BYTES, HammingIndex, Item
from centerhash.search.engines.table import open_index
from centerhash.search.folder import (
    MODEL,
    SPEC,
    CollectionSpec,
    create_folder,
    index_location,
    read_spec,
)
from centerhash.search.label_query import labels_of_code, query_of_labels
from centerhash.search.uploads import Uploads

__all__ = ["Added", "Answer", "Collection", "Found", "verify_collection"]

_PAGE = 10_000  # items per look-up when all of them are gone through


class Collection:
    """An index of images with its model; `create` or `open` one. Safe to use from several threads."""

    def __init__(self, folder: Path, spec: CollectionSpec, model: HashModel, index: HammingIndex) -> None:
        self.folder, self.spec, self.model, self.index = folder, spec, model, index
        self.read_only, self.device, self.max_pixels, self.inference = False, "auto", MAX_PIXELS, "auto"
        self.uploads = Uploads(folder)
        self._lock = threading.RLock()  # one thread changes it at a time; searches do not wait
        self._loading = threading.Lock()
        self._loaded: ImageEncoder | None = None

    @classmethod
    def create(cls, folder: str | Path, run: str | Path, *, engine: str = "flat") -> Self:
        """Make an empty collection for the codes of a run's model, and open it.

        `engine` is "flat", "faiss", "faiss?kind=hnsw", or "milvus:ADDRESS", with "#NAME" for the name there.
        """
        create_folder(Path(folder), HashModel.load(run), engine)
        return cls.open(folder)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        read_only: bool = False,
        device: str = "auto",
        max_pixels: int = MAX_PIXELS,
        inference: str = "auto",
    ) -> Self:
        """Open a collection; one process may write to it, any number may read.

        Pictures are read on `device`, and refused from `max_pixels` on. `inference` names the engine that runs
        the network: "torch", "onnx", "openvino", or "auto" for the fastest one here.
        """
        place = Path(folder)
        spec = read_spec(place)
        model = HashModel.load(place / MODEL)
        index = open_index(index_location(place, spec.engine), read_only=read_only)
        if not index.bits == model.bits == spec.bits:
            index.close()
            raise DataError(
                f"'{place}' is of {spec.bits} bits, its model of {model.bits}, its items of {index.bits}: its parts "
                "are of different collections. Create it anew."
            )
        collection = cls(place, spec, model, index)
        collection.read_only, collection.device, collection.max_pixels = read_only, device, max_pixels
        collection.inference = inference
        return collection

    # --- changing it

    def add(
        self,
        paths: Sequence[str | Path],
        *,
        labels: Mapping[Path, Sequence[str]] | None = None,
        predict: bool = True,
        progress: Progress | None = None,
        batch: int = 256,
    ) -> Added:
        """Add images: files, folders, patterns. Every `batch` of new ones is stored for good before the next.

        A kill loses at most the batch in work, and the same call goes on: what is there is skipped by content.
        `labels` are those of single images; the others get the model's predicted ones, or none without `predict`.
        An image whose stored path leads nowhere any more gets the new one.
        """
        self._check_writable()
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        labels_of = given_or_predicted(self.model, labels or {}, predict)
        work = Adding(self.index, self.model, self.uploads, self._lock, labels_of)
        return work.run(list_images(paths), self._encoder(), batch, progress)

    def add_bytes(self, data: bytes, name: str = "") -> Found:
        """Add a picture that has no file; its bytes are kept in images/. One that is there already stays as it is.

        `name` is what error texts call it.
        """
        self._check_writable()
        encoder = self._encoder()
        try:
            features = encoder.features([encoder.pixels_of(data)])
        except ImageError as error:
            raise ImageError(
                str(error).replace("image bytes", f"'{name}'" if name else "image bytes")
            ) from None
        id = hashlib.sha256(data).hexdigest()[:ID_LETTERS]
        with self._lock:
            if not holds_with_file(self.index, self.uploads, id):
                # first: an item without its picture is worse than a picture without its item
                path = self.uploads.write(id, data)
                packed = pack(self.model.encode_features(features))
                self.index.remove([id])  # there when its own file is gone
                self.index.add(packed, [id], self.model.label_names(features), [path])
            return self.get(id)

    def add_codes(
        self, packed: Packed, ids: Sequence[str], labels: Sequence[Sequence[str]] | None = None
    ) -> Added:
        """Add codes (N, ceil(K/8)) that were made elsewhere by the same model, without images; known ids are skipped."""
        self._check_writable()
        names = [()] * len(ids) if labels is None else list(labels)
        if not len(packed) == len(ids) == len(names):
            raise InputError(f"{len(packed):,} codes, {len(ids):,} ids and {len(names):,} labels do not fit.")
        added = 0
        for start in range(0, len(ids), _PAGE):
            with self._lock:
                new = [
                    row for row in range(start, min(start + _PAGE, len(ids))) if ids[row] not in self.index
                ]
                self.index.add(packed[new], [ids[row] for row in new], [names[row] for row in new])
            added += len(new)
        return Added(added, len(ids) - added, {})

    def remove(self, ids_or_paths: Sequence[str | Path]) -> int:
        """Remove items by id, by the path of their image or by a folder of it; return how many there were."""
        self._check_writable()
        with self._lock:
            ids = list(dict.fromkeys(id for found in self.find(ids_or_paths).values() for id in found))
            items = self.index.get(ids)
            removed = self.index.remove(ids)
            for item in items:
                if item.path is not None and self.uploads.holds(item.path):
                    self.uploads.drop(self.uploads.path(item.path))
        return removed

    def compact(self) -> None:
        """Give back the space of removed items, and of uploads that a kill kept from being indexed."""
        self._check_writable()
        with self._lock:
            _call(self.index, "compact")
            for file in self.uploads.files():
                if file.stem not in self.index:
                    self.uploads.drop(file)

    # --- asking it

    def by_image(
        self, source: str | Path | bytes, k: int = 10, labels: Sequence[str] = (), within: int | None = None
    ) -> Answer:
        """The `k` items nearest to an image file or to its bytes, and the labels predicted for it.

        Only items that carry all `labels`, and none farther than `within` bits.
        """
        encoder = self._encoder()
        pixels = encoder.pixels_of(source if isinstance(source, bytes) else Path(source))
        features = encoder.features([pixels])
        explained = list(self.model.explain_features(features)[0]) if self.model.has_centers else []
        return self._answer(
            pack(self.model.encode_features(features)),
            k,
            labels,
            within,
            [e for e in explained if e.weight > 0],
        )

    def by_id(self, id: str, k: int = 10, labels: Sequence[str] = (), within: int | None = None) -> Answer:
        """The `k` items nearest to an item of the collection, which is left out itself."""
        item = self.index.get([id])[0]
        code = unpack(item.code[None], self.model.bits)[0]
        explained = labels_of_code(self.model, code, item.labels) if self.model.has_centers else []
        return self._answer(item.code[None], k, labels, within, explained, without=id)

    def by_labels(
        self, weights: Mapping[str, float], k: int = 10, labels: Sequence[str] = (), within: int | None = None
    ) -> Answer:
        """The `k` items nearest to a code between the labels' centers (`label_code`); only for central methods."""
        code, explained = query_of_labels(self.model, weights)
        return self._answer(pack(code[None]), k, labels, within, explained)

    def get(self, id: str) -> Found:
        """One item by its id, at distance 0; InputError when there is none."""
        return as_found(self.index.get([id])[0], 0, self.uploads)

    def image(self, id: str) -> Path:
        """The image file of an item, as the index knows it; no other file is ever named."""
        item = self.index.get([id])[0]
        if item.path is None:
            raise InputError(f"the item '{id}' has no image: only its code was imported.")
        return self.uploads.path(item.path)

    def find(self, ids_or_paths: Sequence[str | Path]) -> dict[str, list[str]]:
        """The ids that each id, path of an image or folder of images means; an empty list where it means none.

        Paths are compared with all those stored, one after the other, so that files which are gone can be named.
        """
        entries = list(dict.fromkeys(map(str, ids_or_paths)))
        found = {entry: [entry] if _fits(entry) and entry in self.index else [] for entry in entries}
        # unlike Path.resolve, realpath also takes links that lead to themselves
        places = {Path(os.path.realpath(entry)): entry for entry in entries if not found[entry]}
        for item in self.items() if places else ():
            if item.path is not None:
                path = self.uploads.path(item.path)
                for place in (path, *path.parents):
                    if place in places:
                        found[places[place]].append(str(item.id))
        return found

    def items(self) -> Iterator[Item]:
        """All items, in the order of their ids."""
        ids = self.index.ids()
        while page := list(islice(ids, _PAGE)):
            yield from self.index.get(page)

    def info(self) -> dict[str, Any]:
        """What a user asks first: engine, model, size and labels."""
        return {
            "folder": str(self.folder),
            "engine": self.spec.engine,
            "exact": self.index.exact,
            "items": len(self.index),
            "uploads": sum(1 for _ in self.uploads.files()),
            "bits": self.model.bits,
            "method": self.model.spec.method,
            "backbone": self.model.spec.backbone,
            "classes": len(self.model.classes),
            "labels": self.index.labels(),
            "index": _call(self.index, "info") or {},
        }

    def verify(self) -> list[str]:
        """What is damaged, one sentence each, naming the file; an empty list when all is well."""
        problems = [*(_call(self.index, "verify") or []), *self.uploads.damaged()]
        for item in self.items() if not problems else ():  # a damaged index cannot be gone through
            if item.path is not None and self.uploads.holds(item.path):
                file = self.uploads.path(item.path)
                if not file.is_file():
                    problems.append(f"'{file}', the picture of the item '{item.id}', is missing.")
        return problems

    @property
    def used_engine(self) -> Engine | None:
        """What runs the network; None until a picture has been read."""
        return None if self._loaded is None else self._loaded.used_engine

    def refresh(self) -> None:
        """See what another process has written since this one opened the collection."""
        _call(self.index, "refresh")

    def close(self) -> None:
        """Give back files, connections and the right to write; a second call does nothing."""
        with self._lock:  # a change that runs is finished first
            self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- how

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError(
                f"'{self.folder}' was opened for reading only: open it for writing to change it."
            )

    def _encoder(self) -> ImageEncoder:
        with self._loading:
            if self._loaded is None:
                self._loaded = ImageEncoder(self.model, self.device, self.max_pixels, self.inference)
            return self._loaded

    def _answer(
        self,
        packed: Packed,
        k: int,
        labels: Sequence[str],
        within: int | None,
        explained: list[Explained],
        without: str | None = None,
    ) -> Answer:
        hits = nearest(self.index, packed, k, labels, within, without)
        found = [as_found(item, distance, self.uploads) for item, distance in hits]
        return Answer(found, explained, packed[0])


def verify_collection(folder: str | Path) -> list[str]:
    """What is damaged in a collection, also in one that is too damaged to be opened; InputError if it is none."""
    if not (Path(folder) / SPEC).is_file():
        read_spec(Path(folder))  # says what to do
    try:
        with Collection.open(folder, read_only=True) as collection:
            return collection.verify()
    except DataError as error:
        return [str(error)]


def _call(index: HammingIndex, name: str) -> Any:
    """Call what only some engines have: a database looks after itself."""
    method = getattr(index, name, None)
    return None if method is None else method()


def _fits(entry: str) -> bool:
    """Whether a text can be an id at all."""
    try:
        return 1 <= len(entry.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False
