from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.search import moving
from centerhash.search.moving import (
    JOURNAL,
    Wanted,
    find_journal,
    last_batch,
    move,
    plan_moves,
    transfer,
    undo,
)


def wanted(path: Path, keep: Path) -> Wanted:
    found = path.stat()
    return Wanted(path, found.st_size, found.st_mtime_ns, keep)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files by their relative paths, except the journal and its lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (JOURNAL, "moved.lock", "moved.lock.pid")
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three copies of a photo in three folders, one with sidecar files."""
    root = tmp_path / "photos"
    for name in ("album/a.jpg", "backup/a.jpg", "phone/x/a.jpg", "phone/b.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 1000)
    (root / "backup/a.jpg.xmp").write_bytes(b"<own>")
    (root / "backup/a.AAE").write_bytes(b"<edit>")
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "duplicates"


def plan(root: Path, target: Path, *names: str) -> list[moving.Planned]:
    keep = root / "album/a.jpg"
    found, skipped = plan_moves([wanted(root / name, keep) for name in names], target, root)
    assert skipped == {}
    return found


NAMES = ("backup/a.jpg", "phone/x/a.jpg")
MOVED = {"backup/a.jpg", "backup/a.jpg.xmp", "backup/a.AAE", "phone/x/a.jpg"}


@pytest.fixture(params=["linked", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How files move: by a hard link, or by a copy as between file systems."""
    if request.param == "copied":

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


def test_moved_and_moved_back(photos: Path, target: Path, way: str) -> None:
    move([], target)
    assert not target.exists()
    before = contents(photos)
    times = {path: path.stat().st_mtime_ns for path in photos.rglob("*.jpg")}
    done = move(plan(photos, target, *NAMES), target)
    assert (done.photos, done.sidecars, done.skipped) == (2, 2, {})
    assert contents(target) == {name: before[name] for name in MOVED}
    assert contents(photos) == {name: data for name, data in before.items() if name not in MOVED}
    assert last_batch(target) == done.batch
    lines = [json.loads(line) for line in (target / JOURNAL).read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["move", "done", "move", "done"]
    back = undo(target)
    assert (back.photos, back.sidecars, back.skipped) == (2, 2, {})
    assert contents(photos) == before
    assert contents(target) == {}
    assert {path: path.stat().st_mtime_ns for path in photos.rglob("*.jpg")} == times
    assert last_batch(target) is None
    assert undo(target).photos == 0


def kill_at(point: int, work: Callable[[], object]) -> bool:
    """Run `work` in a process that is killed before its n-th change on the disk; return whether it ended before."""

    def child() -> None:
        count = itertools.count()
        for name in ("fsync", "link", "unlink", "rename", "mkdir", "ftruncate"):
            original = getattr(os, name)

            def counted(*arguments: Any, original: Any = original, **named: Any) -> Any:
                if next(count) == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **named)

            setattr(os, name, counted)
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def points() -> Iterator[int]:
    for point in itertools.count():
        assert point < 200
        yield point


@pytest.mark.slow
def test_a_kill_at_any_point_loses_nothing(photos: Path, target: Path, way: str) -> None:
    before = contents(photos)
    for point in points():
        ended = kill_at(point, lambda: move(plan(photos, target, *NAMES), target))
        everywhere = {**contents(target), **contents(photos)}
        assert {name: everywhere.get(name) for name in before} == before
        left = [name for name in NAMES if (photos / name).exists()]
        move(plan(photos, target, *left), target)  # the same command again
        assert set(contents(photos)) == {"album/a.jpg", "phone/b.jpg"}
        assert set(contents(target).values()) == {before[name] for name in MOVED}
        assert undo(target).skipped == {}
        assert contents(photos) == before
        assert contents(target) == {}
        if ended:
            break


@pytest.mark.slow
def test_a_kill_while_moving_back_loses_nothing(photos: Path, target: Path, way: str) -> None:
    before = contents(photos)
    for point in points():
        move(plan(photos, target, *NAMES), target)
        ended = kill_at(point, lambda: undo(target))
        everywhere = {**contents(target), **contents(photos)}
        assert {name: everywhere.get(name) for name in before} == before
        assert undo(target).skipped == {}
        assert contents(photos) == before
        assert contents(target) == {}
        if ended:
            break


def test_a_cut_last_line_is_dropped_and_a_damaged_one_is_an_error(photos: Path, target: Path) -> None:
    move(plan(photos, target, NAMES[0]), target)
    journal = target / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"move": 1, "ba')
    assert undo(target).photos == 1
    journal.write_bytes(b"no json\n" + whole)
    with pytest.raises(DataError, match=f"{JOURNAL}.*line 1"):
        undo(target)
    line = {"move": 0, "batch": "x", "files": [[str(photos / "phone/b.jpg"), "../elsewhere/b.jpg"]]}
    journal.write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=JOURNAL):
        undo(target)
    assert (photos / "phone/b.jpg").exists()


def test_nothing_is_overwritten(photos: Path, target: Path) -> None:
    first = move(plan(photos, target, NAMES[0]), target)
    (photos / NAMES[0]).write_bytes(b"a new photo")
    (photos / "backup/a.jpg.xmp").write_bytes(b"new edits")
    move(plan(photos, target, NAMES[0]), target)
    names = {"backup/a.jpg", "backup/a.jpg.xmp", "backup/a.AAE", "backup/a-1.jpg", "backup/a-1.jpg.xmp"}
    assert set(contents(target)) == names
    (photos / NAMES[0]).write_bytes(b"a third photo")
    back = undo(target, batch=first.batch)
    assert (back.photos, list(back.skipped)) == (0, [str(photos / NAMES[0])])
    assert (photos / NAMES[0]).read_bytes() == b"a third photo"
    with pytest.raises(OutputError, match="backup"):
        transfer(photos / NAMES[0], photos / "album/a.jpg")


def test_what_is_not_moved(photos: Path, target: Path, tmp_path: Path) -> None:
    keep = photos / "album/a.jpg"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.jpg").write_bytes(b"outside")
    (photos / "link.jpg").symlink_to(outside / "c.jpg")
    (photos / "linked").symlink_to(outside)
    changed = wanted(photos / "phone/b.jpg", keep)
    (photos / "phone/b.jpg").write_bytes(b"edited")
    others = [photos / "link.jpg", photos / "linked/c.jpg", outside / "c.jpg"]
    found, skipped = plan_moves([changed, *(wanted(path, keep) for path in others)], target, photos)
    assert found == []
    assert set(skipped) == {str(photos / "phone/b.jpg"), *map(str, others)}
    os.link(keep, photos / "hard.jpg")
    _, skipped = plan_moves([wanted(photos / "hard.jpg", keep)], target, photos)
    assert list(skipped) == [str(photos / "hard.jpg")]
    planned = plan(photos, target, *NAMES)
    keep.rename(photos / "album/renamed.jpg")  # the photo to keep is gone
    assert set(move(planned, target).skipped) == {str(photos / name) for name in NAMES}
    assert contents(target) == {}


def test_a_target_that_leads_elsewhere_is_refused(photos: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target.mkdir()
    (target / JOURNAL).touch()
    (target / "backup").symlink_to(tmp_path / "outside")
    found, skipped = plan_moves([wanted(photos / NAMES[0], photos / "album/a.jpg")], target, photos)
    assert (found, list(skipped)) == ([], [str(photos / NAMES[0])])


def test_folders_that_are_refused(photos: Path, target: Path, tmp_path: Path) -> None:
    for folder in (photos, tmp_path, photos / "album", photos / "album/a.jpg"):
        with pytest.raises(ConfigError, match=str(folder)):
            plan_moves([], folder, photos)
    with pytest.raises(ConfigError, match=str(target)):
        find_journal(target)
    target.mkdir()
    (target / "moved.lock").touch()  # of a process that was killed before its first move
    move(plan(photos, target, NAMES[0]), target)
    assert find_journal(target) == find_journal(target / JOURNAL) == target
    with moving.opened(target), pytest.raises(InputError, match=str(target)):
        undo(target)


def test_a_sidecar_of_a_raw_photo_stays(photos: Path, target: Path) -> None:
    (photos / "backup/a.CR2").write_bytes(b"raw")
    (planned,) = plan(photos, target, NAMES[0])
    assert [old.name for old, _ in planned.files] == ["a.jpg", "a.jpg.xmp"]
