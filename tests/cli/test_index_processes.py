"""Kills of a real process in the middle of an add, and every command of docs/how-to/search.md as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from centerhash.data import content_key
from centerhash.search import Index
from tests.toys import cli, cli_process, started, wait_for_process, write_images

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "search.md"
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


def commands_of_the_page() -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def desk(scene_folder: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the page would have it: `photos` with labels.csv, a finished `run`, a photo."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(scene_folder, folder / "photos")
    shutil.copytree(image_run, folder / "run")
    shutil.copy(folder / "photos" / "images" / "000001.jpg", folder / "photo.jpg")
    return folder


def test_the_page_runs_as_it_stands(
    desk: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    commands = commands_of_the_page()
    assert {words[2] for words in commands if words[1] == "index"} == {
        *("create", "add", "remove", "info", "verify", "compact", "import", "export")
    }
    for words in commands:
        assert words[0] == "centerhash"
        if any(word.startswith("milvus:") for word in words):
            continue  # needs a server
        if "--id" in words:  # the page shows some id
            words[words.index("--id") + 1] = content_key("photo.jpg")[:16]
        done = cli(*words[1:])  # in this process: each would spend most of its time on imports
        assert done.code == 0, f"{shlex.join(words)}: {done.err}"
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(snippet, {})
    assert len(capsys.readouterr().out.splitlines()) == 7
