from __future__ import annotations

from pathlib import Path

import numpy as np

from centerhash.data.published.coco import read_coco_parts
from tests.layouts import write_coco


def test_the_parts_are_joined_and_images_without_labels_left_out(tmp_path: Path) -> None:
    folder = read_coco_parts(write_coco(tmp_path), ("train2014", "val2014"))
    assert len(folder.names) == 10  # two parts of six, each with one image without objects
    assert folder.names[0] == "train2014/COCO_train2014_000000000001.jpg"
    assert folder.names[5] == "val2014/COCO_val2014_000000000001.jpg"
    assert all(path.is_file() for path in folder.paths or ())
    assert folder.labels.any(axis=1).all()
    assert folder.areas is not None
    np.testing.assert_allclose(folder.areas[0], [0.5, 0.25, 0], rtol=0.03)
