"""A photo index in step with folders: files that are new, changed, moved, gone, back, removed or broken."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.locks import writer_lock
from centerhash.data.images import content_key, read_header
from centerhash.photos import PhotoIndex, sync
from centerhash.photos.files import file_at
from tests.photos.pictures import id_of, picture, save, save_many, set_time
from tests.toys import process_environment, wait_until


def counts(photos: PhotoIndex, entries: Any, **choice: Any) -> dict[str, int]:
    """Return what an `add` counted, without zeros and labels."""
    done = photos.add(entries, progress=False, **choice)
    numbers = {name: getattr(done, name) for name in ("added", "known", "moved", "gone", "removed")}
    return {name: count for name, count in {**numbers, "broken": len(done.broken)}.items() if count}


def visible_names(photos: PhotoIndex) -> list[str]:
    """Return the names of the files of all photos that are not hidden."""
    rows, total = photos.list(0, 100)
    assert total == len(photos) == len(rows)
    return sorted(Path(path).name for row in rows for path in row.paths)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: str) -> Any:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(sync, "content_key", forbidden)


# --- changes of a folder of 0.png, 1.png, 2.png; the counts of a second scan; the names of visible files


def rename(folder: Path) -> None:
    (folder / "0.png").rename(folder / "new.png")


def move_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    for name in ("0.png", "1.png"):
        (folder / name).rename(folder / "sub" / name)


def change(folder: Path) -> None:
    save(folder / "0.png", picture(77, 48))


def change_to_known(folder: Path) -> None:
    shutil.copy(folder / "1.png", folder / "0.png")


def copy(folder: Path) -> None:
    shutil.copy2(folder / "0.png", folder / "copy.png")


def link(folder: Path) -> None:
    (folder / "link.png").symlink_to("0.png")


def swap(folder: Path) -> None:
    (folder / "0.png").rename(folder / "x")
    (folder / "1.png").rename(folder / "0.png")
    (folder / "x").rename(folder / "1.png")
    set_time(folder / "0.png", 5)
    set_time(folder / "1.png", 6)


def touch(folder: Path) -> None:
    set_time(folder / "0.png", 5)


def delete(folder: Path) -> None:
    (folder / "0.png").unlink()


def break_file(folder: Path) -> None:
    (folder / "new.png").write_bytes(b"no image")
    Image.new("RGB", (8, 8)).save(folder / "other.png")
    content = (folder / "2.png").read_bytes()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])


CHANGES: list[tuple[Callable[[Path], None], dict[str, int], list[str]]] = [
    (lambda folder: None, {"known": 3}, ["0.png", "1.png", "2.png"]),
    (rename, {"known": 2, "moved": 1}, ["1.png", "2.png", "new.png"]),
    (move_folder, {"known": 1, "moved": 2}, ["0.png", "1.png", "2.png"]),
    (change, {"added": 1, "known": 2}, ["0.png", "1.png", "2.png"]),
    (change_to_known, {"known": 3}, ["0.png", "1.png", "2.png"]),
    (copy, {"known": 4}, ["0.png", "1.png", "2.png", "copy.png"]),
    (link, {"known": 4}, ["0.png", "1.png", "2.png"]),
    (swap, {"known": 3}, ["0.png", "1.png", "2.png"]),
    (touch, {"known": 3}, ["0.png", "1.png", "2.png"]),
    (delete, {"known": 2, "gone": 1}, ["1.png", "2.png"]),
    (break_file, {"added": 1, "known": 3, "broken": 2}, ["0.png", "1.png", "2.png", "other.png"]),
]


@pytest.mark.parametrize(
    ("change", "expected", "names"), CHANGES, ids=[case[0].__name__.strip("<>") for case in CHANGES]
)
def test_add_after_change(
    photos: PhotoIndex, tmp_path: Path, change: Any, expected: dict[str, int], names: list[str]
) -> None:
    folder = tmp_path / "photos"
    save_many(folder, 3)
    assert counts(photos, folder) == {"added": 3}
    change(folder)
    assert counts(photos, folder) == expected
    assert visible_names(photos) == names
    for row in photos.list(0, 100)[0]:
        assert all(id_of(Path(path)) == row.id for path in row.paths)
    assert photos.verify() == []
    again = counts(photos, folder)
    assert again.keys() <= {"known", "broken"}
    assert again["known"] == len(list(folder.rglob("*.png"))) - again.get("broken", 0)


def test_add_unchanged_files(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save_many(tmp_path / "photos", 3)
    (tmp_path / "photos" / "link.png").symlink_to(paths[0].name)
    photos.add(tmp_path / "photos", progress=False)
    version = photos.index.version
    forbid_reading(monkeypatch)
    assert counts(photos, tmp_path / "photos") == {"known": 4}
    assert photos.index.version == version


def test_add_vanished_files(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    paths = save_many(folder, 3)
    copied = Path(shutil.copy2(paths[0], folder / "copy.png"))
    photos.add(folder, progress=False)
    labels = photos.labels()
    for path in paths[:2]:
        path.rename(tmp_path / path.name)
    forbid_reading(monkeypatch)
    assert counts(photos, folder) == {"known": 2, "gone": 2}
    gone = id_of(tmp_path / "1.png")
    assert gone in photos.index
    assert (len(photos), photos.missing(), photos.count().folders) == (2, [gone], {str(folder): 2})
    assert gone not in {row.id for row in photos.search(id=id_of(copied), k=9)}
    assert photos.get(gone).paths == ()
    with pytest.raises(InputError, match=gone):
        photos.image(gone)
    for path in paths[:2]:
        (tmp_path / path.name).rename(path)
    assert counts(photos, folder) == {"known": 4}
    assert (len(photos), photos.labels(), photos.missing()) == (3, labels, [])


def test_add_closed_folders(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_many(tmp_path / "photos" / "closed", 2)
    save(tmp_path / "photos" / "open.png", picture(9))
    photos.add(tmp_path / "photos", progress=False)
    shutil.move(tmp_path / "photos" / "closed", tmp_path / "away")
    (tmp_path / "photos" / "closed").mkdir()
    lstat = os.lstat

    def refusing(path: Any, **choice: Any) -> os.stat_result:
        if Path(os.fspath(path)).parent.name == "closed":
            raise PermissionError(13, "closed")
        return lstat(path, **choice)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refusing)
        assert counts(photos, tmp_path / "photos") == {"known": 1}
    assert counts(photos, tmp_path / "photos") == {"known": 1, "gone": 2}


def test_add_changing_file(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = save_many(tmp_path / "photos", 2)

    def writing(path: str) -> Any:
        if path == str(first):
            set_time(first, 1)
        return read_header(path)

    with monkeypatch.context() as patch:
        patch.setattr(sync, "read_header", writing)
        done = photos.add(tmp_path / "photos", progress=False)
    assert (done.added, list(done.broken)) == (1, [str(first)])
    assert counts(photos, tmp_path / "photos") == {"added": 1, "known": 1}


def test_add_missing_folders(photos: PhotoIndex, tmp_path: Path) -> None:
    for name in ("drive", "photos", "empty"):
        save(tmp_path / name / "a.png", picture(len(name)))
    photos.add([tmp_path / name for name in ("drive", "photos", "empty")], progress=False)
    (tmp_path / "drive").rename(tmp_path / "away")
    (tmp_path / "empty" / "a.png").unlink()
    assert counts(photos, None) == {"known": 1, "gone": 2}
    assert counts(photos, None) == {"known": 1}
    (tmp_path / "away").rename(tmp_path / "drive")
    assert counts(photos, tmp_path / "drive") == {"known": 1}
    assert len(photos) == 2
    shutil.rmtree(tmp_path / "drive")
    assert counts(photos, tmp_path / "drive") == {"gone": 1}


def test_add_changing_copies(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(tmp_path / "photos" / "a.png", picture(0))
    shutil.copy(first, tmp_path / "photos" / "b.png")

    def writing(path: str) -> str:
        key = content_key(path)
        if path == str(first):
            set_time(first, 1)
        return key

    with monkeypatch.context() as patch:
        patch.setattr(sync, "content_key", writing)
        assert counts(photos, tmp_path / "photos") == {"broken": 2}
    assert photos.verify() == []
    assert counts(photos, tmp_path / "photos") == {"added": 1, "known": 1}


# --- removed photos


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ("folder", {"known": 2, "removed": 1}),
        ("named", {"added": 1}),
        ("folder and named", {"added": 1, "known": 2}),
        ("pattern", {"added": 1, "known": 2}),
        ("with_removed", {"added": 1, "known": 2}),
        ("changed", {"added": 1, "known": 2}),
    ],
)
def test_add_removed_photos(photos: PhotoIndex, tmp_path: Path, again: str, expected: dict[str, int]) -> None:
    folder = tmp_path / "photos"
    first, *_ = save_many(folder, 3)
    photos.add(folder, progress=False)
    assert photos.remove(first) == 1
    assert visible_names(photos) == ["1.png", "2.png"]
    if again == "changed":
        save(first, picture(50))
    entries: dict[str, Any] = {
        "named": first,
        "folder and named": [folder, first],
        "pattern": f"{folder}/*.png",
    }
    done = counts(photos, entries.get(again, folder), with_removed=again == "with_removed")
    assert done == expected
    assert len(photos) == (2 if again == "folder" else 3)
    assert counts(photos, folder) == {"known": 3} or again == "folder"
    assert photos.verify() == []


def test_remove_folders(photos: PhotoIndex, tmp_path: Path) -> None:
    save_many(tmp_path / "a", 1)
    save(tmp_path / "b" / "c" / "2.png", picture(2))
    save(tmp_path / "b" / "3.png", picture(3))
    photos.add([tmp_path / "a", tmp_path / "b"], progress=False)
    assert photos.roots() == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert photos.remove([id_of(tmp_path / "a" / "0.png"), tmp_path / "b" / "c"]) == 2
    assert photos.roots() == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert counts(photos, tmp_path / "b") == {"known": 1, "removed": 1}
    assert photos.remove(tmp_path / "b") == 1
    assert photos.roots() == [str(tmp_path / "a")]
    assert counts(photos, tmp_path / "b") == {"added": 2}


def test_remove_missing(photos: PhotoIndex, tmp_path: Path) -> None:
    first, second = save_many(tmp_path / "photos", 2)
    photos.add(tmp_path / "photos", progress=False)
    first.unlink()
    photos.add(tmp_path / "photos", progress=False)
    assert photos.remove(photos.missing()) == 1
    assert photos.remove([]) == photos.remove("nowhere") == 0
    assert (visible_names(photos), photos.missing()) == ([second.name], [])


# --- labels


@pytest.mark.parametrize(
    ("choice", "given", "predicted"), [(None, 2, 1), ("given", 2, 0), ("predicted", 0, 3), ("none", 0, 0)]
)
def test_add_labels(
    photos: PhotoIndex, tmp_path: Path, choice: str | None, given: int, predicted: int
) -> None:
    save_many(tmp_path / "photos" / "images", 3)
    (tmp_path / "photos" / "labels.csv").write_text(
        "file_name,labels\nimages/0.png,zebra|star\nimages/1.png,\n"
    )
    done = photos.add(tmp_path / "photos" / "images", labels=choice, progress=False)
    assert (done.added, done.given, done.predicted) == (3, given, predicted)
    labels = [set(photos.get(id_of(tmp_path / f"photos/images/{n}.png")).labels) for n in range(3)]
    if given:
        assert labels[:2] == [{"zebra", "star"}, set()]
        assert photos.search(labels="zebra")[0].path == str(tmp_path / "photos/images/0.png")
    assert bool(any(labels[2:])) is bool(predicted)


@pytest.mark.parametrize(
    ("entries", "choice", "error"),
    [
        ("photos", {"labels": "mine"}, ConfigError),
        ("photos", {"labels": "given"}, ConfigError),
        ("photos", {"batch": 0}, InputError),
        ("nowhere", {}, DataError),
        ("empty", {}, DataError),
        (None, {}, ConfigError),
    ],
)
def test_add_errors(
    photos: PhotoIndex, tmp_path: Path, entries: str | None, choice: dict[str, Any], error: type[Exception]
) -> None:
    save_many(tmp_path / "photos", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error):
        photos.add(None if entries is None else tmp_path / entries, progress=False, **choice)
    assert len(photos) == 0


def test_add_undecodable_names(photos: PhotoIndex, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    save_many(folder, 2)
    (folder / "0.png").rename(folder / os.fsdecode(b"\xff.png"))
    assert counts(photos, folder) == {"added": 2}
    assert counts(photos, folder) == {"known": 2}
    assert photos.list(under=folder)[1] == 2
    assert photos.get(id_of(folder / "1.png")).path == str(folder / "1.png")


# --- other processes


def test_add_meanwhile(photos: PhotoIndex, tmp_path: Path) -> None:
    save_many(tmp_path / "photos", 1)
    busy = pytest.raises(InputError, match=str(os.getpid()))
    with writer_lock(photos.folder / "sync.lock", ""), busy:
        photos.add(tmp_path / "photos", progress=False)
    assert counts(photos, tmp_path / "photos") == {"added": 1}


@pytest.mark.slow
def test_add_after_kill(photos: PhotoIndex, tmp_path: Path) -> None:
    paths = save_many(tmp_path / "photos", 24)
    code = (
        "import sys; from centerhash.photos import PhotoIndex; "
        "PhotoIndex.open(sys.argv[1]).add(sys.argv[2], batch=1, progress=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(photos.folder), str(tmp_path / "photos")], env=process_environment()
    )
    try:
        wait_until(lambda: len(photos) >= 3 or process.poll() is not None, "three photos are added")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = len(photos)
    assert 3 <= before < 24
    assert photos.verify() == []
    assert counts(photos, tmp_path / "photos") == {"added": 24 - before, "known": before}
    assert visible_names(photos) == sorted(path.name for path in paths)


def test_verify_damaged_rows(photos: PhotoIndex, tmp_path: Path) -> None:
    save_many(tmp_path / "photos", 2)
    photos.add(tmp_path / "photos", progress=False)
    photos.close()
    with sqlite3.connect(photos.folder / "items.db") as connection:
        connection.execute("UPDATE files SET size = size + 1 WHERE name = ?", (b"0.png",))
        connection.execute("UPDATE roots SET checksum = 0")
    connection.close()
    with PhotoIndex.open(photos.folder, read_only=True) as opened:
        problems = opened.verify()
    assert len(problems) == 2
    assert "0.png" in problems[0]


def test_file_at(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", picture(0))
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "loop").symlink_to("loop")
    status = path.stat()
    file = file_at(str(tmp_path / "link"))
    assert file is not None
    assert (file.path, file.size, file.modified) == (str(path), status.st_size, status.st_mtime_ns)
    assert [file_at(str(tmp_path / name)) for name in ("loop", "nowhere", ".", "a\0b")] == [None] * 4
