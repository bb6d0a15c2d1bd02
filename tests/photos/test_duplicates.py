"""Duplicates among photos: equal files, changed copies, and photos that look alike."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from centerhash.core.errors import ConfigError, DataError
from centerhash.photos import PhotoIndex, duplicates
from centerhash.photos.duplicates import Duplicates
from tests.photos.pictures import id_of, picture, recompressed, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photo 0 with two equal copies and changed ones, photo 1 mirrored; photos 2 and 3 are others."""
    root = tmp_path / "photos"
    whole = picture(0)
    first = save(root / "0.png", whole)
    for name in ("0-copy.png", "0-copy-2.png"):
        shutil.copy(first, root / name)
    save(root / "0-small.jpg", whole.resize((90, 90)))
    save(root / "0-again.jpg", recompressed(whole))
    save(root / "0-rotated.jpg", whole.transpose(Image.Transpose.ROTATE_90))
    save(root / "0-cropped.jpg", whole.crop((10, 20, 170, 180)))
    picture(1).save(root / "1.png", compress_level=1)
    ImageOps.mirror(picture(1)).save(root / "1-mirrored.png", compress_level=9)
    save(root / "2.png", picture(2))
    save(root / "3.png", picture(3, 300))
    return root


def named(duplicates: Duplicates) -> list[tuple[str, str, set[str]]]:
    """Return the kind, the first file and the others of each group."""
    found = [(group.kind, [Path(path).name for path in group.paths]) for group in duplicates]
    return [(kind, paths[0], set(paths[1:])) for kind, paths in found]


def test_groups(photos: PhotoIndex, folder: Path) -> None:
    photos.add(folder, progress=False)
    found = photos.duplicates(progress=False)
    assert named(found)[:3] == [
        ("same", "0.png", {"0-copy.png", "0-copy-2.png"}),
        ("near", "0.png", {"0-small.jpg", "0-again.jpg", "0-rotated.jpg", "0-cropped.jpg"}),
        ("near", "1.png", {"1-mirrored.png"}),
    ]
    assert {kind for kind, *_ in named(found)[3:]} <= {"similar"}
    assert (found.compared, found.skipped) == (11, {})
    for group in found:
        sizes = [Path(path).stat().st_size for path in group.paths]
        assert sizes[0] == max(sizes)
        assert list(group.ids) == [id_of(Path(path)) for path in group.paths]
    later = [path for group in found for path in group.paths[1:]]
    assert len(later) == len(set(later))
    assert found.to_dict() == {
        "groups": [{"kind": group.kind, "paths": list(group.paths)} for group in found]
    }
    for kind in ("same", "near", "similar"):
        assert list(photos.duplicates(kind=kind, progress=False)) == list(found.of_kind(kind))


def test_similar_photos(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance of two general codes decides."""
    paths = [save(tmp_path / f"{seed}.png", picture(seed, 48 + seed)) for seed in range(2)]
    photos.add(paths, progress=False)
    first, second = (item.general for item in photos.index.get([id_of(path) for path in paths]))
    assert first is not None
    assert second is not None
    apart = int(np.bitwise_count(first ^ second).sum())
    for bits, groups in ((apart - 1, 0), (apart, 1)):
        monkeypatch.setattr(duplicates, "SIMILAR_BITS", bits)
        assert len(photos.duplicates(kind="similar", progress=False)) == groups


def test_links_are_one_file(photos: PhotoIndex, tmp_path: Path) -> None:
    first = save(tmp_path / "album" / "a.jpg", picture(0))
    save(tmp_path / "album" / "b.jpg", picture(1))
    (tmp_path / "album" / "link.jpg").symlink_to(first)
    os.link(first, tmp_path / "album" / "hard.jpg")
    photos.add(tmp_path / "album", progress=False)
    found = photos.duplicates(kind="same", progress=False)
    assert (list(found), found.compared) == ([], 2)


def test_edited_and_missing_files(photos: PhotoIndex, tmp_path: Path) -> None:
    edited, missing = (
        save(tmp_path / "p" / "a.jpg", picture(0)),
        save(tmp_path / "p" / "b.jpg", picture(0, 90)),
    )
    save(tmp_path / "p" / "c.jpg", picture(0, 120))
    photos.add(tmp_path / "p", progress=False)
    save(edited, picture(7))
    missing.unlink()
    found = photos.duplicates(kind="near", progress=False)
    assert (list(found), found.compared) == ([], 1)
    assert set(found.skipped) == {str(edited), str(missing)}


def test_kinds_that_are_rejected(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(photos.duplicates(progress=False)) == 0
    with pytest.raises(ConfigError, match="simlar"):
        photos.duplicates(kind="simlar", progress=False)
    monkeypatch.setattr(photos.index, "general_bits", None)
    with pytest.raises(DataError, match="general"):
        photos.duplicates(kind="similar", progress=False)
