"""The demo end to end in a small setting, and its report in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from centerhash.experiments.demo import DEMO_METHODS, DemoResult, run_demo
from tests.browser import chromium

SCENES = 120


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("demo"), scenes=SCENES, bits=32, epochs=6, device="cpu")


@pytest.mark.slow
def test_results_are_stored_raw(demo: DemoResult) -> None:
    stored = json.loads((demo.report.parent / "results.json").read_text())
    assert set(stored["evaluations"]) == set(DEMO_METHODS)
    for name, found in stored["evaluations"].items():
        assert found["map_textbook"] == demo.evaluations[name].map_textbook
        # the whole database is ranked, so both denominators are all relevant items
        assert found["map_textbook"] == pytest.approx(found["map_peers"])
        assert found["map_textbook"] > found["chance_textbook"]
    built_in = stored["built_in"]
    assert built_in["evaluation"]["map_textbook"] == demo.built_in.evaluation.map_textbook
    assert 0 <= built_in["labels"]["precision"] <= 1
    assert built_in["labels"]["recall"] > 0
    assert stored["weights_against_area"]["ewcs"]["centred_pearson"] == pytest.approx(0, abs=1e-9)
    assert stored["data"]["images"] == SCENES


@pytest.mark.slow
def test_table_shows_every_method_and_chance(demo: DemoResult) -> None:
    columns = [list(column.cells) for column in demo.table().columns]
    assert columns[0] == [
        "CSQ",
        "E-WCS",
        "ICS",
        "ICS-softmax (ours)",
        "built-in model",
        "chance",
    ]
    assert columns[1][0] == f"{demo.evaluations['csq'].map_textbook:.3f}"


@pytest.mark.slow
def test_second_run_reuses_scenes_features_and_models(demo: DemoResult) -> None:
    folder = demo.report.parent
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    computed: list[str] = []
    again = run_demo(
        folder,
        scenes=SCENES,
        bits=32,
        epochs=6,
        device="cpu",
        progress=lambda stage, done, total, note="": computed.append(stage),
    )
    assert again.evaluations == demo.evaluations
    changed = {path.name for path, time in kept.items() if path.stat().st_mtime_ns != time}
    assert changed == {"report.html", "results.json"}
    assert "training" not in computed


@pytest.fixture(scope="module")
def page(demo: DemoResult) -> Iterator[object]:
    with chromium() as opened:
        page = opened.new_page(viewport={"width": 390, "height": 844})
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(demo.report.resolve().as_uri())
        yield page


@pytest.mark.slow
def test_report_in_a_browser(demo: DemoResult, page: object) -> None:
    """Self-contained, every section and picture there, and no sideways scrolling on a phone."""
    outside = [url for url in page.requests if not url.startswith(("file:", "data:"))]  # type: ignore[attr-defined]
    assert outside == []
    titles = page.locator("h2").all_inner_texts()  # type: ignore[attr-defined]
    assert titles == [
        "Retrieval",
        "Search results",
        "What the weights say",
        "Weight against visible area",
        "The built-in model",
        "The weight solver",
        "Training",
    ]
    text = page.locator("main").inner_text()  # type: ignore[attr-defined]
    for found in demo.evaluations.values():
        assert f"{found.map_textbook:.3f}" in text
    assert f"{demo.evaluations['ics'].chance_textbook:.3f}" in text
    broken = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).length")  # type: ignore[attr-defined]
    assert broken == 0
    assert page.locator("svg").count() == 3  # type: ignore[attr-defined]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # type: ignore[attr-defined]


@pytest.mark.slow
def test_report_names_no_path_of_this_machine(demo: DemoResult) -> None:
    assert str(demo.report.parent) not in demo.report.read_text()


def test_scenes_of_another_demo_are_refused(tmp_path: Path) -> None:
    from centerhash.core.errors import DataError
    from reproduction.scenes import write_scenes

    write_scenes(tmp_path / "scenes", 3, size=32)
    with pytest.raises(DataError):
        run_demo(tmp_path, scenes=50)
