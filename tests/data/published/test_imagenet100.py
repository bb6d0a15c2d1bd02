from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data.published import DATASETS
from tests.layouts import write_imagenet100

read_imagenet100 = DATASETS["imagenet100"].reader


def test_lists_say_which_images_and_which_splits(tmp_path: Path) -> None:
    found = read_imagenet100(write_imagenet100(tmp_path))
    assert len(found.names) == 8
    assert found.labels.shape == (8, 100)
    assert found.labels.sum(axis=1).tolist() == [1] * 8
    named = {split: [found.names[row] for row in rows] for split, rows in found.splits.items()}
    assert named["train"] == ["train/n01/n01_1.JPEG", "train/n02/n02_1.JPEG"]
    assert set(named["train"]) < set(named["database"])
    assert [name.rpartition("/")[2] for name in named["query"]] == [
        "ILSVRC2012_val_00000001.JPEG",
        "ILSVRC2012_val_00000002.JPEG",
    ]
    assert "images in two lists: 0 in train and query, 0 in query and database, 2 in train and database." in (
        found.warnings
    )


def test_images_that_are_not_there_are_counted(tmp_path: Path) -> None:
    write_imagenet100(tmp_path)
    (tmp_path / "train" / "n02" / "n02_3.JPEG").unlink()
    found = read_imagenet100(tmp_path)
    assert len(found.names) == 7
    assert "1 of 8 listed images are not under" in found.warnings[0]


def test_without_a_list_it_is_said_which(tmp_path: Path) -> None:
    write_imagenet100(tmp_path)
    (tmp_path / "lists" / "database.txt").unlink()
    with pytest.raises(DataError):
        read_imagenet100(tmp_path)
