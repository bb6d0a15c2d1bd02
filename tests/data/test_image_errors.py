from __future__ import annotations

import os
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ImageError
from centerhash.data.images import load_image, load_pixels
from tests.data.pictures import encoded, jpeg_of_scans, photo, reason


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    tiny = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", tiny) + chunk(b"IEND", b"")


def test_missing_folder_and_empty(tmp_path: Path) -> None:
    assert reason(tmp_path / "a.jpg") == f"cannot read '{tmp_path / 'a.jpg'}': no such file."
    assert reason(str(tmp_path)) == f"cannot read '{tmp_path}': it is a folder, not an image."
    (tmp_path / "a.jpg").touch()
    assert "a.jpg': the file is empty" in reason(tmp_path / "a.jpg")
    assert reason(b"") == "cannot read image bytes: there are 0 bytes."


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg").endswith("it is no regular file, not an image.")


def test_impossible_names(tmp_path: Path) -> None:
    assert "embedded null byte" in reason("a\0.jpg")
    assert "File name too long" in reason(tmp_path / ("x" * 300))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(2, 2)))

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")  # chmod would not stop root

    monkeypatch.setattr(Path, "open", refuse)
    assert reason(path) == f"cannot read '{path}': Permission denied."


@pytest.mark.parametrize(
    "data", [b"hello, this is text", b"\0" * 100, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"%PDF-1.4\n"]
)
def test_not_an_image(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    assert f"'{path}': not an image of a known format (JPEG, PNG, " in reason(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_cut_file_of_any_kind_is_an_image_error(kind: str) -> None:
    data = encoded(photo(60, 50), kind)
    for share in (0.02, 0.1, 0.5, 0.8):
        assert reason(data[: max(4, int(len(data) * share))]).startswith("cannot read image bytes: "), share


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_damage_gives_pixels_or_an_image_error(kind: str) -> None:
    data = encoded(photo(30, 20), kind)
    generator = np.random.default_rng(0)
    for _ in range(60):
        broken = np.frombuffer(data, np.uint8).copy()
        places = generator.integers(4, len(broken), size=8)
        broken[places] = generator.integers(0, 256, size=8)
        try:
            loaded = load_image(broken.tobytes(), max_pixels=1_000_000)
        except ImageError as error:
            assert str(error).startswith("cannot read image bytes: ")  # noqa: PT017
        else:
            assert loaded.mode == "RGB"


def test_a_damaged_header_is_named() -> None:
    assert reason(b"\x89PNG\r\n\x1a\n" + b"\0" * 40).startswith(
        "cannot read image bytes: damaged PNG header ("
    )


def test_a_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(50_000, 50_000))
    assert f"'{path}': 50,000 x 50,000 is 2,500,000,000 pixels, more than the limit of 100," in reason(path)


def test_a_jpeg_of_thousands_of_scans_is_refused_by_its_markers() -> None:
    """Of 7,000 pixels a side, it would take most of a minute."""
    assert "6,000 scans, more than the limit of 100" in reason(jpeg_of_scans(7000, 6000))
    assert load_image(jpeg_of_scans(64, 100)).size == (64, 64)
    assert "101 scans" in reason(jpeg_of_scans(64, 101))


def test_scans_inside_or_behind_a_picture_do_not_count() -> None:
    """As in the thumbnails of cameras, and in the films that phones hang on."""
    film = jpeg_of_scans(16, 500)
    data = encoded(photo(60, 50), "JPEG", comment=film, exif=b"Exif\0\0" + film) + film
    assert data.count(b"\xff\xda") > 1000
    assert load_image(data).size == (60, 50)


@pytest.mark.parametrize("mode", ["F", "I", "I;16"])
def test_deep_pixels_are_never_all_widened_at_once(mode: str) -> None:
    image = Image.new(mode, (3000, 3000))
    tracemalloc.start()
    try:
        assert load_image(image).size == (3000, 3000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000  # all of it in float64 alone would be 72


def test_strips_of_a_picture_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(37, 23)).astype(np.float32)
    sources = [Image.fromarray(values), Image.fromarray((values * 9000 + 30000).astype(np.uint16))]
    sources += [photo(23, 37).convert("RGBA").rotate(9), photo(23, 37).quantize(16)]
    sources[-1].info["transparency"] = 3
    whole = [load_image(source).tobytes() for source in sources]
    monkeypatch.setattr("centerhash.data.images._STRIP", 50)
    assert [load_image(source).tobytes() for source in sources] == whole


def test_the_limit_is_exact_and_without_warnings() -> None:
    data = encoded(Image.new("RGB", (20, 10)))
    assert load_image(data, max_pixels=200).size == (20, 10)
    assert "20 x 10 is 200 pixels, more than the limit of 199" in reason(data, max_pixels=199)


def test_the_limit_does_not_depend_on_pillows_global_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Image.open would now refuse 200 pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image(encoded(Image.new("RGB", (20, 10)))).size == (20, 10)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_threads_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    photo(300, 200).save(path)
    expected = load_pixels(path, 64, 56)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: load_pixels(path, 64, 56), range(32)))
    assert all(np.array_equal(result, expected) for result in results)


def test_files_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    frames = [Image.new("L", (4, 4), grey) for grey in (0, 100)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [load_image(path) for _ in range(5)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(kept) == 5
