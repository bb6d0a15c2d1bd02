from __future__ import annotations

import base64
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ConfigError
from centerhash.model.explanation import Explained
from centerhash.search import Result, Results
from tests.toys import noise_image


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Three results: an image, one whose file is gone, and one without an image."""
    noise_image(300).crop((0, 0, 300, 150)).save(tmp_path / "a.png")
    found = [
        Result("a", 0, ("dog", "<b>"), str(tmp_path / "a.png")),
        Result("b", 3, (), str(tmp_path / "gone.png")),
        Result("<i>", 5, ("cat",), None, 40, {"cat": 0.9}, {"cat": 1.0}),
    ]
    labels = [Explained("dog & cat", 0.75, 0.5, 2)]
    return Results(found, labels, np.array([1, -1, 1], np.int8), 1200)


def test_results_are_a_sequence(results: Results) -> None:
    assert len(results) == 3
    assert [row.id for row in results] == ["a", "b", "<i>"]
    assert results[-1].path is None
    assert results[:2] == (results[0], results[1])
    assert results[1] in results
    assert repr(results) == "Results(3 of 1,200 items, nearest 'a' at distance 0)"
    assert repr(Results([], [], results.code, 0)) == "Results(0 of 0 items)"


def test_results_as_a_dict(results: Results) -> None:
    shaped = results.to_dict()
    assert list(shaped) == ["labels", "results", "bits", "size"]
    assert (shaped["bits"], shaped["size"]) == (3, 1200)
    assert shaped["results"][2] == {
        "id": "<i>",
        "distance": 5,
        "labels": ["cat"],
        "path": None,
        "look": 40,
        "presence": {"cat": 0.9},
        "share": {"cat": 1.0},
    }
    assert shaped["results"][0]["look"] is None
    assert shaped["labels"] == [{"label": "dog & cat", "weight": 0.75, "similarity": 0.5, "distance": 2}]


def test_results_as_a_table(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = results.to_pandas()
    assert list(table.columns) == ["id", "distance", "labels", "path", "look", "presence", "share"]
    assert table["distance"].tolist() == [0, 3, 5]
    assert list(Results([], [], results.code, 0).to_pandas().columns) == list(table.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError):
        results.to_pandas()


def test_results_in_a_notebook(results: Results) -> None:
    page = results._repr_html_()
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert (image.format, image.size) == ("JPEG", (128, 64))
    assert page.count("no image") == 2
    assert "<b>" not in page
    assert "<i>" not in page
    assert "dog &amp; cat 0.75" in page
    many = Results([results[2]] * 60, [], results.code, 60)
    assert many._repr_html_().count("<figure") == 50
    assert "and 10 more" in many._repr_html_()
