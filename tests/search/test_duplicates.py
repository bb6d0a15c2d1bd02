from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from centerhash.codes import Packed
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError
from centerhash.data import content_key
from centerhash.model.model import HashModel
from centerhash.search import Index, duplicates
from centerhash.search.duplicates import Duplicates, Looks, find_duplicates, folder_duplicates
from centerhash.search.near_pairs import pixel_distances
from tests.toys import noise_image, write_images


def visual_of(path: Path) -> Packed:
    """A stand-in for a visual code: photos whose names begin with the same number look alike."""
    family = int(path.stem.split("-")[0])
    return np.random.default_rng(family).integers(0, 256, 16, dtype=np.uint8)


def looks_of(paths: list[Path], /, **changes: Any) -> Looks:
    given = {
        "ids": [content_key(path)[:16] if path.exists() else path.name for path in paths],
        "paths": paths,
        "visual": np.stack([visual_of(path) for path in paths]),
        "coded": np.ones(len(paths), bool),
    }
    return Looks(**{**given, **changes})


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Photo 0 with two equal copies and a small one, photo 1 mirrored; photo 2 only looks like photo 3."""
    first, second = noise_image(200, 0), noise_image(200, 1)
    first.save(tmp_path / "0.png")
    for name in ("0-copy.png", "0-copy-<script>.png"):
        shutil.copy(tmp_path / "0.png", tmp_path / name)
    first.resize((90, 90)).save(tmp_path / "0-small.jpg", quality=60)
    second.save(tmp_path / "1.png", compress_level=1)  # the larger file
    ImageOps.mirror(second).save(tmp_path / "1-mirrored.png", compress_level=9)
    noise_image(200, 2).save(tmp_path / "3.png")
    noise_image(300, 3).save(tmp_path / "3-other.png")
    noise_image(200, 4).save(tmp_path / "4.png")
    return sorted(tmp_path.iterdir())


def named(found: Duplicates) -> list[tuple[str, str, set[str]]]:
    return [
        (group.kind, Path(group.keep.path or "").name, {Path(one.path or "").name for one in group.others})
        for group in found
    ]


def test_three_kinds_of_groups_and_which_to_keep(photos: list[Path]) -> None:
    found = find_duplicates(looks_of(photos))
    assert named(found) == [
        ("same", "0.png", {"0-copy.png", "0-copy-<script>.png"}),
        ("near", "0.png", {"0-small.jpg"}),
        ("near", "1.png", {"1-mirrored.png"}),
        ("similar", "3-other.png", {"3.png"}),
    ]
    near = found.of_kind("near")[0]
    assert (near.keep.width, near.keep.height) == (200, 200)
    assert near.others[0].bits == 0
    assert near.others[0].pixels is not None
    assert found.looked_at == len(photos)
    for kind in duplicates.KINDS:
        assert list(find_duplicates(looks_of(photos), kind=kind)) == list(found.of_kind(kind))
    others = [one.path for group in found for one in group.others]
    assert len(others) == len(set(others)) == 5  # each is proposed for removal once


def test_near_ones_must_be_near_by_the_visual_code_too(photos: list[Path]) -> None:
    visual = np.stack([visual_of(path) for path in photos])
    visual[[path.name == "0-small.jpg" for path in photos]] ^= 0b11  # 32 bits
    looks = looks_of(photos, visual=visual)
    assert ("near", "0.png", {"0-small.jpg"}) in named(find_duplicates(looks, near=32))
    assert ("near", "0.png", {"0-small.jpg"}) not in named(find_duplicates(looks, near=31))


def test_files_that_are_gone_are_compared_by_visual_code_alone(photos: list[Path]) -> None:
    gone = [path.with_name(f"{path.stem.split('-')[0]}-{row}.gone") for row, path in enumerate(photos)]
    found = find_duplicates(looks_of(gone))
    assert {group.kind for group in found} == {"similar"}
    assert "9 of 9 images" in found.notes[0]
    assert found[0].keep.width is None
    without = find_duplicates(looks_of(gone, paths=[None] * len(gone)))
    assert (without.skipped, "9 of 9" in without.notes[0]) == ({}, True)
    uncoded = find_duplicates(looks_of(photos, coded=np.zeros(len(photos), bool)))
    assert [group.kind for group in uncoded] == ["same"]


def test_bad_options(photos: list[Path]) -> None:
    for near in (-1, 129, 2.5, True):
        with pytest.raises(InputError, match=f"near .*{near}"):
            find_duplicates(looks_of(photos), near=near)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'simlar'"):
        find_duplicates(looks_of(photos), kind="simlar")


def test_as_json_as_a_table_and_as_a_page(photos: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    found = find_duplicates(looks_of(photos))
    assert repr(found) == "Duplicates(1 same, 2 near, 1 similar; 9 images)"
    assert found.to_dict()["groups"][0]["keep"]["path"].endswith("0.png")
    assert found.to_pandas()["keep"].sum() == 4
    found.write_page(tmp_path / "page" / "duplicates.html")
    page = (tmp_path / "page" / "duplicates.html").read_text()
    assert page.count("<img") == page.count("data:image/jpeg;base64") == 9
    assert page.count('class="keep"') == 4
    assert "<script>" not in page
    assert "0-copy-&lt;script&gt;.png" in page


# --- folders and indexes


def test_a_folder_by_content_alone_needs_no_model(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 3)
    shutil.copy(paths[1], tmp_path / "copy.png")
    found = folder_duplicates(tmp_path, model=tmp_path / "no model", kind="same", progress=False)
    assert named(found) == [("same", "001.png", {"copy.png"})]


def test_a_folder_with_a_model_that_sees(image_run: Path, tmp_path: Path) -> None:
    for number in range(4):
        noise_image(200, number).save(tmp_path / f"{number}.png")
    noise_image(200, 1).resize((150, 150)).save(tmp_path / "smaller.png")
    shutil.copy(tmp_path / "2.png", tmp_path / "2-copy.png")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "broken-too.jpg").write_bytes(b"no image")
    model = HashModel.load(image_run)
    assert model.visual_bits == 128
    found = folder_duplicates(tmp_path, model=model, near=128, device="cpu", progress=False)
    assert named(found)[:2] == [("same", "2.png", {"2-copy.png"}), ("near", "1.png", {"smaller.png"})]
    assert found.looked_at == 6
    assert sorted(Path(path).name for path in found.skipped) == ["broken-too.jpg", "broken.jpg"]


def test_folders_that_are_rejected(feature_run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        folder_duplicates(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    (tmp_path / "empty.png").touch()
    with pytest.raises(DataError, match=r"1 of 2 images .* two.*0 bytes"):
        folder_duplicates(tmp_path, kind="same", progress=False)
    write_images(tmp_path, 2)
    with pytest.raises(ConfigError, match="visual"):
        folder_duplicates(tmp_path, model=feature_run, progress=False)


def test_an_index_by_its_visual_codes(image_run: Path, photos: list[Path], tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", image_run) as index:
        with pytest.raises(DataError, match="0 items"):
            index.duplicates(progress=False)
        index.add_codes(np.zeros((2, 4), np.uint8), "ab", [["cat"], []])
        with pytest.raises(DataError, match="visual code"):
            index.duplicates(progress=False)
        assert len(index.duplicates(kind="same", progress=False)) == 0
        by_content = {content_key(path)[:16]: path for path in reversed(photos)}
        paths = [str(path) for path in by_content.values()]
        visual = [visual_of(path) for path in by_content.values()]
        codes = np.zeros((len(paths), 4), np.uint8)
        index.add_codes(codes, list(by_content), None, paths, visual)
        found = index.duplicates(progress=False)
    assert sorted(group.kind for group in found) == ["near", "near", "similar"]
    assert found.looked_at == len(paths) + 2


# --- pixel hashes


def encoded_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


@pytest.mark.parametrize(
    "change",
    [
        encoded_again,
        lambda image: image.resize((100, 90)),
        lambda image: ImageEnhance.Brightness(image).enhance(1.2),
        ImageOps.mirror,
        lambda image: image.crop((0, 20, 180, 200)),
    ],
    ids=["encoded", "resized", "brightened", "mirrored", "cropped"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_photo_is_near(change: Callable[[Image.Image], Image.Image], seed: int) -> None:
    images = (noise_image(200, seed), change(noise_image(200, seed)), noise_image(200, 99))
    views = np.stack([duplicates.views_of(image) for image in images])
    near, far = pixel_distances(views, np.array([0, 2]), 1)
    assert near <= duplicates.PIXELS < far


def test_the_pixel_hash_is_that_of_imagehash() -> None:
    images = [noise_image(50, seed).convert("L") for seed in range(40)]
    images += [Image.new("L", (128, 128), 90), Image.linear_gradient("L"), Image.radial_gradient("L")]
    expected = np.stack([imagehash.phash(image).hash.ravel() for image in images])
    found = np.unpackbits(duplicates.pixel_hashes(images).view(np.uint8)).reshape(len(images), 64)
    np.testing.assert_array_equal(found, expected)


def test_views_of_files_and_why_others_cannot_be_read(tmp_path: Path) -> None:
    paths = dict(enumerate([*write_images(tmp_path, 3), tmp_path / "gone.png"]))
    seen: list[int] = []
    found, broken = duplicates.read_views(paths, lambda stage, done, total, note="": seen.append(done))
    assert {row: views.shape for row, views in found.items()} == dict.fromkeys(range(3), (duplicates.VIEWS,))
    assert list(broken) == [3]
    assert isinstance(broken[3], ImageError)
    assert seen[-1] == 4
