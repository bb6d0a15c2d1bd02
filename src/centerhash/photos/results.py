"""Results of a search for photos, and how a notebook shows them."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Any, Self

from centerhash.codes import Codes
from centerhash.core.errors import ImageError
from centerhash.core.rendering import RowSequence, to_frame
from centerhash.index import Item, Result
from centerhash.index.query import as_result
from centerhash.model.base import LabelMatch
from centerhash.photos.files import ATTRIBUTES
from centerhash.photos.thumbnails import thumbnail

_EPOCH = datetime(1970, 1, 1)
_MAX_THUMBNAILS, _SIDE = 50, 128


@dataclass(frozen=True)
class PhotoResult(Result):
    """Describe one photo, as `Result` does, and its files: `paths` are the present ones, `path` is the first of them.

    `taken` is the time by the clock of the camera, otherwise the time when the file was modified.
    """

    paths: tuple[str, ...] = ()
    path: str | None = None
    taken: datetime | None = None
    width: int | None = None
    height: int | None = None

    @classmethod
    def of(cls, row: Result | Item, paths: Sequence[str]) -> Self:
        """Return a result of the index, or an item at distance 0, as a photo with these files."""
        row = as_result(row, row.code, None, None) if isinstance(row, Item) else row
        taken, width, height = (row.attributes.get(name) for name in ATTRIBUTES)
        return cls(
            **vars(row),
            paths=tuple(paths),
            path=paths[0] if paths else None,
            taken=None if taken is None else _EPOCH + timedelta(seconds=float(taken)),
            width=None if width is None else int(width),
            height=None if height is None else int(height),
        )

    @property
    def name(self) -> str | None:
        """Return the name of the first file."""
        return None if self.path is None else os.path.basename(self.path)  # noqa: PTH119 - called for many photos

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        taken = None if self.taken is None else self.taken.isoformat()
        values = {**super().to_dict(), "paths": list(self.paths), "name": self.name, "taken": taken}
        return {name: value for name, value in values.items() if name not in ("key", "attributes")}


class PhotoResults(RowSequence[PhotoResult]):
    """Hold the results of a search, best first.

    `labels` explain the query if the method has centers. `code` (K,) is the semantic code of the query, None if nothing
    was ranked, and `size` the number of photos in the index.
    """

    def __init__(
        self, rows: Sequence[PhotoResult], labels: Sequence[LabelMatch], code: Codes | None, size: int
    ) -> None:
        super().__init__(rows)
        self.labels, self.code, self.size = tuple(labels), code, size

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `centerhash photos search --json`."""
        return {
            "labels": [asdict(row) for row in self.labels],
            "results": [row.to_dict() for row in self],
            "size": self.size,
        }

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per result."""
        rows = [{**row.to_dict(), "taken": row.taken} for row in self]
        return to_frame(rows).reindex(columns=list(PhotoResult("", 0, 0).to_dict()))

    def __repr__(self) -> str:
        nearest = f", nearest {self[0].path or self[0].id!r} at distance {self[0].distance}" if self else ""
        return f"PhotoResults({len(self):,} of {self.size:,} photos{nearest})"

    def _repr_html_(self) -> str:
        query = ", ".join(f"{row.label} {row.weight:.2f}" for row in self.labels)
        more = f"<p>and {len(self) - _MAX_THUMBNAILS:,} more</p>" if len(self) > _MAX_THUMBNAILS else ""
        figures = "".join(map(_figure, self[:_MAX_THUMBNAILS]))
        return (
            f"<p>{escape(repr(self))}{': ' + escape(query) if query else ''}</p>"
            f'<div style="display:flex;flex-wrap:wrap;gap:8px">{figures}</div>{more}'
        )


def _figure(row: PhotoResult) -> str:
    """Return one result for a notebook; a file that is missing or broken has an empty frame."""
    frame = f"width:{_SIDE}px;height:{_SIDE}px;object-fit:contain;background:#8882"
    picture = f'<div style="{frame}">no image</div>'
    if row.path is not None:
        with suppress(ImageError):
            content = base64.b64encode(thumbnail(row.path, _SIDE)).decode()
            picture = f'<img style="{frame}" src="data:image/jpeg;base64,{content}">'
    caption = f"{row.distance}: {escape(', '.join(row.labels) or row.id)}"
    return (
        f'<figure title="{escape(row.path or row.id, quote=True)}" '
        f'style="margin:0;width:{_SIDE}px;font-size:11px;overflow-wrap:anywhere">'
        f"{picture}<figcaption>{caption}</figcaption></figure>"
    )
