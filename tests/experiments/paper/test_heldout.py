from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.experiments.bench import Bench, Source
from centerhash.experiments.paper.common import Settings
from centerhash.experiments.paper.heldout import TestSource, class_columns, source_of_test
from tests.toys import CLASSES, feature_dataset, write_images


def image_folder(root: Path, classes: str = "ant|bee") -> Path:
    paths = write_images(root, 4, size=16)
    lines = [f"{path.name},{classes},0.5|0.25" for path in paths]
    (root / "labels.csv").write_text("\n".join(["file_name,labels,areas", *lines]) + "\n")
    return root


def test_training_images_are_never_measured_on() -> None:
    dataset = feature_dataset(40)
    assert TestSource(Source(Path())).rows(dataset).tolist() == list(range(10))


def test_excluded_names_and_ids_are_left_out(tmp_path: Path) -> None:
    dataset = open_dataset(image_folder(tmp_path / "images"))
    listed = tmp_path / "listed.txt"
    for text, left in (
        ("001.png\n", [0, 2, 3]),
        ("2\n003\n", [0, 1]),
        ("\n0\n", [1, 2, 3]),
        ("x.png\n", [0, 1, 2, 3]),
    ):
        listed.write_text(text)
        settings = Settings(Source(tmp_path), tmp_path, test_images=dataset.root, exclude=listed)
        assert source_of_test(settings).rows(dataset).tolist() == left


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    dataset = open_dataset(image_folder(tmp_path, "fox|bee"))
    assert dataset.classes == ("bee", "fox")
    assert class_columns(dataset, CLASSES) == [1, 5]
    with pytest.raises(DataError, match=r"the class 'fox' of the test images .* Did you mean 'ox'\?"):
        class_columns(dataset, ("ant", "bee", "ox"))


def test_data_without_areas_is_refused() -> None:
    dataset = feature_dataset(40)
    assert dataset.features is not None
    bench = Bench(dataset, dataset.features, 10, False, "cpu")
    with pytest.raises(DataError, match="'toy' does not say how large its objects are"):
        TestSource(Source(Path())).open(bench)
