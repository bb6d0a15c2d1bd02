"""What the paper prints, and what a part is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError
from centerhash.experiments.bench import Source
from centerhash.experiments.paper.common import DATA, PRINTED_BITS, Settings, printed, printed_map
from centerhash.experiments.paper.report import PARTS, reproduce
from centerhash.methods.registry import METHODS


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


def test_the_ablation_repeats_the_first_table() -> None:
    for data in DATA:
        for method in ("csq", "ics"):
            assert printed()["ablation"][data][method] == printed()["alexnet"][data][method]


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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"seeds": 0}, "seeds"), ({"jobs": 0}, "jobs"), ({"bits": ()}, "bits")],
)
def test_impossible_settings(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Settings(Source(Path()), Path(), **changes)


def test_an_unknown_part_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        reproduce("lamda", Settings(Source(tmp_path), tmp_path / "out"))


def test_options_of_other_parts_are_refused(tmp_path: Path) -> None:
    for name in PARTS:
        if not name.startswith("table"):
            with pytest.raises(ConfigError, match="'results' belongs to"):
                reproduce(name, Settings(Source(tmp_path), tmp_path, results=tmp_path))
        if name != "instances":
            with pytest.raises(ConfigError):
                reproduce(name, Settings(Source(tmp_path), tmp_path, exclude=tmp_path))


def test_methods_that_a_part_does_not_compare(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pgd compares ics-printed, ics"):
        reproduce("pgd", Settings(Source(tmp_path), tmp_path, methods=("csq",)))
