"""The pieces of the paper's experiments: printed results, settings, test images, weights, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.experiments.tasks import EvaluationSetup, Source
from centerhash.methods.registry import METHODS
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.heads import Head
from centerhash.training.session import Session
from reproduction.common import DATA, PRINTED_BITS, Settings, printed, printed_map
from reproduction.instances import (
    Classification,
    TestSource,
    class_columns,
    classifier_weights,
    source_of_test,
)
from reproduction.parameters import printed_path
from reproduction.report import PARTS, reproduce
from reproduction.weights import choose, evenness, read_boxes
from tests.toys import CLASSES, feature_dataset, write_images


def test_printed_figures() -> None:
    for table, data, method, bits, value in (
        ("alexnet", "nus-wide", "lsh", 16, 0.328),
        ("alexnet", "nus-wide", "sh", 64, 0.410),
        ("alexnet", "coco", "itq", 32, 0.624),
        ("alexnet", "coco", "dhn", 64, 0.694),
        ("alexnet", "coco", "csq", 16, 0.635),
        ("alexnet", "nus-wide", "ics", 32, 0.789),
        ("resnet50", "nus-wide", "bre", 16, 0.485),
        ("resnet50", "nus-wide", "dch", 64, 0.818),
        ("resnet50", "coco", "sdh", 64, 0.580),
        ("resnet50", "coco", "dnnh", 16, 0.644),
        ("resnet50", "coco", "ics", 64, 0.880),
        ("ablation", "nus-wide", "ewcs", 64, 0.779),
        ("ablation", "coco", "ewcs", 32, 0.717),
    ):
        assert printed_map(table, data, method, bits) == value


def test_what_is_not_printed_is_none() -> None:
    assert printed_map("alexnet", "coco", "dch", 16) is None  # commented out in the paper's table
    assert printed_map("resnet50", "coco", "lsh", 16) is None
    assert printed_map("alexnet", "coco", "csq", 48) is None
    assert printed_map("alexnet", "coco", "ics-softmax", 16) is None


def test_printed_tables_are_whole_and_name_our_methods() -> None:
    sizes = {"alexnet": 12, "resnet50": 11, "ablation": 3}
    for name, size in sizes.items():
        for data in DATA:
            rows = printed()[name][data]
            assert len(rows) == size
            assert set(rows) <= set(METHODS)
            assert all(len(values) == len(PRINTED_BITS) for values in rows.values())


def test_both_forms_of_ics_stand_beside_the_printed_one() -> None:
    assert (
        printed_map("alexnet", "coco", "ics-printed", 64)
        == printed_map("alexnet", "coco", "ics", 64)
        == 0.764
    )


def test_captions_of_the_histograms() -> None:
    assert {row["lambda"]: (row["map"], row["variance"]) for row in printed()["weights"]} == {
        10: (0.742, 0.0650),
        0.1: (0.758, 0.0214),
        0.01: (0.764, 0.0211),
    }


# Settings


def test_an_unknown_part_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        reproduce("lamda", Settings(Source(tmp_path), tmp_path / "out"))


def test_options_of_other_parts_are_refused(tmp_path: Path) -> None:
    for name in PARTS:
        if not name.startswith("table"):
            with pytest.raises(ConfigError, match="results"):
                reproduce(name, Settings(Source(tmp_path), tmp_path, results=tmp_path))
        if name != "instances":
            with pytest.raises(ConfigError):
                reproduce(name, Settings(Source(tmp_path), tmp_path, exclude=tmp_path))


def test_methods_that_a_part_does_not_compare(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pgd"):
        PARTS["pgd"](Settings(Source(tmp_path), tmp_path, methods=("csq",)))


# Test images


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
    setup = EvaluationSetup(dataset, dataset.features, 10, False, Session(), get_backbone(DEFAULT_BACKBONE))
    with pytest.raises(DataError, match="toy"):
        TestSource(Source(Path())).open(setup)


# A classifier


def test_cross_entropy_by_hand() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, 100.0]]), torch.tensor([[True, False], [False, True]])
    loss = Classification()(logits, labels)
    assert float(loss) == pytest.approx(3 * np.log(2) / 4)


def test_classifier_weights_are_a_softmax_over_the_labels() -> None:
    features = np.log(np.array([[1.0, 3.0, 9.0], [5.0, 1.0, 1.0]])).astype(np.float32)
    labels = np.array([[True, True, False], [False, False, False]])
    found = classifier_weights(Head(torch.nn.Identity()), features, labels)
    assert found == pytest.approx(np.array([[0.25, 0.75, 0], [0, 0, 0]]))


# The printed step


@pytest.mark.parametrize(("entropy", "slope"), [(1.0, 0.8), (9.0, -0.8), (11.0, -1.2)])
def test_the_printed_step_multiplies_a_deviation(entropy: float, slope: float) -> None:
    """1 - eta lambda c with eta = .1 and c = 2, far from the centers."""
    start, after = printed_path(entropy, 0.1, steps=1, start=0.5001, distance=200.0)
    assert (after - 0.5) / (start - 0.5) == pytest.approx(slope, abs=1e-3)


def test_the_printed_step_settles_below_two_and_leaves_above() -> None:
    assert printed_path(9.0, 0.1, steps=60)[-1] == pytest.approx(0.5, abs=1e-3)
    assert abs(printed_path(11.0, 0.1, steps=60)[-1] - 0.5) > 0.3


# Images and boxes


def query(*weights: float) -> dict[str, Any]:
    return {"weights": dict(zip(CLASSES, weights, strict=False))}


def test_evenness_by_hand() -> None:
    assert evenness(query(0.5, 0.5)["weights"]) == pytest.approx(1)
    assert evenness(query(1.0, 0.0)["weights"]) == 0
    assert evenness(query(0.5, 0.25, 0.25)["weights"]) == pytest.approx(1.5 * np.log(2) / np.log(3))


def test_quantiles_of_the_entropy_are_chosen() -> None:
    queries = [query(share, 1 - share) for share in (0.6, 0.95, 0.5, 0.7, 0.8)]
    assert choose(queries, 3) == [1, 3, 2]  # the least even, the middle, the most even
    assert choose(queries, 9) == [1, 4, 3, 0, 2]  # all there are
    assert choose([], 3) == []


# Boxes

CELL = '"{""dog"":[[0.5,0.5,1,0.25]],""cat"":[[0.1,0.2,0.1,0.1],[0.5,0.5,0.1,0.1]]}"'


def test_boxes_are_read_by_file_and_label(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"file_name,labels,boxes\n./a.jpg,dog|cat,{CELL}\nb.jpg,dog,\n")
    assert read_boxes(tmp_path) == {
        "a.jpg": {"dog": [(0.5, 0.5, 1.0, 0.25)], "cat": [(0.1, 0.2, 0.1, 0.1), (0.5, 0.5, 0.1, 0.1)]}
    }


def test_no_boxes_where_none_are_told(tmp_path: Path) -> None:
    assert read_boxes(tmp_path) == {}
    (tmp_path / "labels.csv").write_text("file_name,labels\na.jpg,dog\n")
    assert read_boxes(tmp_path) == {}


@pytest.mark.parametrize(
    "cell", ["dog", "[1]", '"{""dog"": 3}"', '"{""dog"": [[1, 2]]}"', '"{""dog"": [[0,0,2,0]]}"']
)
def test_damaged_boxes_are_named(tmp_path: Path, cell: str) -> None:
    (tmp_path / "labels.csv").write_text(f"file_name,labels,boxes\na.jpg,dog,{cell}\n")
    with pytest.raises(DataError, match=r"line 2: the cell 'boxes' is not json of label"):
        read_boxes(tmp_path)
