from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.data.published.cifar10 import BINARIES, IMAGES, read_cifar10, read_cifar10_parts
from tests.layouts import write_cifar10


def test_a_record_is_a_class_and_three_planes(tmp_path: Path) -> None:
    found = read_cifar10(write_cifar10(tmp_path))
    assert found.classes[:2] == ("airplane", "automobile")
    assert found.labels.shape == (180, 10)
    assert found.labels.sum(axis=1).tolist() == [1] * 180
    assert found.names[31] == "automobile/data_batch_2_00001.png"
    assert found.names[-1] == "truck/test_batch_00029.png"
    assert found.paths is not None
    record = np.frombuffer((tmp_path / BINARIES / "data_batch_2.bin").read_bytes(), dtype=np.uint8)[3073:6146]
    pixels = np.asarray(Image.open(found.paths[31]))
    assert record[0] == found.labels[31].argmax() == 1
    for plane in range(3):
        start = 1 + plane * 1024
        assert np.array_equal(pixels[:, :, plane], record[start : start + 1024].reshape(32, 32))


def test_images_are_written_once(tmp_path: Path) -> None:
    first = read_cifar10(write_cifar10(tmp_path))
    assert first.paths is not None
    before = first.paths[0].stat().st_mtime_ns
    again = read_cifar10(tmp_path)
    assert again.names == first.names
    assert first.paths[0].stat().st_mtime_ns == before
    first.paths[5].unlink()
    with pytest.raises(DataError, match=f"1 of 180 images of .*{BINARIES}' are not in .*{IMAGES}"):
        read_cifar10(tmp_path)


def test_the_official_parts(tmp_path: Path) -> None:
    found = read_cifar10_parts(write_cifar10(tmp_path))
    assert found.splits["query"].tolist() == list(range(150, 180))
    assert found.splits["train"].tolist() == found.splits["database"].tolist() == list(range(150))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "cannot read .*data_batch_3.bin.* Unpack"),
        (lambda path: path.write_bytes(b"\x00" * 3074), "3,074 bytes, which are no records of 3,073"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(b"\x0a" * 3073), "has the class 10, but there are 10"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: object, words: str) -> None:
    write_cifar10(tmp_path)
    change(tmp_path / BINARIES / "data_batch_3.bin")  # type: ignore[operator]
    with pytest.raises(DataError, match=words):
        read_cifar10(tmp_path)
    assert not (tmp_path / IMAGES).exists()
