"""What a search answers: results in order, the labels of the question, and how a notebook shows them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.codes import Codes, Packed
from centerhash.core.errors import ImageError
from centerhash.core.rendering import Listed, to_frame
from centerhash.model.explanation import Explained
from centerhash.search.engines.base import Item
from centerhash.search.uploads import Uploads

_SHOWN = 50  # results with a thumbnail in a notebook: more would make it large
_SIDE = 128  # pixels of a thumbnail's longer side


@dataclass(frozen=True)
class Added:
    """What became of the images of one `add`: how many are new, how many were there, why others cannot be read.

    `moved` counts those that were there by a path at which there is no file any more: they now have the new path.
    Of the new ones, so many have the labels that were `given`, and so many what the model `predicted`. `skipped`
    counts the files in the folders that are no images, by kind, such as {"videos": 3}.
    """

    added: int
    known: int
    broken: dict[str, str]
    moved: int = 0
    given: int = 0
    predicted: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        moved = f", moved={self.moved:,}" if self.moved else ""
        return f"Added(added={self.added:,}, known={self.known:,}, broken={len(self.broken):,}{moved})"


@dataclass(frozen=True)
class Result:
    """One item of an answer; `path` is absolute, or None for an item without an image.

    `look` is the distance of the visual codes, None where the question or the item has none. `presence` and `share`
    are those of the labels asked for, else of the labels it carries; None where none are stored.
    """

    id: str
    distance: int  # of the semantic codes
    labels: tuple[str, ...]
    path: str | None
    look: int | None = None
    presence: Mapping[str, float] | None = None
    share: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""
        return {**vars(self), "labels": list(self.labels)}  # dataclasses.asdict takes ten times as long


class Results(Listed[Result]):
    """What a search found, the best first.

    `labels` explain the question, where the method has centers; `code` (K,) is what was searched by; `size` is the
    number of items in the index.
    """

    def __init__(self, found: Sequence[Result], labels: Sequence[Explained], code: Codes, size: int) -> None:
        super().__init__(found)
        self.labels, self.code, self.size = tuple(labels), code, size

    def to_dict(self, shown: Callable[[Result], dict[str, Any]] = Result.to_dict) -> dict[str, Any]:
        """What `centerhash search --json` prints, and the server answers, each result as it is to be `shown`."""
        return {
            "labels": [asdict(row) for row in self.labels],
            "results": [shown(row) for row in self],
            "bits": len(self.code),
            "size": self.size,
        }

    def to_pandas(self) -> Any:
        """A DataFrame with a row per result, its columns the fields of `Result`."""
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
    from PIL import Image

    from centerhash.data.images import load_image

    image, stream = load_image(path, at_least=side), io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    image.save(stream, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def as_result(
    item: Item,
    distance: int,
    uploads: Uploads,
    visual: Packed | None = None,
    asked: Sequence[str] | None = None,
) -> Result:
    """An item as users see it, by the visual code (16,) and the labels of the question, if it has any."""
    place = None if item.path is None else uploads.path(item.path)
    path = None if place is None else str(place)
    compared = visual is not None and item.visual is not None
    look = int(np.bitwise_count(item.visual ^ visual).sum()) if compared else None  # type: ignore[operator]
    names = item.labels if asked is None else asked
    presence, share = (item.presence(names), item.shares(names)) if item.seen else (None, None)
    return Result(str(item.id), distance, tuple(item.labels), path, look, presence, share)


def missing_text(folder: Path, count: int) -> str:
    """Say that files of an index's images are gone, and how to mend it."""
    return (
        f"the files of {count:,} images are gone: `centerhash index add {folder} FOLDER` finds them in the folder where "
        f"they are now, `centerhash index remove {folder} --missing` drops them."
    )
