"""Images that were removed from an index stay removed when their folder is scanned again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import DataError
from centerhash.data import content_key
from centerhash.encoding.code_files import CodeFile, write_codes
from centerhash.search import Index, verify_index
from centerhash.search.items import File
from centerhash.search.library import Scanned
from centerhash.search.store import Store
from tests.toys import cli, noise_image, write_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", 3)
    return tmp_path / "photos"


@pytest.fixture
def index(tmp_path: Path, image_run: Path, photos: Path) -> Iterator[Index]:
    """An index of three photos, the first of which was removed."""
    with Index.create(tmp_path / "index", image_run) as made:
        made.add(photos, progress=False)
        assert made.remove(photos / "000.png") == 1
        yield made


def shown(index: Index) -> list[str]:
    return sorted(Path(path).name for item in index for path in item.paths)


def test_a_scan_leaves_a_removed_image_out_without_reading_it(
    index: Index, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(image: Any) -> str:
        raise AssertionError(f"{image} was read")

    monkeypatch.setattr("centerhash.data.images.content_key", forbidden)
    done = index.add(photos, progress=False)
    assert (done.added, done.known, done.removed, done.has_changed) == (0, 2, 1, False)
    assert repr(done) == "Added(added=0, known=2, broken=0, removed=1)"
    assert shown(index) == ["001.png", "002.png"]
    assert index.info()["details"]["left_out"] == 1
    assert index.verify() == []


@pytest.mark.parametrize("again", ["named", "named with its folder", "pattern", "option"])
def test_it_comes_back_if_it_is_named(index: Index, photos: Path, again: str) -> None:
    entries: Any = {
        "named": photos / "000.png",
        "named with its folder": [photos, photos / "000.png"],
        "pattern": str(photos / "*.png"),
        "option": photos,
    }[again]
    done = index.add(entries, progress=False, with_removed=again == "option")
    assert (done.added, done.removed) == (1, 0)
    assert index.store.removed() == {}
    assert index.add(photos, progress=False).known == 3
    assert index.verify() == []


def test_an_upload_of_it_brings_it_back(index: Index, photos: Path) -> None:
    index.add_bytes((photos / "000.png").read_bytes())
    assert index.store.removed() == {}
    done = index.add(photos, progress=False)
    assert (done.known, done.removed, len(index)) == (3, 0, 3)


def test_a_changed_file_is_new(index: Index, photos: Path) -> None:
    noise_image(seed=99).save(photos / "000.png")
    done = index.add(photos, progress=False)
    assert (done.added, done.removed) == (1, 0)
    assert index.store.removed() == {}
    shutil.copy(photos / "001.png", photos / "000.png")  # now the content of a known one
    index.remove(content_key(photos / "002.png")[:16])
    shutil.copy(photos / "002.png", photos / "001.png")  # and a known path gets the content of a removed one
    done = index.add(photos, progress=False)
    assert (done.added, done.removed) == (0, 2)
    assert shown(index) == ["000.png"]
    assert index.verify() == []


def test_a_touched_moved_or_copied_file_is_recognized_by_its_content(index: Index, photos: Path) -> None:
    os.utime(photos / "000.png", (1, 1))
    assert index.add(photos, progress=False).removed == 1
    (photos / "below").mkdir()
    shutil.copy(photos / "000.png", photos / "below" / "copy.png")
    (photos / "000.png").rename(photos / "moved.png")
    done = index.add(photos, progress=False)
    assert (done.added, done.removed, done.gone) == (0, 2, 0)
    known = {str(photos / name) for name in ("000.png", "moved.png", "below/copy.png")}
    assert set(index.store.removed()) == known
    assert index.add(photos, progress=False).removed == 2
    assert index.add(photos / "moved.png", progress=False).added == 1
    assert index.store.removed() == {}


def test_a_file_that_its_owner_deleted_is_no_removal(index: Index, photos: Path, tmp_path: Path) -> None:
    away = photos / "001.png"
    away.rename(tmp_path / "away.png")
    assert index.add(photos, progress=False).gone == 1
    assert index.remove(index.missing()) == 1
    (tmp_path / "away.png").rename(away)
    done = index.add(photos, progress=False)
    assert (done.added, done.removed) == (1, 1)


def test_a_folder_that_is_removed_is_no_longer_followed(index: Index, photos: Path) -> None:
    assert index.remove(photos) == 2
    assert (index.store.roots(), index.store.removed()) == ([], {})
    assert index.add(photos, progress=False).added == 3


def test_a_folder_below_a_followed_one_stays_removed(index: Index, photos: Path) -> None:
    write_images(photos / "below", 5)  # of which three are known
    index.add(photos / "below", progress=False)
    assert index.store.roots() == [str(photos), str(photos / "below")]
    index.remove(photos / "below")
    assert index.store.roots() == [str(photos)]
    assert index.add(photos, progress=False).added == 0
    assert shown(index) == []


def test_compaction_and_backup_keep_removals(index: Index, photos: Path, tmp_path: Path) -> None:
    before = index.store.removed()
    index.compact()
    assert index.store.removed() == before == {str(photos / "000.png"): before[str(photos / "000.png")]}
    index.backup(tmp_path / "copy", progress=False)
    with Index.open(tmp_path / "copy") as copy:
        assert copy.add(photos, progress=False).removed == 1
    assert verify_index(tmp_path / "copy") == []


def test_an_npz_carries_removals(index: Index, image_run: Path, photos: Path, tmp_path: Path) -> None:
    away = photos / "002.png"
    index.remove(away)
    index.export(tmp_path / "items.npz", progress=False)
    away.rename(tmp_path / "away.png")  # such a file is not on this machine
    with Index.create(tmp_path / "second", image_run) as second:
        second.import_codes(tmp_path / "items.npz")
        assert list(second.store.removed()) == [str(photos / "000.png")]
        done = second.add(photos, progress=False)
        assert (done.added, done.known, done.removed) == (0, 1, 1)
    with Index.create(tmp_path / "third", image_run) as third:
        third.add(photos, progress=False)
        third.import_codes(tmp_path / "items.npz")  # what is an item stays one
        assert (len(third), third.store.removed()) == (2, {})


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[1]",
        '[["a"]]',
        '[["", "/a", 1, 1.0]]',
        '[["a", "b", 1, 1.0]]',
        '[["a", "/b", 1, NaN]]',
        "[" * 99_999,
    ],
)
def test_removals_in_a_wrong_npz_are_refused(index: Index, tmp_path: Path, content: str) -> None:
    packed = np.zeros((1, (index.model_info.bits + 7) // 8), np.uint8)
    codes = CodeFile(index.model_info.bits, packed, names=["a"], removed=content.encode())
    write_codes(tmp_path / "wrong.npz", codes)
    if content == "{}":  # no removals
        assert index.import_codes(tmp_path / "wrong.npz").added == 1
    else:
        with pytest.raises(DataError, match=r"wrong\.npz"):
            index.import_codes(tmp_path / "wrong.npz")
        assert len(index) == 2


def test_the_command_line_counts_what_is_left_out(index: Index, photos: Path) -> None:
    index.close()
    folder = index.folder
    assert "1 removed before, left out" in cli("index", "add", folder, photos).out
    assert "1 image added" in cli("index", "add", folder, photos, "--with-removed").out
    cli("index", "remove", folder, photos)
    assert "3 images added" in cli("index", "add", folder, photos).out


def test_scanned_paths(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    scanned = Scanned((f"{home.resolve()}{os.sep}",), frozenset({str(home / "named.jpg")}))
    assert str(home / "a" / "b.jpg") in scanned
    assert str(tmp_path / "link" / "b.jpg") in scanned
    assert str(home / "named.jpg") not in scanned
    assert str(tmp_path / "home.jpg") not in scanned
    assert str(home / "b.jpg") not in Scanned(())


NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=5)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["note", "forget", "add"]), st.integers(0, 4), NAMES), max_size=20
)


@given(CHANGES)
def test_the_store_keeps_one_removal_per_path(changes: list[tuple[str, int, str]]) -> None:
    """Compare with a dictionary; items are at paths of their own id."""
    import tempfile

    with tempfile.TemporaryDirectory() as place, Store.create(place, 8) as store:
        expected, items = dict[str, str](), set[str]()
        for kind, number, name in changes:
            id, path = f"id{number}", f"/photos/{name}"
            if kind == "note" and id not in items:
                store.note_removed([(id, File(path, number, 1.5))])
                expected[path] = id
            elif kind == "forget":
                store.forget_removed([path])
                expected.pop(path, None)
            elif kind == "add" and id not in items:
                store.add(np.zeros((1, 1), np.uint8), [id], files=[[File(f"/items/{id}")]])
                items.add(id)
                expected = {path: other for path, other in expected.items() if other != id}
            assert {path: pair[0] for path, pair in store.removed().items()} == expected
            assert store.was_removed(id) == (id in expected.values())
        assert store.verify() == []
        store.compact()
        assert {path: pair[0] for path, pair in store.removed().items()} == expected
