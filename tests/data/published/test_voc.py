from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.published import DATASETS
from centerhash.data.published.voc import CLASSES, read_annotation
from tests.layouts import voc_xml, write_voc

read_voc2007 = DATASETS["voc2007"].reader
read_voc2012 = DATASETS["voc2012"].reader


def test_labels_areas_and_official_parts(tmp_path: Path) -> None:
    folder = read_voc2007(write_voc(tmp_path))
    assert folder.classes == CLASSES
    assert len(set(CLASSES)) == 20
    assert folder.names == tuple(f"00000{number}.jpg" for number in range(1, 6))
    assert all(path.is_file() for path in folder.paths)
    shown = [{CLASSES[column] for column in row.nonzero()[0]} for row in folder.labels]
    assert shown == [{"dog", "person"}, {"car"}, {"person"}, {"dog"}, {"car"}]  # a difficult car counts
    assert folder.areas is not None
    assert folder.areas[1, CLASSES.index("car")] == 1
    assert folder.areas[0, CLASSES.index("dog")] == pytest.approx(0.5, rel=0.03)  # one box inside the other
    assert folder.areas[4, CLASSES.index("car")] == 0.5  # two boxes apart
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == {
        "train": [0, 1, 2],
        "query": [3, 4],
        "database": [0, 1, 2],
    }
    assert folder.source == "official trainval, test"


def test_2012_asks_with_val(tmp_path: Path) -> None:
    folder = read_voc2012(write_voc(tmp_path, "2012"))
    assert folder.source == "official train, val"
    assert folder.splits["query"].tolist() == [3, 4]


def test_the_folder_of_the_year_alone(tmp_path: Path) -> None:
    (write_voc(tmp_path) / "VOCdevkit" / "VOC2007").rename(tmp_path / "VOC2007")
    assert len(read_voc2007(tmp_path).names) == 5


def test_an_image_without_objects_is_left_out_of_its_part(tmp_path: Path) -> None:
    home = write_voc(tmp_path) / "VOCdevkit" / "VOC2007"
    (home / "Annotations" / "000002.xml").write_text(voc_xml("000002", []))
    folder = read_voc2007(tmp_path)
    assert len(folder.names) == 4
    assert folder.splits["train"].tolist() == [0, 1]
    assert folder.splits["query"].tolist() == [2, 3]


def test_boxes_count_from_one_and_include_the_last_pixel(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(voc_xml("a", [("dog", (1, 1, 40, 20), 0), ("cat", (1, 1, 1, 1), 1)]))
    assert read_annotation(path) == {"dog": 1.0, "cat": pytest.approx(1 / 800)}


def test_an_image_in_both_parts(tmp_path: Path) -> None:
    lists = write_voc(tmp_path) / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
    (lists / "test.txt").write_text("000003\n000004\n")
    with pytest.raises(DataError, match="'000003' stand in the lists of trainval and test twice"):
        read_voc2007(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<annotation>", "is not an annotation of Pascal VOC"),
        ("<annotation></annotation>", "is not an annotation of Pascal VOC"),
        (voc_xml("a", [("dog", (1, 1, 2, 2), 0)]).replace("<xmin>1<", "<xmin>x<"), "is not an annotation"),
        (voc_xml("a", [("dog", (1, 1, 2, 2), 0)]).replace("<width>40<", "<width>0<"), "is not an annotation"),
        (voc_xml("a", [("dgo", (1, 1, 2, 2), 0)]), r"unknown class 'dgo'\. Did you mean 'dog'\?"),
    ],
)
def test_annotations_that_cannot_be_read(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(DataError, match=expected):
        read_annotation(tmp_path / "a.xml")


def test_missing_annotations_and_photos(tmp_path: Path) -> None:
    home = write_voc(tmp_path) / "VOCdevkit" / "VOC2007"
    (home / "Annotations" / "000002.xml").unlink()
    with pytest.raises(DataError, match=r"cannot read '.*000002\.xml': No such file"):
        read_voc2007(tmp_path)
    (home / "JPEGImages" / "000004.jpg").unlink()
    with pytest.raises(DataError):
        read_voc2007(tmp_path)


def test_labels_are_bool_and_areas_float(tmp_path: Path) -> None:
    folder = read_voc2007(write_voc(tmp_path))
    assert folder.labels.dtype == np.bool_
    assert folder.areas is not None
    assert folder.areas.dtype == np.float32
