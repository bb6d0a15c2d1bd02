"""What all layouts share: rows without labels, file names, and splits in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.data.layouts.common import read_splits
from tests.toys import refusal

NAMES = ("images/a.jpg", "images/b.jpg", "images/c.jpg", "images/d.jpg")


def test_read_splits(tmp_path: Path) -> None:
    assert read_splits(tmp_path, NAMES)[0] == {}
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfimages/c.jpg\r\n\r\n./images/a.jpg\r\n")
    np.save(tmp_path / "query.npy", np.array([1], dtype=np.uint16))
    splits, source = read_splits(tmp_path, NAMES)
    assert source == "files"
    assert {name: rows.tolist() for name, rows in splits.items()} == {"train": [2, 0], "query": [1]}


def test_read_splits_twice(tmp_path: Path) -> None:
    (tmp_path / "query.txt").write_text("images/a.jpg\n")
    assert "folders" in refusal(read_splits, tmp_path, NAMES, {"train": np.array([1])}, "folders")
    np.save(tmp_path / "query.npy", np.array([0]))
    assert "'query.txt', 'query.npy'" in refusal(read_splits, tmp_path, NAMES)


@pytest.mark.parametrize("text", ["", "images/a.jpg\nx.png\n", "images/a.jpg\n./images/a.jpg\n"])
def test_read_splits_bad_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    assert "train.txt'" in refusal(read_splits, tmp_path, NAMES)


@pytest.mark.parametrize("values", [[0.5], [4], [2, 2], np.array([], dtype=int), [True] * 4, ["a"]])
def test_read_splits_bad_rows(tmp_path: Path, values: object) -> None:
    np.save(tmp_path / "train.npy", np.array(values))
    assert "train.npy'" in refusal(read_splits, tmp_path, NAMES)
