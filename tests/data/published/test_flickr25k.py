from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data.published import DATASETS
from centerhash.data.published.flickr25k import POTENTIAL, RELEVANT
from tests.layouts import write_flickr25k

read_flickr25k = DATASETS["flickr25k"].reader
read_flickr25k_38 = DATASETS["flickr25k-38"].reader


def test_numbers_count_from_one_and_images_without_labels_are_left_out(tmp_path: Path) -> None:
    folder = read_flickr25k(write_flickr25k(tmp_path, 30))
    assert folder.classes == POTENTIAL
    assert len(set(POTENTIAL)) == 24
    assert folder.names == tuple(f"im{number}.jpg" for number in range(1, 30))  # im30 has no annotation
    assert folder.paths[0] == tmp_path / "mirflickr" / "im1.jpg"
    for row in range(29):
        assert folder.labels[row].nonzero()[0].tolist() == [(row + 1) % 24]
    assert folder.areas is None


def test_the_relevant_annotations_follow_the_potential_ones(tmp_path: Path) -> None:
    folder = read_flickr25k_38(write_flickr25k(tmp_path, 30))
    assert folder.classes == POTENTIAL + RELEVANT
    assert len(set(folder.classes)) == 38
    assert all(name.removesuffix("_r1") in POTENTIAL for name in RELEVANT)
    baby, relevant = POTENTIAL.index("baby"), folder.classes.index("baby_r1")
    assert folder.labels[:, baby].nonzero()[0].tolist() == [0, 24]  # im1 and im25
    assert folder.labels[:, relevant].nonzero()[0].tolist() == [0]


@pytest.mark.parametrize("line", ["x", "0", "-3", "1.5", ""])
def test_a_line_that_is_no_number(tmp_path: Path, line: str) -> None:
    write_flickr25k(tmp_path)
    (tmp_path / "mirflickr25k_annotations_v080" / "sky.txt").write_text(f"1\n{line}\n2\n")
    with pytest.raises(DataError, match=rf"sky\.txt', line 2: '{line}' is not the number of an image \(1, 2"):
        read_flickr25k(tmp_path)


def test_missing_photos_and_annotations(tmp_path: Path) -> None:
    write_flickr25k(tmp_path)
    (tmp_path / "mirflickr" / "im3.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 11 images of .*: 'im3\.jpg'"):
        read_flickr25k(tmp_path)
    (tmp_path / "mirflickr25k_annotations_v080" / "sea_r1.txt").unlink()
    with pytest.raises(DataError):
        read_flickr25k_38(tmp_path)
