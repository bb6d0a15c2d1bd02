"""Every snippet of the README runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from reproduction.scenes import write_scenes
from tests.serve.processes import serving
from tests.toys import cli, cli_process

README = Path(__file__).parent.parent / "README.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the README would have it: `photos` with labels.csv."""
    folder = tmp_path_factory.mktemp("desk")
    write_scenes(folder / "photos", 40, size=96)
    return folder


@pytest.mark.slow
def test_shell_snippets(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("CENTERHASH_CACHE", str(desk / "cache"))
    lines = [line for block in snippets("console") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("centerhash ")]
    verbs = ["index", "index", "serve", "search", "search", "train", "evaluate", "index", "index"]
    assert [command[1] for command in commands] == verbs
    for command in commands:
        if command[1] == "serve":  # runs until it is stopped
            with serving(desk / command[2], desk / "log") as server, server.client() as client:
                assert client.get("/health").json()["size"] == 40
            continue
        finished = cli(*command[1:])
        assert finished.code == 0, f"{command}: {finished.err}"
    assert (desk / "own.index").is_dir()


@pytest.mark.slow
def test_python_snippets(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    (snippet,) = snippets("python")
    finished = cli_process("-c", snippet, CENTERHASH_CACHE=str(desk / "cache"))
    assert finished.code == 0, finished.err
    assert re.search(r"mAP@[\d,]+, retrieved relevant +0\.\d+", finished.out)
    assert (desk / "python.index").is_dir()


def test_make_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"`?make (\w+)", README.read_text())
    makefile = (README.parent / "Makefile").read_text()
    assert {"demo", "test", "bench", "lint"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
