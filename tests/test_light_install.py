"""The base install: all that it promises works where no optional library is there, and the rest says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from centerhash.core.extras import EXTRAS
from tests.toys import QUICK, process_environment

pytestmark = pytest.mark.slow

# runs lines of words by the command line's own main, in a process where optional libraries cannot be imported
BLOCKED = """
import contextlib, io, json, sys

blocked, lines = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys([*blocked, "pandas", "sklearn", "httpx", "IPython"]))
import centerhash
from centerhash.cli import main

for words in lines:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["centerhash", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main() or 0
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def run_without_extras(*lines: tuple[str | Path, ...]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each line of words."""
    given = json.dumps([list(EXTRAS), [list(map(str, words)) for words in lines]])
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, given],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment(),
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_the_base_install_does_its_part_and_says_what_the_rest_needs(
    feature_folder: Path, feature_run: Path, image_run: Path, scene_folder: Path, tmp_path: Path
) -> None:
    images, index = scene_folder / "images", tmp_path / "photos.index"
    image = next(images.iterdir())
    found = run_without_extras(
        ("--help",),
        ("train", feature_folder, "--out", tmp_path / "run", *QUICK),
        ("evaluate", tmp_path / "run"),
        ("encode", image_run, image, "--out", tmp_path / "codes.npz"),
        ("index", "create", index, "--model", image_run),
        ("index", "add", index, images),
        ("search", index, image, "--json"),
        ("doctor",),
        ("serve", tmp_path / "photos.index"),
        ("inspect", feature_folder, "--out", tmp_path),
        ("export", image_run, "--out", tmp_path / "model.onnx"),
        ("encode", feature_run, feature_folder, "--out", tmp_path / "parts"),
    )
    assert [code for code, _, _ in found[:8]] == [0] * 8, found
    for (code, _, err), extra in zip(found[8:], ("serve", "plots", "fast", "parquet"), strict=True):
        assert code == 2, err
        assert f"pip install 'centerhash[{extra}]'" in " ".join(err.split()), err
        assert "Traceback" not in err
