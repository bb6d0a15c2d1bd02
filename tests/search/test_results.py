from __future__ import annotations

import base64
import io
import re
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ConfigError
from centerhash.model.base import Explained
from centerhash.search import Result, Results
from tests.toys import noise_image


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Three results: an image, one whose file is missing, and one without an image."""
    noise_image(300).crop((0, 0, 300, 150)).save(tmp_path / "a.png")
    found = [
        Result("a", 0, ("dog", "<b>"), str(tmp_path / "a.png")),
        Result("b", 3, (), str(tmp_path / "gone.png")),
        Result("<i>", 5, ("cat",), None, 40, {"cat": 0.9}, {"cat": 1.0}, taken=datetime(2024, 6, 1, 12)),
    ]
    return Results(found, [Explained("dog & cat", 0.75, 0.5, 2)], np.array([1, -1, 1], np.int8), 1200)


def test_results_are_a_sequence(results: Results) -> None:
    assert [row.id for row in results] == ["a", "b", "<i>"]
    assert results[:2] == (results[0], results[1])
    assert results[1] in results
    assert repr(results) == "Results(3 of 1,200 items, nearest 'a' at distance 0)"
    assert repr(Results([], [], results.code, 0)) == "Results(0 of 0 items)"


def test_results_as_a_dict(results: Results) -> None:
    last = {
        **{"id": "<i>", "distance": 5, "labels": ["cat"], "path": None, "visual": 40},
        **{"probability": {"cat": 0.9}, "share": {"cat": 1.0}, "paths": [], "name": None},
        **{"taken": "2024-06-01T12:00:00", "camera": None, "width": None, "height": None},
    }
    assert results.to_dict() == {
        "labels": [{"label": "dog & cat", "weight": 0.75, "similarity": 0.5, "distance": 2}],
        "results": [*(row.to_dict() for row in results[:2]), last],
        "bits": 3,
        "size": 1200,
    }


def test_results_as_a_table(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = results.to_pandas()
    assert list(table.columns) == list(results[0].to_dict())
    assert table["distance"].tolist() == [0, 3, 5]
    assert list(Results([], [], results.code, 0).to_pandas().columns) == list(table.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas"):
        results.to_pandas()


def test_results_in_a_notebook(results: Results) -> None:
    page = results._repr_html_()
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert (image.format, image.size) == ("JPEG", (128, 64))
    assert page.count("no image") == 2
    assert not re.search("<[bi]>", page)
    assert "dog &amp; cat 0.75" in page
    many = Results([results[2]] * 60, [], results.code, 60)._repr_html_()
    assert (many.count("<figure"), many.count("and 10 more")) == (50, 1)
