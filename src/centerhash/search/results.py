"""What a search answers: results in order, the labels of the question, and how a notebook shows them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import Any, overload

from PIL import Image

from centerhash.codes import Codes, Packed
from centerhash.core.errors import ImageError, InputError
from centerhash.core.tables import to_frame
from centerhash.data.images import load_image
from centerhash.model import Explained
from centerhash.search.engines.base import HammingIndex, Id, Item
from centerhash.search.uploads import Uploads

_SHOWN = 50  # results with a thumbnail in a notebook: more would make it large
_SIDE = 128  # pixels of a thumbnail's longer side


@dataclass(frozen=True)
class Result:
    """One item of an answer; `path` is absolute, or None for an item without an image."""

    id: str
    distance: int
    labels: tuple[str, ...]
    path: str | None


class Results(Sequence[Result]):
    """What a search found, nearest first, equal distances in the order of their ids.

    `labels` explain the question, where the method has centers; `code` (K,) is what was searched by; `size` is the
    number of items in the index.
    """

    def __init__(self, found: Sequence[Result], labels: Sequence[Explained], code: Codes, size: int) -> None:
        self._found = tuple(found)
        self.labels, self.code, self.size = tuple(labels), code, size

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, place: int) -> Result: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Result, ...]: ...
    def __getitem__(self, place: int | slice) -> Result | tuple[Result, ...]:
        return self._found[place]

    def to_dict(self) -> dict[str, Any]:
        """What `centerhash search --json` prints, and the server answers."""
        return {
            "labels": [asdict(row) for row in self.labels],
            "results": [{**asdict(row), "labels": list(row.labels)} for row in self],
            "bits": len(self.code),
            "size": self.size,
        }

    def to_pandas(self) -> Any:
        """A DataFrame with the columns id, distance, labels and path."""
        return to_frame([asdict(row) for row in self]).reindex(
            columns=[field.name for field in fields(Result)]
        )

    def __repr__(self) -> str:
        nearest = f", nearest {self[0].id!r} at distance {self[0].distance}" if self else ""
        return f"Results({len(self):,} of {self.size:,} items{nearest})"

    def _repr_html_(self) -> str:
        asked = ", ".join(f"{row.label} {row.weight:.2f}" for row in self.labels)
        more = f"<p>and {len(self) - _SHOWN:,} more</p>" if len(self) > _SHOWN else ""
        figures = "".join(_figure(row) for row in self[:_SHOWN])
        return (
            f"<p>{escape(repr(self))}{': ' + escape(asked) if asked else ''}</p>"
            f'<div style="display:flex;flex-wrap:wrap;gap:8px">{figures}</div>{more}'
        )


def _figure(row: Result) -> str:
    """One result for a notebook; a file that is missing or broken has an empty frame."""
    frame = f"width:{_SIDE}px;height:{_SIDE}px;object-fit:contain;background:#8882"
    shown = f'<div style="{frame}">no image</div>'
    if row.path is not None:
        with suppress(ImageError):
            shown = f'<img style="{frame}" src="{thumbnail(Path(row.path))}">'
    name = escape(row.path or row.id, quote=True)
    caption = f"{row.distance}: {escape(', '.join(row.labels) or row.id)}"
    return (
        f'<figure title="{name}" style="margin:0;width:{_SIDE}px;font-size:11px;overflow-wrap:anywhere">'
        f"{shown}<figcaption>{caption}</figcaption></figure>"
    )


def thumbnail(path: Path, side: int = _SIDE) -> str:
    """A small JPEG, its longer side of `side` pixels, as an address that holds its own data."""
    image, stream = load_image(path, at_least=side), io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    image.save(stream, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def nearest(
    store: HammingIndex,
    packed: Packed,
    k: int,
    having: Sequence[str],
    within: int | None,
    without: str | None = None,
) -> Iterator[tuple[Item, int]]:
    """The `k` items nearest to one code (1, ceil(K/8)), with their distances; the id `without` is left out."""
    if type(k) is not int or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}.")
    if within is not None and not (type(within) is int and 0 <= within <= store.bits):
        raise InputError(f"within must be 0 to {store.bits}, the number of bits, got {within!r}.")
    hits = store.search(packed, k if without is None else k + 1, having)[0]
    near = [hit for hit in hits if hit[0] != without and (within is None or hit[1] <= within)]
    return _looked_up(store, near[:k])


def _looked_up(store: HammingIndex, near: Sequence[tuple[Id, int]]) -> Iterator[tuple[Item, int]]:
    """The items of hits, without those that another thread has removed since the search."""
    while True:
        try:
            items = store.get([id for id, _ in near])
        except InputError:
            left = [hit for hit in near if hit[0] in store]
            if len(left) == len(near):
                raise
            near = left
            continue
        return zip(items, (distance for _, distance in near), strict=True)


def as_result(item: Item, distance: int, uploads: Uploads) -> Result:
    """An item as users see it."""
    path = None if item.path is None else str(uploads.path(item.path))
    return Result(str(item.id), distance, tuple(item.labels), path)


def missing_text(folder: Path, count: int) -> str:
    """Say that files of an index's images are gone, and how to mend it."""
    return (
        f"the files of {count:,} images are gone: `centerhash index add {folder} FOLDER` finds them in the folder where "
        f"they are now, `centerhash index remove {folder} --missing` drops them."
    )
