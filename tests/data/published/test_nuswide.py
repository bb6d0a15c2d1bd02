from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data.published import DATASETS
from centerhash.data.published.nuswide import FREQUENT
from tests.layouts import write_nuswide

read_nuswide21 = DATASETS["nuswide21"].reader
read_nuswide81 = DATASETS["nuswide81"].reader


def test_all_classes_in_alphabetical_order(tmp_path: Path) -> None:
    folder = read_nuswide81(write_nuswide(tmp_path))
    assert len(folder.classes) == 81
    assert list(folder.classes) == sorted(folder.classes)
    assert len(folder.names) == 30
    assert folder.names[1] == "Flickr/actor/0001_7919.jpg"
    assert folder.paths[1] == tmp_path / folder.names[1]
    assert folder.areas is None
    assert folder.warnings == ()
    sky = folder.classes.index("sky")
    for row in range(30):
        expected = {row, sky} if row % 3 == 0 and row > 0 else {row}
        assert set(folder.labels[row].nonzero()[0]) == expected


def test_the_frequent_classes_and_only_the_images_that_show_one(tmp_path: Path) -> None:
    whole = read_nuswide81(write_nuswide(tmp_path))
    folder = read_nuswide21(tmp_path)
    assert folder.classes == FREQUENT
    assert len(FREQUENT) == len(set(FREQUENT)) == 21
    columns = [whole.classes.index(name) for name in FREQUENT]
    shown = whole.labels[:, columns]
    assert (folder.labels == shown[shown.any(axis=1)]).all()
    assert 0 < len(folder.names) < 30


def test_photos_that_are_gone_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = read_nuswide81(write_nuswide(tmp_path, absent=(0, 7)))
    assert len(folder.names) == 28
    assert folder.names[0] == "Flickr/actor/0001_7919.jpg"
    assert set(folder.labels[0].nonzero()[0]) == {1}
    assert folder.warnings == (f"2 of 30 photos of NUS-WIDE are not under '{tmp_path}' and are skipped.",)


def test_one_flat_folder_of_photos(tmp_path: Path) -> None:
    write_nuswide(tmp_path)
    (tmp_path / "Flickr" / "actor").rename(tmp_path / "images")
    (tmp_path / "Groundtruth" / "AllLabels").rename(tmp_path / "AllLabels")
    assert read_nuswide81(tmp_path).names[2] == "images/0002_15838.jpg"


def test_no_photo_at_all(tmp_path: Path) -> None:
    shutil.rmtree(write_nuswide(tmp_path) / "Flickr")
    with pytest.raises(DataError, match=r"none of the 30 photos of .* They come on request only"):
        read_nuswide81(tmp_path)


def test_a_class_too_few(tmp_path: Path) -> None:
    write_nuswide(tmp_path)
    (tmp_path / "Groundtruth" / "AllLabels" / "Labels_sky.txt").unlink()
    with pytest.raises(
        DataError, match=r"has 80 files Labels_\*\.txt, NUS-WIDE has 81: unpack Groundtruth.zip"
    ):
        read_nuswide81(tmp_path)
    with pytest.raises(DataError):
        read_nuswide21(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0\n1\n", "has 2 lines for 30 images of the list"), ("0\n2\n", "holds '2', which is not 0 or 1")],
)
def test_label_files_that_do_not_fit(tmp_path: Path, text: str, expected: str) -> None:
    write_nuswide(tmp_path)
    (tmp_path / "Groundtruth" / "AllLabels" / "Labels_sky.txt").write_text(text)
    with pytest.raises(DataError, match=expected):
        read_nuswide21(tmp_path)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_nuswide81(tmp_path)
