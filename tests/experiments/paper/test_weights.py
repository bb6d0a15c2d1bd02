from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.experiments.paper.weights import choose, evenness, read_boxes
from tests.toys import CLASSES

# Pictures are chosen by a rule


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


def test_ties_have_a_seeded_order() -> None:
    queries = [query(0.5, 0.5)] * 20
    assert choose(queries, 5) == choose(queries, 5)
    assert choose(queries, 5) != choose(queries, 5, seed=1)


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
