"""Read images: robust decoding to RGB, the network's square crop, and content keys."""

from __future__ import annotations

import hashlib
import io
import math
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from centerhash.core.errors import ImageError, InputError, first_line
from centerhash.data.views import inner_box

ImageSource: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
Stream: TypeAlias = io.BufferedReader | io.BytesIO

_SOURCES = (str, Path, bytes, Image.Image, np.ndarray)
MAX_PIXELS = 100_000_000
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".jp2", ".avif"}
    | {".pgm", ".ppm", ".pnm", ".heic", ".heif"}
)
# Only plain picture formats: Pillow's others start programs (EPS) or read fonts and documents.
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF", "PPM")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)
# What Pillow raises for broken EXIF tags.
_BROKEN_EXIF = (SyntaxError, ValueError, KeyError, TypeError, EOFError, OSError, struct.error)
# Orientations that swap width and height.
_SWAPPED = range(5, 9)


def load_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, at_least: int | None = None
) -> Image.Image:
    """Turn a file, its bytes, a PIL image or a uint8 array into an upright RGB image; transparency is laid on white.

    Images of more than `max_pixels` are rejected by their header, before any pixel is decoded. With `at_least`, a JPEG
    is decoded at 1/2, 1/4 or 1/8 of its size if both sides stay that long, which is much faster.
    """
    with _opened(source, max_pixels) as image:
        if at_least is not None and image is not source:
            image.draft(None, (at_least, at_least))
        image.load()
        rgb = _to_rgb(_turn_upright(image))
    rgb = rgb.copy() if rgb is source else rgb
    rgb.info = {}  # an orientation left behind would be applied twice by a later reader
    return rgb


def image_list(images: Any) -> tuple[list[ImageSource], bool]:
    """Images as a list, and whether it was a single one."""
    single = isinstance(images, _SOURCES) and not (
        isinstance(images, np.ndarray) and images.ndim not in (2, 3)
    )
    sources = [images] if single or not isinstance(images, Iterable) else list(images)
    for source in sources:
        check_source(source)
    return sources, single


def check_source(source: Any) -> None:
    """Raise InputError unless something may be an image."""
    if not isinstance(source, _SOURCES):
        raise InputError(
            f"an image is a path, bytes, a PIL image or a uint8 array, got {type(source).__name__}."
        )


@dataclass(frozen=True)
class Header:
    """What the header of an image holds: its media type, its size when it stands upright, and its date by EXIF."""

    media_type: str
    width: int
    height: int
    taken: float | None = None  # seconds since 1970 by the clock of the camera, as if that showed UTC


def read_header(source: str | Path | bytes) -> Header:
    """Read only the header of an image: quick, but the rest of it may be damaged."""
    with _opened(source) as image:
        # Pillow would decode all of a PNG to look for EXIF behind its pixels, where next to no program writes it.
        bare = image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys()
        tags = {} if bare else exif_tags(image)
        swapped = tags.get(ExifTags.Base.Orientation) in _SWAPPED
        width, height = reversed(image.size) if swapped else image.size
        # MPO is a JPEG with more images behind it.
        kind = "JPEG" if image.format == "MPO" else str(image.format)
    return Header(Image.MIME[kind], width, height, date_taken(tags))


def exif_tags(image: Image.Image) -> dict[int, Any]:
    """Return the EXIF tags of an image, also those of the part about the photo; none if they are broken."""
    try:
        exif = image.getexif()
        return {**exif.get_ifd(ExifTags.IFD.Exif), **exif}
    except _BROKEN_EXIF:
        return {}


def date_taken(tags: Mapping[int, Any]) -> float | None:
    """Return when a photo was taken by its EXIF tags; None if no date makes sense."""
    for date in _DATES:
        text = str(tags.get(date)).strip("\0 ")[:19].replace("-", ":", 2)
        with suppress(ValueError):  # "0000:00:00 00:00:00", blanks
            return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return None


def load_pixels(
    source: ImageSource,
    resize: int = 256,
    crop: int = 224,
    *,
    interpolation: str = "bilinear",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Load an image as the network sees it, (crop, crop, 3) uint8, decoding large JPEGs at a reduced size."""
    image = load_image(source, max_pixels=max_pixels, at_least=2 * resize)
    return squash_and_crop(image, resize, crop, interpolation)


def load_views(
    source: ImageSource, resize: int, crop: int, *, interpolation: str, max_pixels: int
) -> NDArray[np.uint8]:
    """As `load_pixels`, (n, crop, crop, 3): the image, and the part between its borders if it has some."""
    image = load_image(source, max_pixels=max_pixels, at_least=2 * resize)
    square = squash_and_crop(image, resize, resize, interpolation)
    start = (resize - crop) // 2
    views, box = [square[start : start + crop, start : start + crop]], inner_box(square)
    if box is not None:  # cut out of the image itself: the square holds fewer pixels of it
        sides = np.tile([image.width / resize, image.height / resize], 2)
        inner = image.crop(tuple(np.rint(sides * box).astype(int).tolist()))
        views.append(squash_and_crop(inner, resize, crop, interpolation))
    return np.stack(views)


def squash_and_crop(
    image: Image.Image, resize: int = 256, crop: int = 224, interpolation: str = "bilinear"
) -> NDArray[np.uint8]:
    """Squash the whole frame to a square of `resize`, cut out the center: (crop, crop, 3) uint8 (Sec. 4.3).

    The filter (bilinear, bicubic) widens with the reduction, so that fine patterns do not alias.
    """
    if image.mode != "RGB":
        raise InputError(f"the image must be RGB, got {image.mode}: use load_image.")
    if not 1 <= crop <= resize:
        raise InputError(f"the crop must be 1 to {resize} (the size after resizing), got {crop}.")
    square = image.resize((resize, resize), Image.Resampling[interpolation.upper()])
    start = (resize - crop) // 2
    pixels = np.asarray(square, dtype=np.uint8)[start : start + crop, start : start + crop]
    return pixels.copy()  # also of the whole frame, since what Pillow gives can only be read


def content_key(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes: equal pictures under other names share their cached features."""
    with _open_source(path, f"'{path}'") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(source: ImageSource, max_pixels: float = math.inf) -> Iterator[Image.Image]:
    """An image of which the header was read; what Pillow raises of it in the block becomes an ImageError."""
    name = "image bytes" if isinstance(source, bytes) else "the image"
    with ExitStack() as stack:
        stream: Stream | Image.Image | NDArray[np.uint8]
        if isinstance(source, str | Path | bytes):
            name = name if isinstance(source, bytes) else f"'{source}'"
            stream = _open_source(source, name)
            stack.callback(stream.close)
        else:
            stream = source
        try:
            image = _read_header(stream)
            _check_size(image, name, max_pixels)
            yield image
        except ImageError:
            raise
        except Exception as error:  # damaged files make Pillow raise nearly anything
            raise ImageError(f"cannot read {name}: {first_line(error)}.") from error


def _open_source(source: str | Path | bytes, name: str) -> Stream:
    """Open bytes, or a regular file."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        if stat.S_ISREG(Path(source).stat().st_mode):  # a pipe would block for ever
            return Path(source).open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise ImageError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}.") from error
    raise ImageError(f"cannot read {name}: it is no regular file.")


def _read_header(stream: Stream | Image.Image | NDArray[np.uint8]) -> Image.Image:
    """Find the format by its first bytes and parse the header only.

    Image.open would do the same, but it compares the size with a global limit and warns, which threads cannot silence
    for themselves; `_check_size` does that instead.
    """
    if isinstance(stream, np.ndarray):
        shape, channels = stream.shape, stream.shape[2:]
        if stream.dtype != np.uint8 or len(shape) < 2 or 0 in shape or channels not in ((), (3,), (4,)):
            raise ValueError(
                "an array must be uint8 of shape (height, width), (height, width, 3) or (height, width, 4), "
                f"got {stream.dtype} of shape {shape}"
            )
        return Image.fromarray(stream)
    if isinstance(stream, Image.Image):
        return stream
    prefix = stream.read(64)
    stream.seek(0)
    if prefix[4:8] == b"ftyp" and any(brand in prefix for brand in _HEIC_BRANDS):  # as photos of phones begin
        import pillow_heif

        pillow_heif.register_heif_opener()
        return Image.OPEN["HEIF"][0](stream, "")
    Image.init()
    for kind in (kind for kind in _FORMATS if kind in Image.OPEN):  # those that this Pillow has
        factory, accepts = Image.OPEN[kind]
        # A text says why this Pillow cannot read the format.
        if accepts is None or accepts(prefix[:16]) is True:
            return factory(stream, "")
    known = f"not an image of a known format ({', '.join(_FORMATS)}, HEIC)"
    raise ValueError(known if prefix else "it has 0 bytes")


def _check_size(image: Image.Image, name: str, max_pixels: float) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"cannot read {name}: {width:,} x {height:,} is {width * height:,} pixels, more than the "
            f"limit of {max_pixels:,}. Shrink it, or raise max_pixels if you trust the file."
        )


def _turn_upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation. Broken EXIF is no reason to reject good pixels: they stay as stored."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except _BROKEN_EXIF:
        return image
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, transparency laid on white."""
    if image.mode.startswith("I") or image.mode == "F":  # convert() would clip
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it holds NaN or infinite pixels")
        return Image.fromarray(
            np.rint(values.clip(0) * (255 / _white(image, values.max()))).astype(np.uint8)
        ).convert("RGB")
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy it


def _white(image: Image.Image, most: float) -> float:
    """The value of white of deep grayscale: 65,535 in 16 bits and in PGM, which Pillow widens to 16 bits.

    Other whole numbers and fractions state none: it is the smallest of 1 (fractions), 255 and 65,535 that holds the
    largest value, or else that value.
    """
    if image.mode.startswith("I;") or image.format == "PPM":
        return 65_535
    whites = (1, 255, 65_535) if image.mode == "F" else (255, 65_535)
    return next((white for white in whites if most <= white), most)


def is_picture_name(name: str) -> bool:
    """Whether the name of a file is that of a picture, and not hidden."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
