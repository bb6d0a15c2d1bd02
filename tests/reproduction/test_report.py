"""Every part of the paper from end to end on tiny data: stored, drawn, and not computed twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from centerhash.experiments.compare import train_and_evaluate
from centerhash.experiments.runner import read_failures, read_rows, run_tasks
from centerhash.experiments.tasks import Source, plan_tasks
from centerhash.methods.registry import METHODS
from reproduction import instances, scores, solver, weights
from reproduction.__main__ import app
from reproduction.common import Section, Settings
from reproduction.report import PARTS, reproduce

pytestmark = pytest.mark.slow

SMALL = {name: {"head": {"hidden": [32]}, "epochs": 1} for name in METHODS}
KEYS = ("found",)


def tiny(data: Path, out: Path, **changes: Any) -> Settings:
    source = Source(data, k=30, cache=changes.pop("cache", None), device="cpu")
    return Settings(source, out, **{"bits": (16,), "seeds": 1, "options": SMALL, **changes})


def drawn(settings: Settings, run: Any) -> Section:
    """Run a part: each of its figures is there as SVG and as PNG."""
    section: Section = run(settings)
    assert section.failures == ()
    folder = settings.out / section.what
    for path in folder.glob("*.svg"):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return section


def redrawn(settings: Settings, run: Any) -> Section:
    """Run a part twice: the second call computes nothing and says the same."""
    first = drawn(settings, run)
    folder = settings.out / first.what
    rows = folder if not first.what.startswith("table") else settings.out / scores.ROWS
    raw = (rows / "results.jsonl").read_bytes()
    figures = {path.name: path.read_bytes() for path in folder.glob("*.svg")}
    again: Section = run(settings)
    assert again == first
    assert (rows / "results.jsonl").read_bytes() == raw
    assert {path.name: path.read_bytes() for path in folder.glob("*.svg")} == figures
    return first


def body(section: Section) -> str:
    return "".join(section.pieces)


def figures_of(out: Path, what: str) -> set[str]:
    return {path.stem for path in (out / what).glob("*.png")}


def test_all_methods_beside_the_printed_tables(feature_folder: Path, tmp_path: Path) -> None:
    settings = tiny(feature_folder, tmp_path, methods=("csq", "hashnet", "ics", "lsh"))
    section = redrawn(settings, scores.run_methods)
    assert section.what == "table-methods"
    for text in (
        "Table 2, AlexNet",
        "Table 3, ResNet-50",
        "<i>0.635</i>",
        "<i>0.772</i>",
        "<i>printed</i>, NUS-WIDE",
    ):
        assert text in body(section)
    rows = read_rows(tmp_path / "tables" / "results.jsonl")
    assert {row["config"]["method"] for row in rows} == {"csq", "hashnet", "ics", "lsh"}
    assert f"{rows[0]['evaluation']['map_retrieved']:.3f}" in body(section)


def test_rows_of_compare_are_taken_over(feature_folder: Path, tmp_path: Path) -> None:
    tasks = plan_tasks(["csq", "ewcs"], [16], 1, SMALL)
    source = Source(feature_folder, k=30, device="cpu")
    run_tasks(source, tasks, tmp_path / scores.ROWS, train_and_evaluate)
    before = (tmp_path / scores.ROWS / "results.jsonl").read_bytes()
    settings = tiny(feature_folder, tmp_path, methods=("csq", "ewcs"))
    assert "E-WCS" in body(scores.run_methods(settings))
    assert "E-WCS" in body(scores.run_ablation(settings))
    assert (tmp_path / scores.ROWS / "results.jsonl").read_bytes() == before


def test_ablation(feature_folder: Path, tmp_path: Path) -> None:
    section = drawn(tiny(feature_folder, tmp_path), scores.run_ablation)
    for title in ("CSQ", "E-WCS", "ICS as printed", "ICS-softmax (ours)", "<i>0.642</i>"):
        assert title in body(section)


def test_convergence(feature_folder: Path, tmp_path: Path) -> None:
    section = redrawn(tiny(feature_folder, tmp_path), solver.run)
    assert figures_of(tmp_path, "pgd") == {"convergence-ics-printed", "convergence-ics"}
    assert "about 8 ms" in body(section)
    for row in read_rows(tmp_path / "pgd" / "results.jsonl", KEYS):
        found = row["found"]
        assert len(found["true"]) == solver.STEPS + 1
        assert found["true"][0] == found["printed"][0]
        assert min(found["true"]) >= found["minimum"] - 1e-6
        assert found["images"] == 64
        assert min(found[f"{name}_ms"] for name in ("exact", "printed", "true")) > 0


@pytest.mark.parametrize(("what", "letter"), [("beta", "β"), ("lambda", "λ")])
def test_parameter_studies(feature_folder: Path, tmp_path: Path, what: str, letter: str) -> None:
    # both are one function, drawn twice for one of them
    section = (redrawn if what == "lambda" else drawn)(tiny(feature_folder, tmp_path), PARTS[what])
    rows = read_rows(tmp_path / what / "results.jsonl", KEYS)
    values = [0.0001, 0.001, 0.01, 0.1, 1, 10][: len(rows) // 2]
    assert len(values) == {"beta": 5, "lambda": 6}[what]
    for form in ("ics-printed", "ics"):
        of_form = [row for row in rows if row["config"]["method"] == form]
        assert sorted(row["about"][what] for row in of_form) == values
        assert all(row["config"]["options"][what] == row["about"][what] for row in of_form)
    assert figures_of(tmp_path, what) == {"map", "weights"}
    assert f"ICS as printed, {letter} = 0.01" in body(section)
    if what == "lambda":  # a small one makes exact weights uneven: the opposite of what the paper says
        exact = [row for row in rows if row["config"]["method"] == "ics"]
        uneven = {row["about"]["lambda"]: row["found"]["weights"]["variance_uneven"] for row in exact}
        assert uneven[0.0001] > 0.1 > uneven[0.1] > uneven[10] >= 0


def test_pictures_with_weights(scene_folder: Path, feature_cache: Path, tmp_path: Path) -> None:
    settings = tiny(scene_folder, tmp_path, cache=feature_cache, methods=("ics", "ics-softmax"))
    redrawn(settings, weights.run)
    assert figures_of(tmp_path, "weights") == {"pictures", "histograms"}
    for row in read_rows(tmp_path / "weights" / "results.jsonl", KEYS):
        assert row["found"]["queries"]
        for query in row["found"]["queries"]:
            assert 2 <= len(query["weights"]) <= 4
            assert sum(query["weights"].values()) == pytest.approx(1, abs=1e-3)
    with Image.open(tmp_path / "weights" / "pictures.png") as picture:
        assert min(picture.size) > 200


def test_features_have_no_pictures(feature_folder: Path, tmp_path: Path) -> None:
    section = drawn(tiny(feature_folder, tmp_path, methods=("ics",)), weights.run)
    assert figures_of(tmp_path, "weights") == {"histograms"}
    assert "features and no images" in body(section)


def test_weights_against_areas(scene_folder: Path, feature_cache: Path, tmp_path: Path) -> None:
    section = instances.run(tiny(scene_folder, tmp_path, cache=feature_cache))
    rows = read_rows(tmp_path / "instances" / "results.jsonl", KEYS)
    found = {key: value for row in rows for key, value in row["found"].items()}
    assert set(found) == set(instances.READINGS)
    assert found["ewcs"]["centered_pearson"] == pytest.approx(0, abs=1e-6)
    assert found["ewcs"]["largest"] == pytest.approx(found["ewcs"]["chance"])
    for value in found.values():
        low, high = value["intervals"]["largest"]
        assert 0 <= low <= value["largest"] <= high <= 1
    for title in instances.READINGS.values():
        assert title in body(section)


def test_another_process_finds_the_same(feature_folder: Path, tmp_path: Path) -> None:
    found = []
    for jobs in (1, 2):
        settings = tiny(feature_folder, tmp_path / str(jobs), methods=("ics",), jobs=jobs)
        found.append(body(weights.run(settings)))
    assert found[0] == found[1]


def test_a_failure_leaves_the_others(feature_folder: Path, tmp_path: Path) -> None:
    broken = {**SMALL, "ics-printed": {**SMALL["ics-printed"], "options": {"gamma": 1e39}}}
    section = solver.run(tiny(feature_folder, tmp_path, options=broken))
    assert len(section.failures) == 1
    assert section.failures[0].startswith("ics-printed 16 bits seed 0: the loss became")
    assert figures_of(tmp_path, "pgd") == {"convergence-ics"}
    assert [row["config"]["method"] for row in read_failures(tmp_path / "pgd")] == ["ics-printed"]


def test_everything_on_one_page(feature_folder: Path, tmp_path: Path) -> None:
    told: list[str] = []
    settings = tiny(feature_folder, tmp_path, methods=("ewcs", "ics"), warn=lambda texts: told.extend(texts))
    page, failures = reproduce("all", settings)
    assert failures == []
    text = page.read_text()
    assert page == tmp_path / "report.html"
    assert re.findall(r"<li><a href='#([^']+)'>", text) == list(PARTS)
    assert re.findall(r"<section id='([^']+)'>", text) == list(PARTS)
    assert "has no areas of its objects" in text
    assert str(tmp_path) not in text
    assert not re.search(r"(src|href)=['\"]https?:", text)
    assert len(told) == len(set(told))
    assert figures_of(tmp_path, "lambda") == {"map", "weights"}


def test_the_command(feature_folder: Path, tmp_path: Path) -> None:
    words = ["pgd", "--data", str(feature_folder), "--out", str(tmp_path), "--bits", "16", "--epochs", "1"]
    words += ["--methods", "ics", "--device", "cpu", "-o", 'all:head={"hidden": [16]}']
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "pgd.html").read_text().startswith("<!doctype html>")
    failing = CliRunner().invoke(app, [*words, "-o", "ics:gamma=1e39"])
    assert failing.exit_code == 1
