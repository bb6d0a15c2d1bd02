"""The input of networks, content keys, and lists of image files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError, ImageError
from centerhash.data.images import content_key, load_image, load_pixels, squash_and_crop
from centerhash.data.listing import NO_SUFFIX, find_images, list_images, skipped_text
from tests.data.pictures import encoded, photo

# ---------------------------------------------------------------- the network's view


def test_squash_and_crop() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[2:6, 2:6] = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    cut = squash_and_crop(Image.fromarray(pixels), resize=8, crop=4)
    assert (cut.dtype, cut.flags.c_contiguous) == (np.uint8, True)
    assert np.array_equal(cut, pixels[2:6, 2:6])
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 20:] = 255
    square = squash_and_crop(Image.fromarray(wide), resize=20, crop=20)
    assert (square[:, :9].max(), square[:, 11:].min()) == (0, 255)


def test_load_image_reduced() -> None:
    data = encoded(photo(900, 700), "JPEG", quality=95)
    assert load_image(data, at_least=128).size == (225, 175)
    assert load_image(data, at_least=701).size == (900, 700)
    quick = load_pixels(data, 64, 56)
    slow = squash_and_crop(load_image(data), 64, 56)
    assert quick.shape == (56, 56, 3)
    assert np.array_equal(quick, load_pixels(data, 64, 56))
    assert np.abs(quick.astype(int) - slow.astype(int)).mean() < 1.5


# ---------------------------------------------------------------- keys and lists


def test_content_key(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(300_000)
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(data)
    assert content_key(tmp_path / "a.jpg") == hashlib.sha256(data).hexdigest()
    assert content_key(str(tmp_path / "b.png")) == content_key(tmp_path / "a.jpg")
    with pytest.raises(ImageError):
        content_key(tmp_path / "c.jpg")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    pictures = ["b.jpg", "a.PNG", "sub/c.webp", "sub/deep/d.jpeg"]
    for name in [*pictures, "notes.txt", ".e.jpg", ".hid/f.jpg", "odd"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "folder.jpg").mkdir()
    return tmp_path


def listed_names(tree: Path, *entries: str) -> list[str]:
    return [path.relative_to(tree).as_posix() for path in list_images([tree / entry for entry in entries])]


def test_list_images_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-b.jpg", "a/b.jpg", "a/b/c.jpg", "a b/d.jpg", "B.jpg", "a/b-c.jpg", "é.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    paths = list_images([tmp_path])
    assert len(paths) == 7
    assert paths == sorted(paths)
    monkeypatch.chdir(tmp_path)
    assert list_images(["."]) == list_images(["./"]) == [path.relative_to(tmp_path) for path in paths]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((".hid",), [".hid/f.jpg"]),  # a hidden folder may be named
        ((".hid/*.jpg",), [".hid/f.jpg"]),
        (("odd", "b.jpg", "a.PNG"), ["odd", "b.jpg", "a.PNG"]),  # in the order given, whatever the suffix
        ((".",), ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.jpeg"]),
        (("*",), ["a.PNG", "b.jpg"]),
        (("**/*.jp*g",), ["b.jpg", "sub/deep/d.jpeg"]),
        (("x[1].jpg",), ["x[1].jpg"]),  # a file whose name looks like a pattern
        (("b.jpg", "*.jpg", "sub", "b.jpg"), ["b.jpg", "sub/c.webp", "sub/deep/d.jpeg"]),  # each once
    ],
)
def test_list_images(tree: Path, entries: tuple[str, ...], expected: list[str]) -> None:
    if "x[1].jpg" in entries:
        (tree / "x[1].jpg").write_bytes(b"x")
    assert listed_names(tree, *entries) == expected


def test_list_images_links(tree: Path) -> None:
    (tree / "linked").symlink_to(tree / "sub")
    (tree / "c.jpg").symlink_to(tree / "b.jpg")
    (tree / "gone.jpg").symlink_to(tree / "no.jpg")
    (tree / "itself.jpg").symlink_to(tree / "itself.jpg")
    assert listed_names(tree, ".") == ["a.PNG", "b.jpg", "c.jpg", "sub/c.webp", "sub/deep/d.jpeg"]


def test_find_images_skipped(tree: Path) -> None:
    (tree / "film.MOV").write_bytes(b"x")
    files = find_images([tree, tree / "b.jpg"])
    assert files.names == [str(tree / name) for name in ("a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.jpeg")]
    assert list(map(Path, files.names)) == list_images([tree])
    assert files.skipped == {".mov": 1, ".txt": 1, NO_SUFFIX: 1}
    assert skipped_text(files.skipped) == ".mov 1, .txt 1, files without a suffix 1"


@pytest.mark.parametrize(
    ("inputs", "fault"),
    [
        (("b.jpg", "zzz.jpg"), r"zzz\.jpg': no such file or folder"),
        (("b.jpg", "empty"), r"empty': looked for \.avif, \.bmp"),
        (("*.gif",), r"\*\.gif'"),
        (("**x",), r"\*\*x'"),
        (("x" * 300,), "File name too long"),
        ((), "no images were named"),
    ],
)
def test_list_images_error(tree: Path, inputs: tuple[str, ...], fault: str) -> None:
    (tree / "empty").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=fault):
        listed_names(tree, *inputs)
