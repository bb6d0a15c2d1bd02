"""Read images: robust decoding to RGB, the network's square crop, and content keys."""

from __future__ import annotations

import hashlib
import io
import math
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile

from centerhash.core.errors import ImageError, InputError
from centerhash.data.layouts.parquet import is_stored_image, stored_image
from centerhash.data.views import inner_box

ImageSource: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
Stream: TypeAlias = io.BufferedReader | io.BytesIO
Factory: TypeAlias = Callable[[IO[bytes], str | bytes], ImageFile.ImageFile]

_ACCEPTED = "an image is a path, bytes, a PIL image or a uint8 array, or a list of these"
MAX_PIXELS = 100_000_000
_STRIP = 1 << 20  # pixels that are converted at once: deep ones take ten times the memory of the picture
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
# tags of a date and of the fraction of its second, the best first
_DATES = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.SubsecTimeOriginal),
    (ExifTags.Base.DateTimeDigitized, ExifTags.Base.SubsecTimeDigitized),
    (ExifTags.Base.DateTime, ExifTags.Base.SubsecTime),
)
_CAMERA = 80  # characters of its name
_LYING = 5  # orientations from here on swap width and height
# a JPEG of more scans is rejected: encoders write 1 to about 20, and each is a pass over the whole picture
MAX_SCANS = 100
_SCAN, _END = b"\xff\xda", 0xD9
# a marker: 0xFF and a code, where 0xFF 0x00 is a pixel's byte, 0xFF 0xD0..0xD7 a restart, and 0xFF 0xFF filling
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_BARE = frozenset({0x01, 0xD8})  # markers without a length: TEM, SOI


def load_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, at_least: int | None = None
) -> Image.Image:
    """Turn a file, its bytes, a PIL image or a uint8 array into an upright RGB image; transparency is laid on white.

    Images of more than `max_pixels` are refused by their header, before any pixel is decoded. With
    `at_least`, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where both sides stay that long: much faster.
    """
    if isinstance(source, Image.Image | np.ndarray):
        return _from_memory(source, max_pixels)
    with _opened(source, max_pixels) as image:
        return _decoded(image, at_least)


def load_with_header(source: str | Path | bytes, at_least: int | None = None) -> tuple[Image.Image, Header]:
    """As `load_image`, with the header of the file, which is read once."""
    with _opened(source, MAX_PIXELS) as image:
        header = _header_of(image)
        return _decoded(image, at_least), header


def _decoded(image: ImageFile.ImageFile, at_least: int | None) -> Image.Image:
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    image.load()
    rgb = _to_rgb(_turn_upright(image))
    rgb.info = {}  # an orientation left behind would be applied twice by a later reader
    return rgb


def _from_memory(source: Image.Image | NDArray[Any], max_pixels: int) -> Image.Image:
    """An image that is decoded already: a PIL image, or an array (H, W), (H, W, 3) or (H, W, 4) of uint8."""
    if isinstance(source, np.ndarray):
        shape, channels = source.shape, source.shape[2:]
        if source.dtype != np.uint8 or len(shape) < 2 or 0 in shape or channels not in ((), (3,), (4,)):
            raise InputError(
                "an image array must be uint8 of shape (height, width), (height, width, 3) or (height, width, 4), "
                f"got {source.dtype} of shape {shape}."
            )
        source = Image.fromarray(source)
    _check_size(source, "the image", max_pixels)
    try:
        rgb = _to_rgb(_turn_upright(source))
    except Exception as error:  # a PIL image may read its file only now
        raise ImageError(f"cannot read the image: {_reason(error)}.") from error
    rgb = rgb.copy() if rgb is source else rgb
    rgb.info = {}
    return rgb


def image_list(images: Any) -> tuple[list[ImageSource], bool]:
    """Images as a list, and whether it was a single one."""
    single = isinstance(images, str | Path | bytes | Image.Image) or (
        isinstance(images, np.ndarray) and images.ndim in (2, 3)
    )
    if not single and not isinstance(images, Iterable):
        raise InputError(f"{_ACCEPTED}, got {type(images).__name__}.")
    listed = [images] if single else list(images)
    for image in listed:
        if not isinstance(image, str | Path | bytes | Image.Image | np.ndarray):
            raise InputError(f"{_ACCEPTED}, got {type(image).__name__}.")
    return listed, single


def check_image(source: str | Path | bytes) -> tuple[int, int]:
    """Decode an image as quickly as can be to see that it is whole; return its width and height as stored."""
    with _opened(source, MAX_PIXELS) as image:
        size = image.size
        image.draft(None, (1, 1))  # a JPEG is still read to its end, but drawn small
        image.load()
    return size


@dataclass(frozen=True)
class Header:
    """What the header of an image holds: its media type, its size when it stands upright, date and camera by EXIF."""

    media_type: str
    width: int
    height: int
    taken: float | None = None  # seconds since 1970 by the clock of the camera, as if that showed UTC
    camera: str | None = None
    exif: bool = False  # whether there are EXIF tags


def read_header(source: str | Path | bytes) -> Header:
    """Read only the header of an image: quick, but the rest of it may be damaged."""
    with _opened(source) as image:
        return _header_of(image)


def _header_of(image: Image.Image) -> Header:
    # Pillow would decode all of a PNG to look for EXIF behind its pixels, where next to no program writes it
    bare = image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys()
    tags = {} if bare else exif_tags(image)
    lying = tags.get(ExifTags.Base.Orientation) in range(_LYING, 9)
    width, height = reversed(image.size) if lying else image.size
    # MPO is a JPEG with more images behind it
    kind = "JPEG" if image.format == "MPO" else str(image.format)
    media_type = Image.MIME.get(kind, "application/octet-stream")
    return Header(media_type, width, height, date_taken(tags), camera_name(tags), bool(tags))


def exif_tags(image: Image.Image) -> dict[int, Any]:
    """Return the EXIF tags of an image, also those of the part about the photo; none if they are broken."""
    try:
        exif = image.getexif()
        return {**exif.get_ifd(ExifTags.IFD.Exif), **exif}
    except (SyntaxError, ValueError, KeyError, TypeError, EOFError, OSError, struct.error):
        return {}


def date_taken(tags: Mapping[int, Any]) -> float | None:
    """Return when a photo was taken by its EXIF tags, with fractions of a second; None if no date makes sense."""
    for date, fraction in _DATES:
        text, digits = tags.get(date), str(tags.get(fraction, "")).strip("\0 ")
        if isinstance(text, str):
            try:
                taken = datetime.strptime(text.strip("\0 ")[:19].replace("-", ":", 2), "%Y:%m:%d %H:%M:%S")
            except ValueError:  # "0000:00:00 00:00:00", blanks
                continue
            part = float(f"0.{digits}") if digits.isascii() and digits.isdigit() else 0.0
            return taken.replace(tzinfo=UTC).timestamp() + part
    return None


def camera_name(tags: Mapping[int, Any]) -> str | None:
    """Return make and model of the camera by its EXIF tags: "Canon EOS 5D", "Apple iPhone 12"."""
    make, model = (
        " ".join("".join(sign for sign in text if sign.isprintable()).split())
        if isinstance(text, str)
        else ""
        for text in (tags.get(ExifTags.Base.Make), tags.get(ExifTags.Base.Model))
    )
    brand = make.partition(" ")[0]  # of "NIKON CORPORATION"
    name = model if model.lower().startswith(brand.lower()) and model else f"{make} {model}".strip()
    return name[:_CAMERA] or None


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
    """Squash the whole frame to a square of `resize`, cut out the centre: (crop, crop, 3) uint8 (Sec. 4.3).

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
def _opened(source: str | Path | bytes, max_pixels: float = math.inf) -> Iterator[ImageFile.ImageFile]:
    """An image of which the header was read; what Pillow raises of it in the block becomes an ImageError."""
    name = "image bytes" if isinstance(source, bytes) else f"'{source}'"
    with _open_source(source, name) as stream:
        image = _read_header(stream, name)
        _check_size(image, name, max_pixels)
        try:
            yield image
        except Exception as error:  # damaged files make Pillow raise nearly anything
            raise ImageError(f"cannot read {name}: {_reason(error)}.") from error


def _open_source(source: str | Path | bytes, name: str) -> Stream:
    """Open bytes, a regular, non-empty file, or an image in a parquet file (`photos.parquet/12`)."""
    if not isinstance(source, bytes) and is_stored_image(Path(source)):
        source = stored_image(Path(source))
    if isinstance(source, bytes):
        if not source:
            raise ImageError(f"cannot read {name}: there are 0 bytes.")
        return io.BytesIO(source)
    path = Path(source)
    try:
        status = path.stat()
        # a pipe would block for ever in open()
        stream = path.open("rb") if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError as error:
        raise ImageError(f"cannot read {name}: no such file.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise ImageError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}.") from error
    if stream is None:
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ImageError(f"cannot read {name}: it is {kind}, not an image.")
    if status.st_size == 0:
        stream.close()
        raise ImageError(f"cannot read {name}: the file is empty (0 bytes). Copy it again.")
    return stream


def _read_header(stream: Stream, name: str) -> ImageFile.ImageFile:
    """Find the format by its first bytes and parse the header only.

    Image.open would do the same, but it compares the size with a global limit and speaks through warnings,
    which threads cannot silence for themselves; `_check_size` does that instead.
    """
    kind, factory = _format_of(stream.read(64), name)
    scans = count_scans(stream) if kind == "JPEG" else 1
    if scans > MAX_SCANS:
        raise ImageError(
            f"cannot read {name}: it is a JPEG of {scans:,} scans, more than the limit of {MAX_SCANS}, and would take "
            "minutes to decode. Save it again with any image editor."
        )
    stream.seek(0)
    try:
        return factory(stream, "")
    except Exception as error:  # damaged headers make Pillow raise nearly anything
        raise ImageError(f"cannot read {name}: damaged {kind} header ({_reason(error)}).") from error


def count_scans(stream: IO[bytes]) -> int:
    """Count the scans of a JPEG up to its end marker, exactly only if they are more than MAX_SCANS."""
    stream.seek(0)
    seen, last = 0, b""
    while piece := stream.read(1 << 20):
        seen += (last + piece).count(_SCAN)
        last = piece[-1:]
    if seen <= MAX_SCANS:  # nearly all files: counting bytes takes no time
        return seen
    stream.seek(0)
    data, scans, place = stream.read(), 0, 0
    # follow the markers: a thumbnail or a film that is kept inside or behind the picture does not count
    while (found := _MARKER.search(data, place)) is not None and data[found.start(1)] != _END:
        code, place = data[found.start(1)], found.end()
        scans += code == _SCAN[1]
        if code not in _BARE:
            place += int.from_bytes(data[place : place + 2], "big")
    return scans


def _format_of(prefix: bytes, name: str) -> tuple[str, Factory]:
    """The format of an image by its first bytes, and what opens it; the library for HEIC is loaded with the first one."""
    if is_heic(prefix):
        import pillow_heif

        pillow_heif.register_heif_opener()
        return "HEIC", Image.OPEN["HEIF"][0]
    Image.init()
    for kind in (kind for kind in _FORMATS if kind in Image.OPEN):  # those that this Pillow has
        factory, accepts = Image.OPEN[kind]
        verdict = accepts(prefix[:16]) if accepts else True
        if verdict and not isinstance(verdict, str):  # a text says why this Pillow cannot read the format
            return kind, factory
    raise ImageError(f"cannot read {name}: not an image of a known format ({', '.join(_FORMATS)}, HEIC).")


def is_heic(prefix: bytes) -> bool:
    """Whether a file begins as photos of phones do: a box `ftyp` that names a brand of HEVC images."""
    brands = prefix[8 : int.from_bytes(prefix[:4], "big")] if prefix[4:8] == b"ftyp" else b""
    return any(brands[start : start + 4] in _HEIC_BRANDS for start in range(0, len(brands), 4))


def _check_size(image: Image.Image, name: str, max_pixels: float) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"cannot read {name}: {width:,} x {height:,} is {width * height:,} pixels, more than the "
            f"limit of {max_pixels:,}. Shrink it, or raise max_pixels if you trust the file."
        )


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to decode it. Shrink it, or save it as JPEG or PNG"
    text = str(error) or type(error).__name__
    return f"the file is truncated or damaged ({text}). Copy it again" if "truncated" in text else text


def _turn_upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation. Broken EXIF is no reason to refuse good pixels: they stay as stored."""
    method = _UPRIGHT.get(_orientation(image))
    return image if method is None else image.transpose(method)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none, or a broken one."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, ValueError, KeyError, TypeError, EOFError, OSError, struct.error):
        return 1
    return orientation if isinstance(orientation, int) and orientation in _UPRIGHT else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, transparency laid on white."""
    if image.mode.startswith("I") or image.mode == "F":
        low, high = _range_of(image)
        scale = 255.0 / (high - low) if high > low else 0.0

        def to_eight_bits(strip: Image.Image) -> Image.Image:  # where convert() would clip
            deep = np.asarray(strip)
            values: NDArray[np.floating[Any]] = deep.astype(np.float32 if deep.itemsize == 2 else np.float64)
            return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))

        return _by_strips(image, to_eight_bits)
    if image.has_transparency_data:
        white = (255, 255, 255, 255)
        return _by_strips(
            image,
            lambda strip: Image.alpha_composite(Image.new("RGBA", strip.size, white), strip.convert("RGBA")),
        )
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy it


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """An image in strips from top to bottom, each with the row at which it begins."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _by_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """An RGB image of the converted strips: what `convert` needs besides is never of the whole image."""
    rgb = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        rgb.paste(convert(strip).convert("RGB"), (0, top))
    return rgb


def _range_of(image: Image.Image) -> tuple[float, float]:
    """The values of black and white of deep greyscale.

    16-bit images and PGM (which Pillow widens to 16 bits) have white at 65,535. Other whole numbers and
    fractions state no white: it is the smallest of 1 (fractions), 255 and 65,535 that holds all values, and
    where none does, the darkest and brightest values become black and white.
    """
    low, high = math.inf, -math.inf
    for _, strip in _strips(image):
        values = np.asarray(strip)
        if not np.isfinite(values).all():
            raise ValueError("it holds NaN or infinite pixels")
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    whites = {"F": (1, 255, 65535), "I": (255, 65535)}.get(image.mode, (65535,))
    if image.mode == "I" and image.format == "PPM":
        whites = (65535,)
    white = next((white for white in whites if low >= 0 and high <= white), None)
    return (low, high) if white is None else (0.0, float(white))


def is_picture_name(name: str) -> bool:
    """Whether the name of a file is that of a picture, and not hidden."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
