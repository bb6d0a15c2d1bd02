from __future__ import annotations

import sys

import numpy as np
import pytest

from centerhash.core.errors import ConfigError
from centerhash.evaluation import Evaluation, evaluate


@pytest.fixture
def found() -> Evaluation:
    generator = np.random.default_rng(0)
    codes = generator.choice([-1, 1], size=(30, 16)).astype(np.int8)
    labels = generator.random((30, 4)) < 0.5
    return evaluate(codes[:5], codes[5:], labels[:5], labels[5:], k=10, precision_at=(3,))


def test_it_prints_as_a_table_of_its_measures(found: Evaluation) -> None:
    lines = str(found).splitlines()
    assert lines[0] == "5 queries, 25 database items, 16 bits"
    assert lines[1].split() == ["metric", "value", "random"]
    assert lines[2].split() == [
        "mAP@10,",
        "retrieved",
        "relevant",
        f"{found.map_peers:.4f}",
        f"{found.chance_peers:.4f}",
    ]
    assert lines[-1].split() == ["precision@3", f"{found.precision[3]:.4f}"]
    assert len(lines) == 2 + len(found.measures())


def test_it_is_one_short_line_among_others(found: Evaluation) -> None:
    assert len(repr(found)) < 120
    assert f"{found.map_textbook:.4f} all relevant" in repr(found)


def test_it_is_a_table_in_a_notebook(found: Evaluation) -> None:
    page = found._repr_html_()
    assert page.count("<tr>") == 1 + len(found.measures())
    assert f"<td>{found.ndcg:.4f}</td>" in page


def test_it_is_a_frame_for_pandas(found: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pytest.importorskip("pandas") and found.to_pandas()
    assert frame.set_index("name")["value"]["NDCG@10"] == found.ndcg
    assert frame["name"].is_unique
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError):
        found.to_pandas()


def test_a_database_smaller_than_k_gives_the_depth() -> None:
    codes, labels = np.ones((6, 8)), np.ones((6, 2), bool)
    found = evaluate(codes[:2], codes, labels[:2], labels, k=5000, precision_at=(1, 6, 10, 100))
    assert (found.k, found.depth) == (5000, 6)
    assert [row.name for row in found.measures() if "@" in row.name] == [
        "mAP@6, retrieved relevant",
        "mAP@6, all relevant",
        "NDCG@6",
        "ACG@6",
        "WAP@6",
        "precision@1",
        "precision@6",
    ]
    assert "mAP@6 " in repr(found)
