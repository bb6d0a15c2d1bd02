"""The pictures of stored figures: drawn from what is in the repository, and telling the truth about it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chart, coverage_badge
from centerhash.experiments.runner import read_rows, unfinished
from centerhash.experiments.tasks import plan_tasks
from centerhash.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> dict[str, Any]:
    return {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in chart.NAMES}


def words(picture: str) -> list[str]:
    """The texts of an SVG, which must be well-formed."""
    return ["".join(found.itertext()) for found in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_chart_is_drawn_from_stored_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new" / "bench.svg"
    monkeypatch.setattr(sys, "argv", ["chart", "--results", str(RESULTS), "--out", str(out)])
    chart.main()
    assert (
        out.read_text() == (ROOT / "docs" / "images" / "bench.svg").read_text()
    )  # `python -m benchmarks.chart`


def test_all_that_is_stored_was_measured_on_one_commit() -> None:
    parts = re.findall(r"for part in (.*?);", (ROOT / "Makefile").read_text())[0].split()
    stored = {part: json.loads((RESULTS / f"{part}.json").read_text()) for part in parts}
    assert set(chart.NAMES) <= set(parts)
    [commit] = {figures["commit"] for figures in stored.values()}
    assert re.fullmatch("[0-9a-f]{10}", commit)  # and without changes


def test_every_bar_is_labelled_with_its_figure_and_its_goal(results: dict[str, Any]) -> None:
    results["speed"]["evaluation"]["times_faster"] = 33.3
    results["speed"]["solver"]["exact_share_of_step"] = 0.123
    results["search"]["1,000,000 random codes of 64 bits"]["index_to_faiss"] = 0.25
    results["load"]["by_id"]["errors"] = 7
    texts = words(chart.draw(results))
    assert {"33xgoal 20x", "12.3 %limit 10 %", "4.0xgoal 2x"} <= set(texts)
    assert any("7 errors" in text for text in texts)


def test_missed_goals_have_another_colour(results: dict[str, Any]) -> None:
    def missed() -> int:
        count = chart.draw(results).count(f'fill="{chart.MISSED}"') - 1  # one is the legend's
        assert len(chart.missed(results)) == count
        return count

    results["speed"]["start_up"]["help_seconds"] = 0.49
    results["encoding"]["photos of 256 x 256"]["onnx"]["times_eager"] = 3.1
    before = missed()
    results["speed"]["start_up"]["help_seconds"] = 0.51  # too long
    results["encoding"]["photos of 256 x 256"]["onnx"]["times_eager"] = 2.9  # too slow
    assert missed() == before + 2
    assert any(line.endswith("0.51 s, limit 0.5 s") for line in chart.missed(results))


def test_bars_are_as_long_as_their_scale_says() -> None:
    bar = chart.Bar("", "", 10, 5, "", "")
    logarithmic = chart.Panel("", "", [bar], {1: "1", 100: "100"}, log=True)
    assert logarithmic.place(10) == pytest.approx(chart.BARS / 2)
    assert logarithmic.place(1000) == logarithmic.place(100) == pytest.approx(chart.BARS)
    linear = chart.Panel("", "", [bar], {0: "0", 1: "1"}, limit=True)
    assert linear.place(0.25) == pytest.approx(chart.BARS / 4)
    assert logarithmic.is_met(bar)
    assert not linear.is_met(bar)


@pytest.mark.parametrize(("percent", "shown"), [(99.99, "99 %"), (100.0, "100 %"), (42.0, "42 %")])
def test_a_badge_rounds_down(percent: float, shown: str) -> None:
    assert words(coverage_badge.badge(percent)) == ["coverage", shown]


def test_the_badge_and_its_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = {
        "percent_covered": 93.21,
        "num_statements": 100,
        "covered_lines": 95,
        "num_branches": 20,
        "covered_branches": 17,
    }
    report, badge, out = (tmp_path / name for name in ("report.json", "badge.svg", "out.json"))
    report.write_text(json.dumps({"totals": totals}))
    monkeypatch.setattr(sys, "argv", ["x", str(report), "--badge", str(badge), "--out", str(out)])
    coverage_badge.main()
    assert re.search(r">93 %<", badge.read_text())
    assert json.loads(out.read_text())["percent"] == 93.21


def test_the_stored_table_has_every_method_with_its_defaults_of_now() -> None:
    # `centerhash compare` with this folder trains nothing again
    rows = read_rows(RESULTS / "coco117k" / "results.jsonl")
    wanted = plan_tasks([name for name, row in METHODS.items() if row.registered is None], [16, 32, 64], 3)
    assert not unfinished(wanted, rows)
