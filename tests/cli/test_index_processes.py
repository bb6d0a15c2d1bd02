"""Kills of a real process in the middle of an add."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from centerhash.data import content_key
from centerhash.search import Index
from tests.toys import cli_process, started, wait_for_process, write_images

pytestmark = pytest.mark.slow


def stored_ids(folder: Path) -> set[str]:
    with Index.open(folder, read_only=True) as index:
        return {item.id for item in index}


def holds(folder: Path, count: int) -> bool:
    return len(stored_ids(folder)) >= count


def test_a_killed_add_loses_nothing_that_was_stored_and_goes_on(image_run: Path, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 150)
    folder = tmp_path / "index"
    Index.create(folder, image_run).close()
    words = ("index", "add", folder, tmp_path / "pictures", "--batch", "5", "--device", "cpu")
    seen: set[str] = set()
    for _ in range(2):
        with started(*words) as process:
            wait_for_process(process, partial(holds, folder, len(seen) + 10), "ten more are added")
            process.signal(signal.SIGKILL)
        now = stored_ids(folder)
        assert seen < now
        seen = now
        with Index.open(folder) as index:
            assert index.verify() == []
    assert len(seen) < 150
    done = cli_process(*words)
    assert done.code == 0, done.err
    assert stored_ids(folder) == {content_key(path)[:16] for path in paths}
    assert "150 items" in done.text
