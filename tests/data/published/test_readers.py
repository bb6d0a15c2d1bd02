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
from tests.layouts import write_cifar10, write_coco, write_flickr25k, write_nuswide

read = {name: row.reader for name, row in DATASETS.items()}

SKY = Path("Groundtruth", "AllLabels", "Labels_sky.txt")
FLICKR_SKY = Path("mirflickr25k_annotations_v080", "sky.txt")
BATCH = Path(BINARIES, "data_batch_3.bin")


def test_coco(tmp_path: Path) -> None:
    contents = read["coco2014"](write_coco(tmp_path))
    assert len(contents.names) == 10  # two parts of six, each with one image without objects
    assert contents.names[0] == "train2014/COCO_train2014_000000000001.jpg"
    assert contents.names[5] == "val2014/COCO_val2014_000000000001.jpg"
    assert contents.labels.any(axis=1).all()
    assert contents.areas is not None
    np.testing.assert_allclose(contents.areas[0], [0.5, 0.25, 0], rtol=0.03)


def test_nuswide(tmp_path: Path) -> None:
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
    assert len(set(FREQUENT)) == 21
    columns = whole.labels[:, [whole.classes.index(name) for name in FREQUENT]]
    assert (frequent.labels == columns[columns.any(axis=1)]).all()
    assert 0 < len(frequent.names) < 30


def test_nuswide_missing_photos(tmp_path: Path) -> None:
    contents = read["nuswide81"](write_nuswide(tmp_path, absent=(0, 7)))
    assert (len(contents.names), contents.names[0]) == (28, "Flickr/actor/0001_7919.jpg")
    assert set(contents.labels[0].nonzero()[0]) == {1}
    assert "2 of 30" in contents.warnings[0]
    (tmp_path / "Flickr").rename(tmp_path / "with folders")
    (tmp_path / "with folders" / "actor").rename(tmp_path / "Flickr")
    assert read["nuswide81"](tmp_path).names[1] == "Flickr/0002_15838.jpg"


def test_flickr25k(tmp_path: Path) -> None:
    contents = read["flickr25k"](write_flickr25k(tmp_path, 30))
    assert contents.classes == POTENTIAL
    assert len(set(POTENTIAL)) == 24
    assert contents.names == tuple(f"im{number}.jpg" for number in range(1, 30))  # im30 has no annotation
    for row in range(29):
        assert contents.labels[row].nonzero()[0].tolist() == [(row + 1) % 24]
    both = read["flickr25k-38"](tmp_path)
    assert both.classes == POTENTIAL + RELEVANT
    assert len(set(both.classes)) == 38
    baby, relevant = POTENTIAL.index("baby"), both.classes.index("baby_r1")
    assert both.labels[:, baby].nonzero()[0].tolist() == [0, 24]  # im1 and im25
    assert both.labels[:, relevant].nonzero()[0].tolist() == [0]


def test_cifar10(tmp_path: Path) -> None:
    contents = read["cifar10"](write_cifar10(tmp_path))
    assert contents.classes[:2] == ("airplane", "automobile")
    assert contents.labels.sum(axis=1).tolist() == [1] * 180
    assert contents.names[31] == "automobile/data_batch_2_00001.png"
    assert contents.names[-1] == "truck/test_batch_00029.png"
    assert contents.paths is not None
    record = np.frombuffer((tmp_path / BINARIES / "data_batch_2.bin").read_bytes(), dtype=np.uint8)[3073:6146]
    pixels = np.asarray(Image.open(contents.paths[31]))
    assert record[0] == contents.labels[31].argmax() == 1
    assert np.array_equal(pixels.transpose(2, 0, 1).ravel(), record[1:])
    written = contents.paths[0].stat().st_mtime_ns
    parts = read["cifar10-2"](tmp_path)
    assert contents.paths[0].stat().st_mtime_ns == written, "images are written once"
    assert parts.splits["query"].tolist() == list(range(150, 180))
    assert parts.splits["train"].tolist() == parts.splits["database"].tolist() == list(range(150))
    contents.paths[5].unlink()
    with pytest.raises(DataError, match=IMAGES):
        read["cifar10"](tmp_path)


def spoil(file: Path, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / file).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "fault"),
    [
        ("nuswide81", lambda root: shutil.rmtree(root / "Flickr"), "30 photos"),
        ("nuswide21", lambda root: (root / SKY).unlink(), "Labels_sky"),
        ("nuswide21", spoil(SKY, b"0\n1\n"), "Labels_sky"),
        ("nuswide21", spoil(SKY, b"0\n" * 29 + b"2\n"), "Labels_sky"),
        *(
            ("flickr25k", spoil(FLICKR_SKY, b"1\n%s\n2\n" % line), r"sky\.txt', line 2")
            for line in (b"x", b"0", b"-3", b"1.5", b"")
        ),
        ("flickr25k", lambda root: (root / "mirflickr" / "im3.jpg").unlink(), r"im3\.jpg"),
        ("flickr25k", lambda root: (root / FLICKR_SKY).unlink(), "sky"),
        ("cifar10", lambda root: (root / BATCH).unlink(), BATCH.name),
        *(("cifar10", spoil(BATCH, data), BATCH.name) for data in (b"\0" * 3074, b"", b"\x0a" * 3073, b"\0")),
    ],
)
def test_readers_damaged(tmp_path: Path, name: str, damage: Callable[[Path], object], fault: str) -> None:
    write = {"nuswide": write_nuswide, "flickr2": write_flickr25k, "cifar10": write_cifar10}[name[:7]]
    damage(write(tmp_path))
    with pytest.raises(DataError, match=fault):
        read[name](tmp_path)
    assert not (tmp_path / IMAGES).exists()
