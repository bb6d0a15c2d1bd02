"""Training on a published data set by its name, from a small copy of its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layouts import write_coco
from tests.toys import QUICK, cli, names, refused


@pytest.mark.slow
def test_a_published_set_trains_by_its_name(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco2014", count=30)  # splits shrink in proportion
    words = [
        "train",
        "coco2014",
        "--root",
        tmp_path,
        "--out",
        tmp_path / "run",
        "--cache",
        tmp_path / "cache",
    ]
    done = cli(*words, *QUICK)
    assert done.code == 0, done.err
    assert "warning" in done.err  # fewer images than the published set has
    assert {"query.npz", "database.npz", "model.json", "weights.npz"} <= set(names(tmp_path / "run"))


def test_a_name_without_its_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    words = refused(cli("train", "coco2014", "--root", tmp_path, "--out", tmp_path / "run"))
    assert "centerhash download coco2014" in words
    words = refused(cli("train", "flickr25", "--root", tmp_path, "--out", tmp_path / "run"))
    assert "Did you mean 'flickr25k'?" in words
