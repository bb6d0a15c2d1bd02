"""Read images: decode them to RGB, crop them for the network, and compute content keys."""

from __future__ import annotations

import hashlib
import io
import math
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
# These are plain picture formats: others of Pillow start programs (EPS) or read fonts and documents.
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
# Pillow raises these for broken EXIF tags.
_BROKEN_EXIF = (SyntaxError, ValueError, KeyError, TypeError, EOFError, OSError, struct.error)


def load_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, at_least: int | None = None
) -> Image.Image:
    """Decode a file, its bytes, a PIL image or a uint8 array to an upright RGB image; transparent parts become white.

    Images of more than `max_pixels` are rejected by their header, before any pixel is decoded. With `at_least`, a JPEG
    is decoded at 1/2, 1/4 or 1/8 of its size if both sides stay that long, which is much faster.
    """
    with _open_image(source, max_pixels) as image:
        if at_least is not None and image is not source:
            image.draft(None, (at_least, at_least))
        image.load()
        rgb = _to_rgb(_turn_upright(image))
    rgb = rgb.copy() if rgb is source else rgb
    # A later reader would apply a remaining orientation again.
    rgb.info = {}
    return rgb


def image_list(images: Any) -> tuple[list[ImageSource], bool]:
    """Return images as a list, and whether the argument was a single image."""
    is_batch = isinstance(images, np.ndarray) and images.ndim not in (2, 3)
    single = isinstance(images, _SOURCES) and not is_batch
    sources = [images] if single or not isinstance(images, Iterable) else list(images)
    for source in sources:
        check_source(source)
    return sources, single


def check_source(source: Any) -> None:
    """Raise InputError unless the type of `source` is that of an image."""
    if not isinstance(source, _SOURCES):
        raise InputError(
            f"an image is a path, bytes, a PIL image or a uint8 array, got {type(source).__name__}."
        )


@dataclass(frozen=True)
class Header:
    """The header of an image: media type, size when it stands upright, and date by EXIF.

    The date is in seconds since 1970 by the clock of the camera, as if that were set to UTC.
    """

    media_type: str
    width: int
    height: int
    taken: float | None = None


def read_header(source: str | Path | bytes) -> Header:
    """Read only the header of an image, which is fast; its pixels may be damaged."""
    with _open_image(source) as image:
        # Pillow would decode a whole PNG to look for EXIF behind its pixels, where hardly any program writes it.
        bare = image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys()
        tags = {} if bare else _exif_tags(image)
        # These orientations swap width and height.
        swapped = tags.get(ExifTags.Base.Orientation) in range(5, 9)
        width, height = reversed(image.size) if swapped else image.size
        # MPO is a JPEG followed by more images.
        kind = "JPEG" if image.format == "MPO" else str(image.format)
    return Header(Image.MIME[kind], width, height, _date_taken(tags))


def _exif_tags(image: Image.Image) -> dict[int, Any]:
    """Return the EXIF tags of an image, with those of the part about the photo; none if they are broken."""
    try:
        exif = image.getexif()
        return {**exif.get_ifd(ExifTags.IFD.Exif), **exif}
    except _BROKEN_EXIF:
        return {}


def _date_taken(tags: Mapping[int, Any]) -> float | None:
    """Return the date of a photo by its EXIF tags; None without a valid date."""
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
    """Load an image as the input of the network, (crop, crop, 3) uint8; large JPEGs are decoded at a reduced size."""
    image = load_image(source, max_pixels=max_pixels, at_least=2 * resize)
    return squash_and_crop(image, resize, crop, interpolation)


def load_views(
    source: ImageSource, resize: int, crop: int, *, interpolation: str, max_pixels: int
) -> NDArray[np.uint8]:
    """Load views (n, crop, crop, 3) as `load_pixels`: the image, and the part between its borders if it has some."""
    image = load_image(source, max_pixels=max_pixels, at_least=2 * resize)
    square = squash_and_crop(image, resize, resize, interpolation)
    start = (resize - crop) // 2
    views, box = [square[start : start + crop, start : start + crop]], inner_box(square)
    if box is not None:
        # The image itself is cropped, since the square has fewer pixels.
        scales = np.tile([image.width / resize, image.height / resize], 2)
        inner = image.crop(tuple(np.rint(scales * box).astype(int).tolist()))
        views.append(squash_and_crop(inner, resize, crop, interpolation))
    return np.stack(views)


def squash_and_crop(
    image: Image.Image, resize: int = 256, crop: int = 224, interpolation: str = "bilinear"
) -> NDArray[np.uint8]:
    """Squash the whole frame to a square of `resize` and crop its center: (crop, crop, 3) uint8 (Sec. 4.3).

    The filter (bilinear, bicubic) widens with the reduction, so that fine patterns do not alias.
    """
    if image.mode != "RGB":
        raise InputError(f"the image must be RGB, got {image.mode}: use load_image.")
    if not 1 <= crop <= resize:
        raise InputError(f"the crop must be 1 to {resize} (the size after resizing), got {crop}.")
    square = image.resize((resize, resize), Image.Resampling[interpolation.upper()])
    start = (resize - crop) // 2
    # Arrays of Pillow are read-only, so the whole frame is copied too.
    return np.asarray(square, dtype=np.uint8)[start : start + crop, start : start + crop].copy()


def content_key(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, so that equal pictures with different names share cached features."""
    with _open_source(path, f"'{path}'") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _open_image(source: ImageSource, max_pixels: float = math.inf) -> Iterator[Image.Image]:
    """Yield an image whose header was read; errors of Pillow in the block become an ImageError."""
    opened: AbstractContextManager[Stream | Image.Image | NDArray[np.uint8]]
    if isinstance(source, str | Path | bytes):
        name = "image bytes" if isinstance(source, bytes) else f"'{source}'"
        opened = _open_source(source, name)
    else:
        name, opened = "the image", nullcontext(source)
    with opened as stream:
        try:
            image = _read_header(stream)
            width, height = image.size
            if width * height > max_pixels:
                raise ImageError(
                    f"cannot read {name}: {width:,} x {height:,} is {width * height:,} pixels, more than the limit of "
                    f"{max_pixels:,}. Shrink it, or raise max_pixels if you trust the file."
                )
            yield image
        except ImageError:
            raise
        except Exception as error:
            # Damaged files make Pillow raise nearly anything.
            raise ImageError(f"cannot read {name}: {first_line(error)}.") from error


def _open_source(source: str | Path | bytes, name: str) -> Stream:
    """Open bytes, or a regular file."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        # Opening a pipe would block forever.
        if stat.S_ISREG(Path(source).stat().st_mode):
            return Path(source).open("rb")
    except (OSError, ValueError) as error:  # ValueError: null byte
        raise ImageError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}.") from error
    raise ImageError(f"cannot read {name}: it is no regular file.")


def _read_header(stream: Stream | Image.Image | NDArray[np.uint8]) -> Image.Image:
    """Detect the format by the first bytes and parse the header only.

    Image.open would do the same, but it also compares the size with a global limit and warns, which threads cannot
    silence separately.
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
    if prefix[4:8] == b"ftyp" and any(brand in prefix for brand in _HEIC_BRANDS):  # photos of phones
        import pillow_heif

        pillow_heif.register_heif_opener()
        return Image.OPEN["HEIF"][0](stream, "")
    Image.init()
    for factory, accepts in (Image.OPEN[kind] for kind in _FORMATS if kind in Image.OPEN):
        # `accepts` returns a text if this Pillow cannot read the format.
        if accepts is None or accepts(prefix[:16]) is True:
            return factory(stream, "")
    known = f"not an image of a known format ({', '.join(_FORMATS)}, HEIC)"
    raise ValueError(known if prefix else "it has 0 bytes")


def _turn_upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; with broken EXIF, the pixels stay as stored."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except _BROKEN_EXIF:
        return image
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB; transparent parts become white."""
    if image.mode.startswith("I") or image.mode == "F":  # convert() would clip
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it holds NaN or infinite pixels")
        scaled = np.rint(values.clip(0) * (255 / _white_value(image, values.max())))
        return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy it


def _white_value(image: Image.Image, most: float) -> float:
    """Return the value of white in deep grayscale: 65,535 in 16 bits and in PGM, which Pillow widens to 16 bits.

    Other formats do not define it: it is the smallest of 1 (fractions only), 255 and 65,535 that is not below the
    largest value, or else that value.
    """
    if image.mode.startswith("I;") or image.format == "PPM":
        return 65_535
    whites = (1, 255, 65_535) if image.mode == "F" else (255, 65_535)
    return next((white for white in whites if most <= white), most)


def is_picture_name(name: str) -> bool:
    """Return whether the name of a file is that of a picture, and not hidden."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
