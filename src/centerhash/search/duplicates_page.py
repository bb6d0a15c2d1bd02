"""The page of duplicates: one HTML file that needs nothing else to be opened, thumbnails side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from centerhash.core.errors import ImageError
from centerhash.core.files import write_text
from centerhash.core.rendering import templates_of
from centerhash.search.results import thumbnail

if TYPE_CHECKING:
    from centerhash.search.duplicates import Duplicates, Photo

MOST_GROUPS = 500  # of each kind; a page with more thumbnails is too large to open
MEANINGS = {
    "same": "Equal files: every byte is the same.",
    "near": "The same photo: encoded again, resized, brightened, cropped a little or mirrored.",
    "similar": "Photos that look alike. They are different photos: look before you remove one.",
}


def write_page(found: Duplicates, path: Path) -> None:
    """Write the page of the groups that were found."""
    templates = templates_of("centerhash.search")
    page = templates.get_template("duplicates.html").render(
        found=found,
        kinds=[(kind, text, found.of_kind(kind)) for kind, text in MEANINGS.items()],
        most=MOST_GROUPS,
        shown=_shown,
        size=decimal,
        folder=common_folder([one.path for group in found for one in group.photos if one.path is not None]),
    )
    write_text(path, page)


def common_folder(paths: Sequence[str]) -> str:
    """The folder that all paths lie in, with its separator, so that names need not repeat it; "" where there is none."""
    parents = [Path(path).parents for path in paths]
    shared = set.intersection(*(set(map(str, each)) for each in parents)) if parents else set()
    longest = max(shared, key=len, default="")
    return "" if longest in ("", ".", "/") else str(Path(longest) / "x")[:-1]


def _shown(photo: Photo) -> str | None:
    """The thumbnail as an address that holds its own data; None where there is no readable file."""
    if photo.path is not None:
        with suppress(ImageError):
            return thumbnail(Path(photo.path), 240)
    return None
