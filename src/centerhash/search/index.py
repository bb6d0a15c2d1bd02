"""An index: the folder that makes images searchable, with the model that made their codes.

    index.json          what this folder is: store, bits, classes
    model/              a copy of the model, so that the index stands on its own
    items/              codes, ids, labels, paths and looks, in a flat store; Milvus keeps them itself
    images/             only images that came without a file: uploads, named by their id

The id of an image is the first 16 letters of the SHA-256 of its bytes: the same image is stored once, whatever
its name.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from centerhash.codes import Packed, pack
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError
from centerhash.core.files import refuse_links
from centerhash.core.progress import Progress, resolve_progress
from centerhash.search.engines.base import HammingIndex, Item, Seen
from centerhash.search.engines.table import open_store
from centerhash.search.facts import ModelFacts, read_facts
from centerhash.search.folder import (
    ITEMS,
    MODEL,
    OWN,
    IndexSpec,
    create_folder,
    problems,
    read_spec,
    spec_file,
)
from centerhash.search.label_query import LabelQuestion
from centerhash.search.parts import seen_in, visual_of
from centerhash.search.questions import ask, filter_of, question_of
from centerhash.search.results import Added, Result, Results, as_result
from centerhash.search.transfer import add_codes, import_codes
from centerhash.search.uploads import ID_LETTERS, Uploads, has_file

if TYPE_CHECKING:  # what reads images takes long to import, so it is when the first one comes
    from centerhash.data.images import ImageSource
    from centerhash.model.model import HashModel
    from centerhash.networks.encoder import Encoder
    from centerhash.networks.engines import Engine
    from centerhash.search.adding import GivenLabels
    from centerhash.search.duplicates import Duplicates

__all__ = ["Added", "Index", "Result", "Results", "verify_index"]


class Index:
    """Images that can be searched, with their model; `create` or `open` one. Safe to use from several threads."""

    def __init__(self, folder: Path, spec: IndexSpec, facts: ModelFacts, store: HammingIndex) -> None:
        self.folder, self.spec, self.facts, self.store = folder, spec, facts, store
        self.read_only, self.closed = False, False
        self.uploads = Uploads(folder)
        self._encoding: dict[str, Any] = {}  # how images are read: device, engine, max_pixels
        self.lock = threading.RLock()  # one thread changes it at a time; searches do not wait
        self._model: HashModel | None = None
        self._loaded: Encoder | None = None

    @property
    def model(self) -> HashModel:
        """The model that makes the codes; it is loaded when it is first needed."""
        with self.lock:
            if self._model is None:
                from centerhash.model.model import HashModel

                self._model = HashModel.load(self.folder / MODEL)
            return self._model

    @classmethod
    def create(
        cls, folder: str | Path, model: HashModel | str | Path = "coco", *, store: str = "flat"
    ) -> Self:
        """Make an empty index for the codes of a model, of the one in a run's folder, or the built-in one; open it.

        `store` says where the items live: "flat", or "milvus:ADDRESS", with "#NAME" for the name there.
        """
        from centerhash.model.model import HashModel

        if not isinstance(model, HashModel | str | Path):
            raise InputError(f"model must be a HashModel or the folder of a run, got {type(model).__name__}.")
        create_folder(Path(folder), model if isinstance(model, HashModel) else HashModel.load(model), store)
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

        Images are read on `device`, and refused from `max_pixels` on, 100 million unless given. `engine` runs the
        network: "torch", "onnx", "openvino", or "auto" for the fastest one here.
        """
        place = Path(folder)
        spec = read_spec(place)
        refuse_links(place, OWN)
        facts = read_facts(place / MODEL)
        store = open_store(spec.store, place / ITEMS, read_only=read_only)
        if not store.bits == facts.bits == spec.bits or facts.classes != spec.classes:
            store.close()
            raise DataError(
                f"'{place}' is of {spec.bits} bits, its model of {facts.bits}, its items of {store.bits}, or their "
                "classes differ: it is damaged, or its parts are of different indexes. Create it again."
            )
        index = cls(place, spec, facts, store)
        index.read_only = read_only
        index._encoding = {"device": device, "engine": engine}
        if max_pixels is not None:
            index._encoding["max_pixels"] = max_pixels
        return index

    # --- changing it

    def add(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        labels: GivenLabels = None,
        progress: bool | Progress = True,
        batch: int = 256,
    ) -> Added:
        """Add images: files, folders, patterns. Every `batch` of new ones is stored durably before the next.

        A kill loses at most the batch in work, and the same call resumes: what is there is skipped by content.
        Labels come from the labels.csv in a folder or above it, and are predicted by the model for all other images;
        `labels` "given", "predicted" or "none" chooses, or a mapping gives those of single images by their paths.
        An image whose stored path leads nowhere any more gets the new one, and is not encoded again.
        """
        from centerhash.search.adding import Adding, images_and_labels, listed

        self._check_writable()
        if type(batch) is not int or batch < 1:
            raise InputError(f"batch must be a whole number of at least 1, got {batch!r}.")
        files, labelling = images_and_labels(self.model, listed(images, "images"), labels)
        work = Adding(self.store, self.model, self.uploads, self.lock, labelling)
        with resolve_progress(progress) as report:
            done = work.run(files.images, self.encoder(), batch, report)
        return replace(done, skipped=files.skipped)

    def add_bytes(self, data: bytes, name: str = "") -> Result:
        """Add an image that has no file; its bytes are kept in images/. One that is there already stays as it is.

        `name` is what error texts call it.
        """
        from centerhash.search.adding import holds_with_file

        self._check_writable()
        if not isinstance(data, bytes):
            raise InputError(f"the bytes of an image file are needed, got {type(data).__name__}.")
        try:
            features = self.encoder().features([data])
        except ImageError as error:
            raise ImageError(
                str(error).replace("image bytes", f"'{name}'" if name else "image bytes")
            ) from None
        id = hashlib.sha256(data).hexdigest()[:ID_LETTERS]
        with self.lock:
            if not holds_with_file(self.store, self.uploads, id):
                # first: an item without its image is worse than an image without its item
                path = self.uploads.write(id, data)
                packed = pack(self.model.encode_features(features))
                self.store.remove([id])  # there when its own file is gone
                labels = self.model.label_names(features)
                looks, seen = visual_of(self.model, features), seen_in(self.model, features, labels)
                self.store.add(packed, [id], labels, [path], looks, seen)
            return self.get(id)

    def add_codes(
        self,
        packed: Packed,
        ids: Sequence[object],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
        visual: Sequence[Packed | None] | None = None,
        seen: Sequence[Seen] | None = None,
    ) -> Added:
        """Add codes (N, ceil(K/8)) that the same model made elsewhere; known ids are skipped.

        Ids are texts: numbers become such. Items without a visual code, or of which no presences are `seen`, are
        searched by what they have.
        """
        self._check_writable()
        return add_codes(self, packed, ids, labels, paths, visual, seen)

    def import_codes(self, path: str | Path) -> Added:
        """Add the codes of a code file or of a folder of parts; see `transfer.import_codes`."""
        return import_codes(self, path)

    def export(self, path: str | Path, to: str = "npz", *, progress: bool | Progress = True) -> int:
        """Write all items for other programs, and return how many: "npz", "npy", "parquet", "faiss" or "pgvector"."""
        from centerhash.search.formats import export_items

        with resolve_progress(progress) as report:
            return export_items(self, Path(path), to, report)

    def remove(self, ids_or_paths: str | Path | Sequence[str | Path]) -> int:
        """Remove items by id, by the path of their image or by a folder of it; return how many there were."""
        self._check_writable()
        with self.lock:
            ids = list(dict.fromkeys(id for found in self.find(ids_or_paths).values() for id in found))
            items = self.store.get(ids)
            removed = self.store.remove(ids)
            for item in items:
                if item.path is not None and self.uploads.holds(item.path):
                    self.uploads.drop(self.folder / item.path)
        return removed

    def compact(self) -> None:
        """Give back the space of removed items, and of uploads that a kill kept from being indexed."""
        self._check_writable()
        with self.lock:
            self.store.compact()
            for file in self.uploads.files():
                if file.stem not in self.store:
                    self.uploads.drop(file)

    # --- asking it

    def search(
        self,
        image: ImageSource | None = None,
        *,
        id: str | None = None,
        labels: LabelQuestion | None = None,
        k: int = 10,
        by: str = "both",
        having: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        under: str | Path | None = None,
        within: int | None = None,
    ) -> Results:
        """The `k` items nearest to one image, to an item of the index by its `id`, or to `labels` with weights.

        An image is a path, bytes, a PIL image or a uint8 array (height, width, 3). Labels are a mapping of names to
        weights, a list of names, or a text such as "dog:0.7, person:0.3", and need a central method. `by` is "both"
        (semantic distance with a small part of the visual one; presence and shares of labels), "look" (visual codes
        alone) or "meaning" (semantic codes alone). Only items that carry all labels of `having` and none of `without`
        are found, with files `under` a folder, and none farther than `within` bits. An item does not find itself.
        """
        only = filter_of(self.store, self.facts, self.folder, having, without, under)
        question = question_of(self, image, id, labels)
        hits = ask(self.store, self.facts, question, k, by, only, within)
        asked = None if question.weights is None else list(question.weights)
        found = [as_result(item, far, self.uploads, question.visual, asked) for item, far in hits]
        return Results(found, question.explained, question.code, len(self))

    def duplicates(
        self, *, near: int | None = None, kind: str | None = None, progress: bool | Progress = True
    ) -> Duplicates:
        """Groups of items that are the same photo or look alike, and which to keep: see `search.duplicates`."""
        from centerhash.search.duplicates import index_duplicates

        return index_duplicates(self, near=near, kind=kind, progress=progress)

    def get(self, id: str) -> Result:
        """One item by its id, at distance 0; InputError when there is none."""
        return as_result(self.store.get([id])[0], 0, self.uploads)

    def image(self, id: str) -> Path:
        """The image file of an item, as the index knows it; no other file is ever named. An upload is unchanged."""
        path = self.get(id).path
        if path is None:
            raise InputError(f"the item '{id}' has no image: only its code was imported.")
        return self.uploads.checked(Path(path))

    def find(self, ids_or_paths: str | Path | Sequence[str | Path]) -> dict[str, list[str]]:
        """The ids that each id, path of an image or folder of images means; an empty list where it means none.

        Paths are compared with all those stored, one after the other, so that files which are gone can be named.
        """
        from centerhash.search.adding import find_items

        return find_items(self, ids_or_paths)

    def items(self) -> Iterator[Item]:
        """All items, in the order of their ids."""
        return self.store.items()

    def missing(self) -> list[str]:
        """The ids of the images whose file is gone: they are found, but cannot be shown.

        To mend it, `add` the place where the files are now, or `remove` these ids.
        """
        return [str(id) for id, path in self.store.paths() if not has_file(self.uploads, path)]

    def labels(self) -> dict[str, int]:
        """Every label that some item carries, with the number of items, in the order of the names."""
        return self.store.labels()

    def info(self) -> dict[str, Any]:
        """What a user asks first: store, model, size and labels."""
        return {
            "index": str(self.folder),
            "store": self.spec.store,
            "size": len(self),
            "uploads": sum(1 for _ in self.uploads.files()),
            "missing": len(self.missing()),
            "bits": self.facts.bits,
            "method": self.facts.method,
            "backbone": self.facts.backbone,
            "classes": len(self.facts.classes),
            "labels": self.labels(),
            "details": self.store.info(),
        }

    def verify(self) -> list[str]:
        """What is damaged, one sentence each, naming the file; an empty list when all is well."""
        return problems(self)

    @property
    def used_engine(self) -> Engine | None:
        """What runs the network; None until an image has been read."""
        return None if self._loaded is None else self._loaded.used_engine

    def refresh(self) -> bool:
        """See what another process has written since this one opened the index; say whether there was something."""
        return self.store.refresh()

    def close(self) -> None:
        """Give back files, connections and the right to write; a second call does nothing."""
        with self.lock:  # a change that runs is finished first
            self.closed = True
            self.store.close()

    def __len__(self) -> int:
        return len(self.store)

    def __bool__(self) -> bool:
        return True  # an index is there, also an empty one

    def __contains__(self, id: object) -> bool:
        return id in self.store

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def __repr__(self) -> str:
        size = "closed" if self.closed else f"{len(self):,} items"
        return f"Index('{self.folder}', {size}, {self.facts.bits} bits, {self.spec.store})"

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

    def encoder(self) -> Encoder:
        """What reads images: the model loads it once."""
        if self.facts.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images: "
                "search by an id or by labels, add codes with `centerhash index import`, or train on images."
            )
        self._loaded = self._loaded or self.model.encoder(**self._encoding)
        return self._loaded


def verify_index(folder: str | Path) -> list[str]:
    """What is damaged in an index, also in one that is too damaged to be opened; InputError if it is none."""
    if spec_file(Path(folder)) is None:
        read_spec(Path(folder))  # says what to do
    try:
        with Index.open(folder, read_only=True) as index:
            return index.verify()
    except InputError as error:
        return [str(error)]
