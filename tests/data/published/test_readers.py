"""The readers of the published datasets, on small copies in their real formats."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.data.published import DATASETS
from centerhash.data.published.cifar10 import BINARIES, IMAGES
from centerhash.data.published.flickr25k import POTENTIAL, RELEVANT
from centerhash.data.published.nuswide import FREQUENT
from centerhash.data.published.voc import CLASSES, read_annotation
from tests.layouts import (
    voc_xml,
    write_cifar10,
    write_coco,
    write_flickr25k,
    write_imagenet100,
    write_nuswide,
    write_voc,
)

read = {name: row.reader for name, row in DATASETS.items()}


def numbers(splits: object) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in splits.items()}  # type: ignore[attr-defined]


# ---------------------------------------------------------------- COCO and ImageNet100


def test_the_parts_of_coco_are_joined_and_images_without_labels_skipped(tmp_path: Path) -> None:
    folder = read["coco2014"](write_coco(tmp_path))
    assert len(folder.names) == 10  # two parts of six, each with one image without objects
    assert folder.names[0] == "train2014/COCO_train2014_000000000001.jpg"
    assert folder.names[5] == "val2014/COCO_val2014_000000000001.jpg"
    assert folder.labels.any(axis=1).all()
    assert folder.areas is not None
    np.testing.assert_allclose(folder.areas[0], [0.5, 0.25, 0], rtol=0.03)


def test_imagenet100_is_what_its_lists_name(tmp_path: Path) -> None:
    found = read["imagenet100"](write_imagenet100(tmp_path))
    assert found.labels.shape == (8, 100)
    assert found.labels.sum(axis=1).tolist() == [1] * 8
    named = {split: [found.names[row] for row in rows] for split, rows in found.splits.items()}
    assert named["train"] == ["train/n01/n01_1.JPEG", "train/n02/n02_1.JPEG"]
    assert set(named["train"]) < set(named["database"])
    assert named["query"] == [f"val_image/ILSVRC2012_val_0000000{number}.JPEG" for number in (1, 2)]
    (tmp_path / "train" / "n02" / "n02_3.JPEG").unlink()
    found = read["imagenet100"](tmp_path)
    assert len(found.names) == 7
    assert "1 of 8 listed images" in found.warnings[0]


# ---------------------------------------------------------------- Pascal VOC


def test_labels_areas_and_official_parts_of_voc(tmp_path: Path) -> None:
    folder = read["voc2007"](write_voc(tmp_path))
    assert folder.classes == CLASSES
    assert len(set(CLASSES)) == 20
    assert folder.names == tuple(f"00000{number}.jpg" for number in range(1, 6))
    shown = [{CLASSES[column] for column in row.nonzero()[0]} for row in folder.labels]
    assert shown == [{"dog", "person"}, {"car"}, {"person"}, {"dog"}, {"car"}]  # a difficult car counts
    assert folder.areas is not None
    assert folder.areas[1, CLASSES.index("car")] == 1
    assert folder.areas[0, CLASSES.index("dog")] == pytest.approx(0.5, rel=0.03)  # one box inside the other
    assert folder.areas[4, CLASSES.index("car")] == 0.5  # two boxes apart
    assert numbers(folder.splits) == {"train": [0, 1, 2], "query": [3, 4], "database": [0, 1, 2]}
    assert folder.source == "official trainval, test"
    later = read["voc2012"](write_voc(tmp_path / "later", "2012"))
    assert later.source == "official train, val"
    assert later.splits["query"].tolist() == [3, 4]


def test_an_image_without_objects_is_skipped_in_its_part(tmp_path: Path) -> None:
    (write_voc(tmp_path) / "VOCdevkit" / "VOC2007").rename(tmp_path / "VOC2007")  # the year's folder alone
    (tmp_path / "VOC2007" / "Annotations" / "000002.xml").write_text(voc_xml("000002", []))
    assert numbers(read["voc2007"](tmp_path).splits) == {"train": [0, 1], "query": [2, 3], "database": [0, 1]}


def test_boxes_count_from_one_and_include_the_last_pixel(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(voc_xml("a", [("dog", (1, 1, 40, 20), 0), ("cat", (1, 1, 1, 1), 1)]))
    assert read_annotation(path) == {"dog": 1.0, "cat": pytest.approx(1 / 800)}


DOG = voc_xml("a", [("dog", (1, 1, 2, 2), 0)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<annotation>", "a.xml"),
        ("<annotation></annotation>", "a.xml"),
        (DOG.replace("<xmin>1<", "<xmin>x<"), "a.xml"),
        (DOG.replace("<width>40<", "<width>0<"), "a.xml"),
        (DOG.replace("dog", "dgo"), r"'dgo'\. Did you mean 'dog'"),
    ],
)
def test_annotations_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(DataError, match=words):
        read_annotation(tmp_path / "a.xml")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda home: (home / "Annotations" / "000002.xml").unlink(), r"000002\.xml"),
        (lambda home: (home / "JPEGImages" / "000004.jpg").unlink(), r"000004\.jpg"),
        (
            lambda home: (home / "ImageSets" / "Main" / "test.txt").write_text("000003\n000004\n"),
            "'000003' stand in the lists of trainval and test",
        ),
    ],
)
def test_damaged_copies_of_voc(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(write_voc(tmp_path) / "VOCdevkit" / "VOC2007")
    with pytest.raises(DataError, match=words):
        read["voc2007"](tmp_path)


# ---------------------------------------------------------------- NUS-WIDE


def test_all_classes_of_nuswide_and_the_frequent_ones(tmp_path: Path) -> None:
    whole = read["nuswide81"](write_nuswide(tmp_path))
    assert len(whole.classes) == 81
    assert list(whole.classes) == sorted(whole.classes)
    assert whole.names[1] == "Flickr/actor/0001_7919.jpg"
    assert (len(whole.names), whole.areas, whole.warnings) == (30, None, ())
    sky = whole.classes.index("sky")
    for row in range(30):
        assert set(whole.labels[row].nonzero()[0]) == ({row, sky} if row % 3 == 0 and row > 0 else {row})
    frequent = read["nuswide21"](tmp_path)
    assert frequent.classes == FREQUENT
    assert len(FREQUENT) == len(set(FREQUENT)) == 21
    shown = whole.labels[:, [whole.classes.index(name) for name in FREQUENT]]
    assert (frequent.labels == shown[shown.any(axis=1)]).all()
    assert 0 < len(frequent.names) < 30


def test_photos_of_nuswide_that_are_gone_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = read["nuswide81"](write_nuswide(tmp_path, absent=(0, 7)))
    assert len(folder.names) == 28
    assert folder.names[0] == "Flickr/actor/0001_7919.jpg"
    assert set(folder.labels[0].nonzero()[0]) == {1}
    assert folder.warnings[0].startswith("2 of 30 photos")


def test_one_flat_folder_of_photos(tmp_path: Path) -> None:
    write_nuswide(tmp_path)
    (tmp_path / "Flickr" / "actor").rename(tmp_path / "images")
    (tmp_path / "Groundtruth" / "AllLabels").rename(tmp_path / "AllLabels")
    assert read["nuswide81"](tmp_path).names[2] == "images/0002_15838.jpg"


SKY = Path("Groundtruth", "AllLabels", "Labels_sky.txt")


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("nuswide81", lambda root: shutil.rmtree(root / "Flickr"), "none of the 30 photos"),
        ("nuswide81", lambda root: (root / SKY).unlink(), r"80 files Labels_\*\.txt"),
        ("nuswide21", lambda root: (root / SKY).unlink(), "Labels_sky"),
        ("nuswide21", lambda root: (root / SKY).write_text("0\n1\n"), "2 lines for 30 images"),
        ("nuswide21", lambda root: (root / SKY).write_text("0\n2\n"), "holds '2'"),
        ("nuswide81", lambda root: shutil.rmtree(root / "Groundtruth"), "AllLabels"),
    ],
)
def test_damaged_copies_of_nuswide(
    tmp_path: Path, name: str, damage: Callable[[Path], object], words: str
) -> None:
    damage(write_nuswide(tmp_path))
    with pytest.raises(DataError, match=words):
        read[name](tmp_path)


# ---------------------------------------------------------------- FLICKR25K


def test_numbers_count_from_one_and_images_without_labels_are_skipped(tmp_path: Path) -> None:
    folder = read["flickr25k"](write_flickr25k(tmp_path, 30))
    assert folder.classes == POTENTIAL
    assert len(set(POTENTIAL)) == 24
    assert folder.names == tuple(f"im{number}.jpg" for number in range(1, 30))  # im30 has no annotation
    for row in range(29):
        assert folder.labels[row].nonzero()[0].tolist() == [(row + 1) % 24]
    both = read["flickr25k-38"](tmp_path)
    assert both.classes == POTENTIAL + RELEVANT
    assert len(set(both.classes)) == 38
    assert all(name.removesuffix("_r1") in POTENTIAL for name in RELEVANT)
    baby, relevant = POTENTIAL.index("baby"), both.classes.index("baby_r1")
    assert both.labels[:, baby].nonzero()[0].tolist() == [0, 24]  # im1 and im25
    assert both.labels[:, relevant].nonzero()[0].tolist() == [0]


@pytest.mark.parametrize("line", ["x", "0", "-3", "1.5", ""])
def test_a_line_that_is_no_number(tmp_path: Path, line: str) -> None:
    write_flickr25k(tmp_path)
    (tmp_path / "mirflickr25k_annotations_v080" / "sky.txt").write_text(f"1\n{line}\n2\n")
    with pytest.raises(DataError, match=rf"sky\.txt', line 2: '{line}'"):
        read["flickr25k"](tmp_path)


def test_missing_photos_and_annotations(tmp_path: Path) -> None:
    write_flickr25k(tmp_path)
    (tmp_path / "mirflickr" / "im3.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 11 images of .*: 'im3\.jpg'"):
        read["flickr25k"](tmp_path)
    (tmp_path / "mirflickr25k_annotations_v080" / "sea_r1.txt").unlink()
    with pytest.raises(DataError, match="sea_r1"):
        read["flickr25k-38"](tmp_path)


# ---------------------------------------------------------------- CIFAR-10


def test_a_record_is_a_class_and_three_planes(tmp_path: Path) -> None:
    found = read["cifar10"](write_cifar10(tmp_path))
    assert found.classes[:2] == ("airplane", "automobile")
    assert found.labels.sum(axis=1).tolist() == [1] * 180
    assert found.names[31] == "automobile/data_batch_2_00001.png"
    assert found.names[-1] == "truck/test_batch_00029.png"
    assert found.paths is not None
    record = np.frombuffer((tmp_path / BINARIES / "data_batch_2.bin").read_bytes(), dtype=np.uint8)[3073:6146]
    pixels = np.asarray(Image.open(found.paths[31]))
    assert record[0] == found.labels[31].argmax() == 1
    assert np.array_equal(pixels.transpose(2, 0, 1).ravel(), record[1:])
    parts = read["cifar10-2"](tmp_path)
    assert parts.splits["query"].tolist() == list(range(150, 180))
    assert parts.splits["train"].tolist() == parts.splits["database"].tolist() == list(range(150))


def test_images_are_written_once(tmp_path: Path) -> None:
    first = read["cifar10"](write_cifar10(tmp_path))
    assert first.paths is not None
    before = first.paths[0].stat().st_mtime_ns
    assert read["cifar10"](tmp_path).names == first.names
    assert first.paths[0].stat().st_mtime_ns == before
    first.paths[5].unlink()
    with pytest.raises(DataError, match=f"1 of 180 images of .*{BINARIES}' are not in .*{IMAGES}"):
        read["cifar10"](tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "data_batch_3.bin"),
        (lambda path: path.write_bytes(b"\x00" * 3074), "3,074 bytes"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(b"\x0a" * 3073), "the class 10"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: Callable[[Path], object], words: str) -> None:
    write_cifar10(tmp_path)
    change(tmp_path / BINARIES / "data_batch_3.bin")
    with pytest.raises(DataError, match=words):
        read["cifar10"](tmp_path)
    assert not (tmp_path / IMAGES).exists()
