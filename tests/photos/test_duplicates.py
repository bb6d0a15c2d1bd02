"""Duplicates among photos: equal files, changed copies, and photos that look alike."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from centerhash.core.errors import ConfigError, DataError
from centerhash.photos import PhotoIndex, duplicates
from centerhash.photos.duplicates import Duplicates, star_groups
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
    return [
        (group.kind, Path(group.paths[0]).name, {Path(path).name for path in group.paths[1:]})
        for group in duplicates
    ]


def test_duplicates(photos: PhotoIndex, folder: Path) -> None:
    photos.add(folder, progress=False)
    groups = photos.duplicates(progress=False)
    assert named(groups)[:3] == [
        ("same", "0.png", {"0-copy.png", "0-copy-2.png"}),
        ("near", "0.png", {"0-small.jpg", "0-again.jpg", "0-rotated.jpg", "0-cropped.jpg"}),
        ("near", "1.png", {"1-mirrored.png"}),
    ]
    assert {kind for kind, *_ in named(groups)[3:]} <= {"similar"}
    assert (groups.compared, groups.skipped) == (11, {})
    for group in groups:
        sizes = [Path(path).stat().st_size for path in group.paths]
        assert sizes[0] == max(sizes)
        assert list(group.ids) == [id_of(Path(path)) for path in group.paths]
    later = [path for group in groups for path in group.paths[1:]]
    assert len(later) == len(set(later))
    expected = [{"kind": group.kind, "paths": list(group.paths)} for group in groups]
    assert groups.to_dict() == {"groups": expected}
    for kind in ("same", "near", "similar"):
        assert list(photos.duplicates(kind=kind, progress=False)) == list(groups.of_kind(kind))


def test_similar_duplicates(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_duplicates_of_links(photos: PhotoIndex, tmp_path: Path) -> None:
    first = save(tmp_path / "album" / "a.jpg", picture(0))
    save(tmp_path / "album" / "b.jpg", picture(1))
    (tmp_path / "album" / "link.jpg").symlink_to(first)
    os.link(first, tmp_path / "album" / "hard.jpg")
    photos.add(tmp_path / "album", progress=False)
    groups = photos.duplicates(kind="same", progress=False)
    assert (list(groups), groups.compared) == ([], 2)


def test_skipped_files(photos: PhotoIndex, tmp_path: Path) -> None:
    edited = save(tmp_path / "p" / "a.jpg", picture(0))
    missing = save(tmp_path / "p" / "b.jpg", picture(0, 90))
    save(tmp_path / "p" / "c.jpg", picture(0, 120))
    photos.add(tmp_path / "p", progress=False)
    save(edited, picture(7))
    missing.unlink()
    groups = photos.duplicates(kind="near", progress=False)
    assert (list(groups), groups.compared) == ([], 1)
    assert set(groups.skipped) == {str(edited), str(missing)}


def test_rejected_kinds(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(photos.duplicates(progress=False)) == 0
    with pytest.raises(ConfigError, match="simlar"):
        photos.duplicates(kind="simlar", progress=False)
    monkeypatch.setattr(photos.index, "general_bits", None)
    with pytest.raises(DataError, match="general"):
        photos.duplicates(kind="similar", progress=False)


@given(st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11))), st.permutations(range(12)))
def test_star_groups(pairs: set[tuple[int, int]], order: list[int]) -> None:
    # Each node has two rows, which belong to the same photo.
    members = {node: [rank, rank + 12] for rank, node in enumerate(order)}
    node_of = {row: node for node, rows in members.items() for row in rows}
    linked = pairs | {(second, first) for first, second in pairs} | {(node, node) for node in order}
    groups = star_groups(members, pairs)
    assert sorted(row for group in groups for row in group) == list(range(24))
    for first, *others in groups:
        assert all((node_of[first], node_of[row]) in linked and first < row for row in others)
    firsts = {node_of[group[0]] for group in groups}
    assert not any((a, b) in linked for a in firsts for b in firsts if a != b)


def test_star_groups_of_a_chain() -> None:
    chain = [(0, 1), (1, 2), (2, 3)]
    assert star_groups({row: [row] for row in range(4)}, chain) == [[0, 1], [2, 3]]
    assert star_groups({row: [row] for row in (1, 0, 2, 3)}, chain) == [[0, 1, 2]]
