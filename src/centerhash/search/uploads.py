"""Images that came without a file: kept in the index's own folder, named by their id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from centerhash.core.errors import DataError, ImageError, OutputError
from centerhash.core.files import atomic, refuse_links

IMAGES = "images"
ID_DIGITS = 16  # of the SHA-256 of an image's bytes: 64 bits; a million images collide with odds of 1 : 4e7

_MOST_BYTES = 1 << 31  # of an upload
_NAME = re.compile(rf"{IMAGES}/[0-9a-f]{{{ID_DIGITS}}}\.[a-z0-9]{{1,5}}")

# what the formats that we decode begin with; the suffix is only for people who look into the folder
_SIGNATURES = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
    (b"\0\0\0\x0cjP", ".jp2"),
    (b"\xff\x4f\xff\x51", ".jp2"),
)


@dataclass(frozen=True)
class Uploads:
    """The folder images/ of an index. Names are relative to the index, which may thus be moved.

    An index may come from elsewhere: what it stores names nothing outside its folder but images by absolute paths, and
    those are never written or deleted.
    """

    folder: Path  # of the index

    def write(self, id: str, data: bytes) -> str:
        """Keep the bytes of an image durably, and return the name under which they are kept."""
        refuse_links(self.folder, [IMAGES])
        name = f"{IMAGES}/{id}{image_suffix(data)}"
        with atomic(self.folder / name) as stream:
            stream.write(data)
        return name

    def drop(self, file: Path) -> None:
        """Delete an upload that no item needs any more."""
        refuse_links(self.folder, [IMAGES])
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot delete '{file}': {error.strerror or error}.") from error

    def holds(self, path: str) -> bool:
        """Whether the path of an item means an upload, as `write` names them."""
        return _NAME.fullmatch(path) is not None and not (self.folder / path).is_symlink()

    def path(self, name: str) -> Path | None:
        """The absolute path of an upload's name, of a user's own file as it is; None for what is neither."""
        own = Path(name)
        if own.is_absolute():  # most are, and to resolve our folder for each takes longer than all else
            return own
        return self.folder.resolve() / name if self.holds(name) else None

    def files(self) -> Iterator[Path]:
        """All files kept, and nothing else that lies beside them."""
        refuse_links(self.folder, [IMAGES])
        place = self.folder / IMAGES
        try:
            files = sorted(place.iterdir()) if place.is_dir() else []
        except OSError as error:
            raise DataError(f"cannot read the folder '{place}': {error.strerror or error}.") from error
        return (file for file in files if self.holds(f"{IMAGES}/{file.name}"))

    def checked(self, file: Path) -> Path:
        """The file, or ImageError where it is an upload that is not what its name says."""
        from centerhash.data.images import content_key

        own = file.parent == self.folder.resolve() / IMAGES and self.holds(f"{IMAGES}/{file.name}")
        if own and file.exists() and file.stat().st_size > _MOST_BYTES:
            raise ImageError(f"'{file}' is not the image that was added: it is too large for one.")
        if own and content_key(file)[:ID_DIGITS] != file.stem:
            raise ImageError(f"'{file}' is not the image that was added: its content has changed.")
        return file

    def damaged(self) -> Iterator[str]:
        """A sentence about each file that is not what its name says."""
        for file in self.files():
            try:
                self.checked(file.resolve())
            except ImageError as error:
                yield str(error)


def has_file(uploads: Uploads, stored: str | None) -> bool:
    """Return whether the file of an item, if it has one, still exists."""
    from centerhash.data.layouts.parquet import is_stored_image

    path = None if stored is None else uploads.path(stored)
    # Path.exists raises for names that are too long
    return stored is None or (path is not None and (os.path.exists(path) or is_stored_image(path)))  # noqa: PTH110


def image_suffix(data: bytes) -> str:
    """The usual suffix of an image, by its first bytes."""
    for signature, suffix in _SIGNATURES:
        if data.startswith(signature):
            return suffix
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    if data[4:8] == b"ftyp":
        from centerhash.data.images import is_heic

        return ".heic" if is_heic(data[:64]) else ".avif"
    return ".ppm"
