"""Every snippet of the README runs as it stands, and with no more than its section installs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.processes import serving
from tests.shapes import write_shapes
from tests.test_pages import RUN, blocked
from tests.toys import cli
from tools.wheel_check import base_commands

README = Path(__file__).parent.parent / "README.md"
PHOTOS = README.parent / "examples" / "photos"
TRAINING = "## Train on your labels"


def snippets(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
def test_commands_and_python_for_photos_need_the_base_install_only(tmp_path: Path) -> None:
    text = README.read_text().split(TRAINING)[0]
    shutil.copytree(PHOTOS, tmp_path / "photos")
    commands = base_commands(README.read_text())
    assert [words[1] for words in commands] == ["photos", "photos", "photos", "photos", "serve"]
    (snippet,) = snippets("python", text)
    steps = [("console", words) for words in commands if words[1] != "serve"] + [("python", snippet)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([blocked(set()), steps])],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200", "CENTERHASH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed.splitlines()[0].startswith("0 ('dog',)")
    assert len(printed.splitlines()) == 5
    with serving(tmp_path / "photos.index", tmp_path / "log") as server, server.client() as client:
        assert client.get("/health").json()["size"] == len(list(PHOTOS.iterdir()))


@pytest.mark.slow
def test_commands_for_training(tmp_path: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shapes(tmp_path / "photos", 40, size=96)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    text = README.read_text().split(TRAINING)[1].split("\n## ")[0]
    lines = [shlex.split(line) for block in snippets("console", text) for line in block.splitlines()]
    assert [words[1] for words in lines] == ["train", "evaluate", "photos"]
    for words in lines:
        done = cli(*words[1:])
        assert done.code == 0, f"{words}: {done.err}"


def test_make_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"`?make (\w+)", README.read_text())
    makefile = (README.parent / "Makefile").read_text()
    assert {"demo", "test", "bench", "lint"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
