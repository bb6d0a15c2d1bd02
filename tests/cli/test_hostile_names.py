"""Names and numbers that nobody expects: no traceback, and nothing that steers the terminal."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from centerhash.cli import console
from centerhash.core.rendering import text_table
from tests.forks import Fork, read
from tests.own_images import write_class_folders, write_pictures
from tests.toys import cli, process_environment, refused, write_feature_folder

RED = "\x1b[31mred\x1b]0;title\x07\x9b2J"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\x9b2J"


@pytest.mark.slow
def test_inspect_hostile_labels(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(9)]
    write_pictures(tmp_path / "photos", names)
    labels = ("$5 \\bad$", "$", RED)
    rows = [f"{name},{labels[row % 3]}" for row, name in enumerate(names)]
    (tmp_path / "photos" / "labels.csv").write_text("\n".join(["file_name,labels", *rows]))
    done = cli("inspect", tmp_path / "photos")
    assert done.code == 0, done
    assert "\x1b" not in done.out + done.err
    assert r"\x1b[31mred" in done.out
    assert "$5 \\bad$" in done.out


def test_console_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console.warn([f"cannot read '{RED}'\n\tor so"])
    assert capsys.readouterr().err == f"warning: cannot read '{SHOWN}'\n\tor so\n".replace("\t", "        ")
    console.stream().print(text_table(RED, ("name", RED), [(RED, "x")]), width=200)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count(SHOWN) == 3


def test_error_escapes(tmp_path: Path) -> None:
    text = refused(cli("inspect", tmp_path / RED))
    assert SHOWN in text
    assert "\x1b" not in text


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [["methods"], ["methods", "--json"], ["--help"]])
def test_full_disk(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full, tempfile.TemporaryFile() as err:
        process = Fork(words, full.fileno(), err.fileno(), process_environment())
        assert process.wait() == 2
        assert read(err) == b"error: cannot write the output: No space left on device.\n"


def test_names_without_text(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "photos")
    first = sorted(path for path in folder.iterdir() if path.is_dir())[0]
    first.rename(folder / os.fsdecode(b"cla\xff"))
    assert r"'cla\udcff' is not UTF-8" in refused(cli("inspect", folder))
    write_pictures(tmp_path / "bare", ["a.png", "b.png", "c.png"])
    (tmp_path / "bare" / "a.png").rename(tmp_path / "bare" / os.fsdecode(b"\xff.png"))
    assert r"the name '\udcff.png' is not UTF-8" in refused(cli("inspect", tmp_path / "bare"))


@pytest.mark.parametrize(
    "words", [("--hidden", "9" * 30), ("--hidden", "9" * 5000), ("--bits", "9" * 30), ("--seed", "9" * 30)]
)
def test_huge_numbers(tmp_path: Path, words: tuple[str, str]) -> None:
    folder = write_feature_folder(tmp_path / "data", count=60)
    refused(cli("train", folder, "--out", tmp_path / "run", "--epochs", "1", *words))


@pytest.mark.slow
def test_unwritable_cache(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "photos")
    (tmp_path / "file").touch()
    words = ("--out", tmp_path / "run", "--cache", tmp_path / "file", "--epochs", "1", "--method", "lsh")
    text = refused(cli("train", folder, *words))
    assert "a part of the path is a file, not a folder: choose another folder" in text
    assert "It is the cache of images: --cache names another, and so does CENTERHASH_CACHE." in text
