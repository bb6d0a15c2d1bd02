"""Results of a search and of an `add`, and how a notebook shows them."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.codes import Codes, Packed
from centerhash.core.errors import ImageError
from centerhash.core.rendering import Listed, to_frame
from centerhash.model.base import Explained
from centerhash.search.items import Item
from centerhash.search.rankings import NEAR
from centerhash.search.teaching import PRESENT, PackedCodes, Taught
from centerhash.search.uploads import Uploads

_EPOCH = datetime(1970, 1, 1)
_SHOWN = 50  # results with a thumbnail in a notebook: more would make it large
_SIDE = 128  # pixels of a thumbnail's longer side


@dataclass(frozen=True)
class Added:
    """Counts of one `add`: new images, images that were stored already, and why others cannot be read.

    `moved` images were stored under a path that no longer exists, and have the new path now. Of the new images, `given`
    have the labels of a labels.csv or of the caller, `predicted` those of the model. `skipped` counts files in the
    folders that are no images, by kind, such as {"videos": 3}. `gone` counts stored files that are no longer in the
    folders; images without another file are hidden until they are back. `removed` counts files of images that were
    removed from the index, which a scan of their folder skips.
    """

    added: int
    known: int
    broken: dict[str, str]
    moved: int = 0
    given: int = 0
    predicted: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    gone: int = 0
    removed: int = 0

    @property
    def has_changed(self) -> bool:
        """Return whether anything is other than before."""
        return bool(self.added or self.moved or self.gone or self.broken)

    def __repr__(self) -> str:
        more = "".join(
            f", {name}={getattr(self, name):,}"
            for name in ("moved", "gone", "removed")
            if getattr(self, name)
        )
        return f"Added(added={self.added:,}, known={self.known:,}, broken={len(self.broken):,}{more})"


@dataclass(frozen=True)
class Result:
    """Describe one result; `path` is absolute, or None for an item without an image, `paths` are all of them.

    `taken` is by the clock of the camera (EXIF), otherwise when the file was modified; `name` is that of the file.

    `visual` is the distance of the visual codes, None if the query or the item has none. `probability` and `share` are
    those of the labels of the query, otherwise of the labels that the item carries; None if none are stored.
    """

    id: str
    distance: int  # of the semantic codes
    labels: tuple[str, ...]
    path: str | None
    visual: int | None = None
    probability: Mapping[str, float] | None = None
    share: Mapping[str, float] | None = None
    paths: tuple[str, ...] = ()  # of equal files, sorted
    name: str | None = None
    taken: datetime | None = None
    camera: str | None = None
    width: int | None = None  # pixels of the upright image
    height: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        # dataclasses.asdict takes ten times as long
        taken = None if self.taken is None else self.taken.isoformat()
        return {**vars(self), "labels": list(self.labels), "paths": list(self.paths), "taken": taken}


class Results(Listed[Result]):
    """Hold the results of a search, best first.

    `labels` explain the query if the method has centers. `code` (K,) is the semantic code of the query, and `size` the
    number of items in the index.
    """

    def __init__(self, found: Sequence[Result], labels: Sequence[Explained], code: Codes, size: int) -> None:
        super().__init__(found)
        self.labels, self.code, self.size = tuple(labels), code, size

    def to_dict(self) -> dict[str, Any]:
        """Return what `centerhash search --json` prints."""
        return {
            "labels": [asdict(row) for row in self.labels],
            "results": [row.to_dict() for row in self],
            "bits": len(self.code),
            "size": self.size,
        }

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per result and the fields of `Result`."""
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
    """Return an item as users see it, compared with the visual codes (V, 16) and the labels of the query, if any."""
    paths = tuple(str(place) for path in item.paths if (place := uploads.path(path)) is not None)
    apart = None
    if visual is not None and item.visual is not None:
        every = np.bitwise_count(item.visual ^ visual).sum(axis=1)
        apart = int(
            every.min() if every.min() <= NEAR else every[0]
        )  # only copies are compared with every view
    names = item.labels if asked is None else asked
    probability, share = (item.probabilities(names), item.shares(names)) if item.scores else (None, None)
    path, photo = (paths[0] if paths else None), item.photo
    return Result(
        item.id,
        distance,
        item.labels,
        path,
        apart,
        probability,
        share,
        paths,
        photo.name or (None if path is None else os.path.basename(path)),  # noqa: PTH119 - of many items
        None if photo.taken is None else wall_clock(photo.taken),
        photo.camera,
        photo.width,
        photo.height,
    )


def taught_probabilities(items: Sequence[Item], taught: Mapping[str, Taught]) -> list[dict[str, float]]:
    """Return the probabilities of all taught labels for each item, 1 or 0 for their examples."""
    found: list[dict[str, float]] = [{} for _ in items]
    if not items:
        return found
    codes = PackedCodes.of_codes([item.code for item in items], [item.visual for item in items])
    for name, label in taught.items():
        examples = {one.id: float(one.like) for one in label.examples}
        for item, row, likely in zip(items, found, label.probabilities(codes).tolist(), strict=True):
            row[name] = examples.get(item.id, likely)
    return found


def add_taught(
    results: Sequence[Result],
    items: Sequence[Item],
    taught: Mapping[str, Taught],
    asked: Sequence[str] | None = None,
) -> list[Result]:
    """Return results with the taught labels that their items carry, and the probabilities of those or of the query."""
    if not taught:
        return list(results)
    found = []
    for result, likely in zip(results, taught_probabilities(items, taught), strict=True):
        carried = [name for name, value in likely.items() if value >= PRESENT and name not in result.labels]
        shown = [name for name in (carried if asked is None else asked) if name in likely]
        probability = {**(result.probability or {}), **{name: likely[name] for name in shown}}
        found.append(
            replace(result, labels=(*result.labels, *carried), probability=probability or result.probability)
        )
    return found


def wall_clock(taken: float) -> datetime:
    """Return the date and time that the clock of a camera showed, without a time zone."""
    return _EPOCH + timedelta(seconds=taken)


def missing_text(folder: Path, count: int) -> str:
    """Return the warning that files of images are missing, and how to fix it."""
    return (
        f"the files of {count:,} images are missing: `centerhash index add {folder} FOLDER` finds them in the folder to "
        f"which they were moved, `centerhash index remove {folder} --missing` removes them from the index."
    )
