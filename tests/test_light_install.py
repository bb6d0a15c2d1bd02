"""The base install works without the optional libraries; everything else names the extra to install.

Imports nothing of the other tests, so that it runs next to an installed wheel with pytest alone:
`python -m pytest --noconftest tests/test_light_install.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from centerhash.cli import app
from centerhash.core.extras import EXTRAS

pytestmark = pytest.mark.slow

OTHERS = ("lightning", "scipy", "imagehash", "pandas", "sklearn", "httpx", "IPython")
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRAS, *OTHERS]!r}))\n"
MAIN = "from centerhash.cli import main; main()"
# Runs command lines, split into words, in one process.
LINES = """
import contextlib, io, json
from centerhash.cli import main

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["centerhash", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main() or 0
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "CENTERHASH_CACHE": str(folder / "cache")}


def run_python(program: str, folder: Path, *arguments: str) -> str:
    """The output of a program in a process in which optional libraries cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + program, *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_lines(folder: Path, *lines: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each command line; `folder` is where they run."""
    words = json.dumps([line.split() for line in lines])
    return [tuple(json.loads(line)) for line in run_python(LINES, folder, words).splitlines()]


def succeed(folder: Path, *lines: str) -> list[str]:
    """The outputs of command lines that all succeed."""
    results = run_lines(folder, *lines)
    for line, (code, out, err) in zip(lines, results, strict=True):
        assert code == 0, f"{line}\n{out}{err}"
    return [out for _, out, _ in results]


def help_lines() -> list[str]:
    """`--help` of the program and of every command."""

    def below(command: Any, words: tuple[str, ...]) -> list[str]:
        inner = getattr(command, "commands", {})
        lines = [line for name, each in inner.items() for line in below(each, (*words, name))]
        return [" ".join((*words, "--help")), *lines]

    return below(get_command(app), ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/: eight different ones, one of them twice, and one as a smaller JPEG."""
    folder = tmp_path_factory.mktemp("base")
    photos = folder / "photos"
    photos.mkdir()
    generator = np.random.default_rng(0)
    for number in range(8):
        coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((320, 240), Image.Resampling.BICUBIC).save(photos / f"{number}.png")
    shutil.copy(photos / "0.png", photos / "copy.png")
    with Image.open(photos / "1.png") as image:
        image.resize((200, 150)).save(photos / "small.jpg", quality=80)
    return folder


def test_help_of_every_command(folder: Path) -> None:
    lines = help_lines()
    assert {"--help", "train --help", "serve --help", "photos add --help"} <= set(lines)
    for line, out in zip(lines, succeed(folder, *lines), strict=True):
        assert "Usage:" in out, line


def test_fresh_install(folder: Path) -> None:
    version, report, datasets, backbones = succeed(
        folder, "--version", "doctor --json", "datasets --json", "backbones --json"
    )
    assert version.startswith("centerhash ")
    assert json.loads(datasets)
    assert json.loads(backbones)
    diagnosis = json.loads(report)
    assert diagnosis["problems"] == []
    assert diagnosis["engines"]["torch"] == diagnosis["engines"]["openvino"] == "not installed"


def test_import(folder: Path) -> None:
    program = """
import centerhash as ch
codes = ch.binarize(__import__("numpy").random.default_rng(0).normal(size=(4, 16)))
assert ch.hamming(codes, codes).diagonal().sum() == 0
labels = codes[:, :3] > 0
for use in (
    lambda: ch.train,
    lambda: ch.evaluate,
    lambda: ch.HashModel,
    lambda: ch.losses,
    lambda: ch.evaluate_codes(codes, codes, labels, labels),
):
    try:
        use()
    except ch.CenterhashError as error:
        assert "pip install 'centerhash[train]'" in str(error), error
    else:
        raise AssertionError(use)
"""
    run_python(program, folder)


NEEDS = {
    "train photos --out made": "train",
    "evaluate made": "train",
    "compare photos --out made": "train",
    "tune photos --out made": "train",
    "export coco --out made.onnx": "train",
    "publish made owner/name": "train",
    "methods": "train",
    "methods ics": "train",
    "encode coco photos --out made": "parquet",
    "encode coco photos --out made --runner ray": "ray",
    "index export any.index made.parquet --to parquet": "parquet",
    "index export any.index milvus:http://127.0.0.1:1#made": "milvus",
    "explain hf:owner/name photos/0.png": "train",
    "photos search any.index photos/0.png --engine openvino": "fast",
}


def test_missing_extras(folder: Path) -> None:
    succeed(folder, "photos add any.index photos")
    before = sorted(folder.iterdir())
    for (line, extra), (code, out, err) in zip(NEEDS.items(), run_lines(folder, *NEEDS), strict=True):
        assert (code, out) == (2, ""), (line, err)
        assert err.startswith("error: "), line
        assert err.count("\n") == 1, err
        assert f"pip install 'centerhash[{extra}]'" in err, line
    assert sorted(folder.iterdir()) == before


def test_duplicates(folder: Path) -> None:
    (out,) = succeed(folder, "photos duplicates photos --kind same --json")
    (group,) = json.loads(out)["groups"]
    assert {Path(path).name for path in group["paths"]} == {"0.png", "copy.png"}


def test_index_and_search(folder: Path) -> None:
    _, by_image, by_labels, info, duplicates, explained, *_ = succeed(
        folder,
        "photos add photos.index photos",
        "photos search photos.index photos/3.png -k 3 --json",
        "photos search photos.index --labels dog:0.7,person:0.3 -k 3 --json",
        "index info photos.index --json",
        "photos duplicates photos.index --json",
        "explain coco photos/3.png --json",
        "index verify photos.index",
        "photos list photos.index",
        "encode coco photos --out codes.npz",
        "index export photos.index exported.npz",
        "index create other.index",
        "index import other.index exported.npz",
        "index backup photos.index copied.index",
        "photos remove photos.index photos/7.png",
        "index compact photos.index",
    )
    first = json.loads(by_image)["results"][0]
    assert (Path(first["path"]).name, first["distance"]) == ("3.png", 0)
    assert json.loads(by_labels)["results"] == []  # noise shows neither
    assert json.loads(info)["size"] == 9
    kinds = [group["kind"] for group in json.loads(duplicates)["groups"]]
    assert kinds[:2] == ["same", "near"]
    assert json.loads(explained)[0]["labels"]


def test_serve(folder: Path) -> None:
    words = [sys.executable, "-c", BLOCK + MAIN, "serve", "photos", "--port", "0"]
    with subprocess.Popen(
        words,
        cwd=folder,
        env={**environment(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as server:
        try:
            said = ""
            assert server.stdout is not None
            for line in server.stdout:
                said += line
                if re.search(r"images? added", line):
                    break
            found = re.search(r"http://[\w.]+:\d+", said)
            assert found is not None, said
            with urlopen(found[0], timeout=60) as page:
                assert b"<html" in page.read()
            data = (folder / "photos" / "small.jpg").read_bytes()
            body = (
                b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n%s\r\n--x--\r\n'
                % data
            )
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            with urlopen(Request(f"{found[0]}/search?k=1", body, kind), timeout=60) as answer:
                results = json.load(answer)["results"]
            assert [row["path"] for row in results] == ["small.jpg"]
        finally:
            server.terminate()
