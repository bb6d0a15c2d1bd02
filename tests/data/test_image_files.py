from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError, ImageError, InputError
from centerhash.data.images import (
    content_key,
    load_image,
    load_pixels,
    squash_and_crop,
)
from centerhash.data.listing import Paths, find_images, list_images
from tests.data.pictures import encoded, photo

# ---------------------------------------------------------------- the network's view


def test_squash_and_crop_takes_the_centre_of_the_squashed_frame() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[2:6, 2:6] = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    cut = squash_and_crop(Image.fromarray(pixels), resize=8, crop=4)
    assert cut.dtype == np.uint8
    assert cut.flags.c_contiguous
    assert np.array_equal(cut, pixels[2:6, 2:6])


def test_the_whole_frame_is_squashed_not_cropped() -> None:
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 20:] = 255
    square = squash_and_crop(Image.fromarray(wide), resize=20, crop=20)
    assert square.shape == (20, 20, 3)
    assert square[:, :9].max() == 0
    assert square[:, 11:].min() == 255


def test_reduction_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    small = squash_and_crop(Image.fromarray(stripes), resize=16, crop=8)
    assert np.abs(small.astype(int) - 127).max() <= 2


@pytest.mark.parametrize(("resize", "crop"), [(10, 11), (10, 0), (0, 0)])
def test_impossible_crop(resize: int, crop: int) -> None:
    with pytest.raises(InputError, match=rf"the crop must be 1 to {resize} .*, got {crop}"):
        squash_and_crop(photo(4, 4), resize, crop)
    with pytest.raises(InputError, match="RGB"):
        squash_and_crop(Image.new("L", (4, 4)))


def test_large_jpegs_are_decoded_small_but_look_the_same() -> None:
    data = encoded(photo(900, 700), "JPEG", quality=95)
    assert load_image(data, at_least=128).size == (225, 175)
    assert load_image(data, at_least=701).size == (900, 700)
    quick = load_pixels(data, 64, 56)
    slow = squash_and_crop(load_image(data), 64, 56)
    assert quick.shape == (56, 56, 3)
    assert np.array_equal(quick, load_pixels(data, 64, 56))
    assert np.abs(quick.astype(int) - slow.astype(int)).mean() < 1.5


def test_images_that_are_no_jpeg_or_small_are_decoded_whole() -> None:
    for data in (encoded(photo(300, 300)), encoded(photo(100, 100), "JPEG")):
        assert np.array_equal(load_pixels(data, 64, 56), squash_and_crop(load_image(data), 64, 56))


# ---------------------------------------------------------------- keys and lists


def test_content_key_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(300_000)
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(data)
    assert content_key(tmp_path / "a.jpg") == hashlib.sha256(data).hexdigest()
    assert content_key(str(tmp_path / "b.png")) == content_key(tmp_path / "a.jpg")
    with pytest.raises(ImageError):
        content_key(tmp_path / "c.jpg")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in [
        "b.jpg",
        "a.PNG",
        "sub/c.webp",
        "sub/deep/d.jpeg",
        "notes.txt",
        ".e.jpg",
        ".hid/f.jpg",
        "odd",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "folder.jpg").mkdir()
    return tmp_path


def found(tree: Path, *entries: str) -> list[str]:
    return [path.relative_to(tree).as_posix() for path in list_images([tree / entry for entry in entries])]


def test_a_folder_is_searched_to_the_bottom_and_sorted(tree: Path) -> None:
    assert found(tree, ".") == ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.jpeg"]


def test_files_are_sorted_folder_by_folder_as_paths_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (("*",), ["a.PNG", "b.jpg"]),
        (("**/*.jp*g",), ["b.jpg", "sub/deep/d.jpeg"]),
        (("x[1].jpg",), ["x[1].jpg"]),  # a file whose name looks like a pattern
        (("b.jpg", "*.jpg", "sub", "b.jpg"), ["b.jpg", "sub/c.webp", "sub/deep/d.jpeg"]),  # each once
    ],
)
def test_files_folders_and_patterns(tree: Path, entries: tuple[str, ...], expected: list[str]) -> None:
    if "x[1].jpg" in entries:
        (tree / "x[1].jpg").write_bytes(b"x")
    assert found(tree, *entries) == expected


def test_a_relative_pattern_and_a_single_path(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert list_images(["sub/*"]) == [Path("sub/c.webp")]
    assert list_images(str(tree / "b.jpg")) == [tree / "b.jpg"]


def test_paths_are_made_of_text_when_asked_for(tree: Path) -> None:
    paths = find_images([tree]).images
    assert paths[0] == tree / "a.PNG"
    assert list(paths[1:].names) == [str(tree / name) for name in ("b.jpg", "sub/c.webp", "sub/deep/d.jpeg")]
    assert len(paths) == 4
    assert list(paths) == list_images([tree])


def test_many_paths_of_any_bytes_come_back_in_their_order() -> None:
    names = [f"photos/{number:05d}/\udcff é \n.jpg" for number in range(1_000)]
    paths = Paths(iter(names))
    assert list(paths.names) == names
    assert [str(paths[place]) for place in (0, 255, 256, 999, -1)] == [
        names[place] for place in (0, 255, 256, 999, 999)
    ]
    assert list(paths[250:600:100]) == [Path(names[place]) for place in (250, 350, 450, 550)]
    with pytest.raises(IndexError):
        paths[1_000]
    assert not Paths([])


def test_folders_that_are_links_are_not_gone_into(tree: Path) -> None:
    (tree / "linked").symlink_to(tree / "sub")
    (tree / "c.jpg").symlink_to(tree / "b.jpg")
    (tree / "gone.jpg").symlink_to(tree / "no.jpg")
    (tree / "itself.jpg").symlink_to(tree / "itself.jpg")
    assert found(tree, ".") == ["a.PNG", "b.jpg", "c.jpg", "sub/c.webp", "sub/deep/d.jpeg"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (("b.jpg", "zzz.jpg"), r"cannot list '.*zzz\.jpg': no such file or folder\."),
        (("b.jpg", "empty"), r"no image in the folder '.*empty': looked for \.avif, \.bmp"),
        (("*.gif",), r"no image in the pattern '.*\*\.gif'"),
        (("**x",), r"\*\*x'"),
        (("x" * 300,), "File name too long"),
        ((), "no images were named: give files, folders or patterns"),
    ],
)
def test_nothing_found(tree: Path, inputs: tuple[str, ...], words: str) -> None:
    (tree / "empty").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=words):
        found(tree, *inputs)
