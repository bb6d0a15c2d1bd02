"""Folders that are watched by a real process: what happens in them reaches the index."""

from __future__ import annotations

import io
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from centerhash.data import content_key
from centerhash.search import Index
from tests.toys import (
    Started,
    cli,
    noise_image,
    refused,
    started,
    wait_for_process,
    wait_until,
    write_images,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos" / "a", 3)
    return tmp_path / "photos"


@pytest.fixture
def folder(tmp_path: Path, image_run: Path) -> Path:
    Index.create(tmp_path / "index", image_run).close()
    return tmp_path / "index"


@pytest.fixture
def watching(folder: Path, home: Path) -> Iterator[Started]:
    """A process that watches the photos, once it has added them."""
    with started("index", "watch", folder, home) as process:
        wait_for_process(process, lambda: len(names_in(folder)) == 3, "the first are added")
        yield process


def names_in(folder: Path) -> dict[str, str]:
    """Ids by the paths of all images that are not hidden."""
    with Index.open(folder, read_only=True) as index:
        return {path: item.id for item in index for path in item.paths}


def test_new_changed_moved_and_vanished_files(watching: Started, folder: Path, home: Path) -> None:
    def until(expected: dict[Path, Path], words: str) -> None:
        wanted = {str(path): content_key(same)[:16] for path, same in expected.items()}
        wait_for_process(watching, lambda: names_in(folder) == wanted, words)

    here = {path: path for path in (home / "a").iterdir()}
    new = home / "b" / "new.png"
    new.parent.mkdir()
    noise_image(seed=20).save(new)
    here[new] = new
    until(here, "a file in a new folder is added")
    noise_image(seed=21).save(new)
    until(here, "its new content is there")
    moved = new.rename(home / "moved.png")
    del here[new]
    here[moved] = moved
    until(here, "it has moved")
    (home / "a").rename(home / "c")
    here = {path: path for path in (moved, *(home / "c").iterdir())}
    until(here, "its folder has moved")
    away = Path(shutil.move(home / "c" / "000.png", home.parent))
    del here[home / "c" / "000.png"]
    until(here, "one is hidden")
    back = Path(shutil.move(away, home / "c"))
    here[back] = back
    until(here, "it is back")
    shutil.move(home, home.parent / "elsewhere")
    until({}, "the drive is gone")
    shutil.move(home.parent / "elsewhere", home)
    until(here, "the drive is back")
    assert cli("index", "verify", folder).code == 0  # others may open it meanwhile
    assert cli("index", "remove", folder, home / "moved.png").code == 0
    (home / "moved.png").rename(home / "c" / "again.png")  # is not added under its new name
    noise_image(seed=22).save(new := home / "newest.png")
    del here[moved]
    here[new] = new
    until(here, "only the new one is added")
    assert watching.signal(signal.SIGINT) == 0


def test_a_file_is_not_read_while_it_is_written(watching: Started, folder: Path, home: Path) -> None:
    stream = io.BytesIO()
    noise_image(size=400, seed=5).save(stream, "PNG")
    content, slow = stream.getvalue(), home / "slow.png"
    with slow.open("wb", buffering=0) as file:
        for start in range(0, len(content), 1 + len(content) // 8):
            file.write(content[start : start + 1 + len(content) // 8])
            other = home / f"{start}.png"
            noise_image(seed=start).save(other)  # what comes later is added, this one is not
            wait_for_process(watching, lambda other=other: str(other) in names_in(folder), "another is added")  # type: ignore[misc]
            if start + 1 + len(content) // 8 < len(content):
                assert str(slow) not in names_in(folder)
    wait_for_process(watching, lambda: str(slow) in names_in(folder), "it is whole and added")
    assert names_in(folder)[str(slow)] == content_key(slow)[:16]


def test_a_kill_loses_nothing_and_the_next_one_watches_what_was_added(
    watching: Started, folder: Path, home: Path
) -> None:
    watching.signal(signal.SIGKILL)
    noise_image(seed=30).save(home / "new.png")
    with started("index", "watch", folder) as again:
        wait_for_process(again, lambda: len(names_in(folder)) == 4, "what came meanwhile is added")
    with Index.open(folder) as index:
        assert index.verify() == []


def test_what_cannot_be_watched_is_refused(folder: Path, home: Path) -> None:
    assert "name the folders" in refused(cli("index", "watch", folder))
    assert "nowhere" in refused(cli("index", "watch", folder, home / "nowhere"))
    wait_until(lambda: names_in(folder) == {}, "nothing was added")
