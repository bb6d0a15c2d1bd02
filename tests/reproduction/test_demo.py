"""The demo end to end in a small setting, and its report in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from reproduction.__main__ import PARTS as listed
from reproduction.__main__ import app
from reproduction.demo import DEMO_METHODS, DemoResult, run_demo
from reproduction.report import ALL, PARTS
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
    seen = demo.built_in  # trained on photos: of so few drawings it may name nothing
    assert built_in["labels"] == {"precision": seen.precision, "recall": seen.recall}
    assert stored["weights_against_area"]["ewcs"]["centred_pearson"] == pytest.approx(0, abs=1e-9)
    assert stored["data"]["images"] == SCENES
    titles, scores, *_ = (list(column.cells) for column in demo.table().columns)
    assert titles == ["CSQ", "E-WCS", "ICS", "ICS-softmax (ours)", "built-in model", "random ranking"]
    assert scores[0] == f"{demo.evaluations['csq'].map_textbook:.3f}"


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
def page(demo: DemoResult) -> Iterator[Any]:
    with chromium() as opened:
        page = opened.new_page(viewport={"width": 390, "height": 844})
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(demo.report.resolve().as_uri())
        yield page


@pytest.mark.slow
def test_report_in_a_browser(demo: DemoResult, page: Any) -> None:
    """Self-contained, every section and picture there, and no sideways scrolling on a phone."""
    assert str(demo.report.parent) not in demo.report.read_text()
    outside = [url for url in page.requests if not url.startswith(("file:", "data:"))]
    assert outside == []
    titles = page.locator("h2").all_inner_texts()
    assert titles == [
        "Retrieval",
        "Search results",
        "Weights of labels",
        "Weight against visible area",
        "The built-in model",
        "The weight solver",
        "Training",
    ]
    text = page.locator("main").inner_text()
    for found in demo.evaluations.values():
        assert f"{found.map_textbook:.3f}" in text
    assert f"{demo.evaluations['ics'].chance_textbook:.3f}" in text
    broken = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).length")
    assert broken == 0
    assert page.locator("svg").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_scenes_of_another_demo_are_refused(tmp_path: Path) -> None:
    command("scenes", tmp_path / "scenes", "--count", "3", "--size", "32")
    with pytest.raises(DataError):
        run_demo(tmp_path, scenes=50)


# The command line


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_has_help_with_an_example() -> None:
    names = {item.name or getattr(item.callback, "__name__", "") for item in app.registered_commands}
    own = {"demo", "scenes", "coco117k", "coco29k"}
    assert names == {*own, *PARTS, ALL} == {*own, *listed}
    for name in names:
        assert f"python -m reproduction {name} --" in command(name, "--help").replace(
            "scenes scenes", "scenes"
        )


def test_scenes(tmp_path: Path) -> None:
    text = command("scenes", tmp_path / "scenes", "--count", "3", "--size", "48", "--seed", "2")
    assert "centerhash train" in text
    assert open_dataset(tmp_path / "scenes").size == 3


@pytest.mark.slow
def test_bad_input_ends_with_code_2_and_one_sentence(tmp_path: Path) -> None:
    words = ["lambda", "--data", "gone", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "reproduction", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no such folder: 'gone'")
    assert "Traceback" not in done.stderr
