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


def run_once(settings: Settings, run: Any) -> Section:
    """Run a part: each of its figures is there as SVG and as PNG."""
    section: Section = run(settings)
    assert section.failures == ()
    for path in (settings.out / section.part).glob("*.svg"):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return section


def run_twice(settings: Settings, run: Any) -> Section:
    """Run a part twice: the second call computes nothing and returns the same."""
    first = run_once(settings, run)
    rows = settings.out / (scores.ROWS if first.part.startswith("table") else first.part) / "results.jsonl"

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (rows, *(settings.out / first.part).glob("*.svg"))}

    before = contents()
    assert run(settings) == first
    assert contents() == before
    return first


def body(section: Section) -> str:
    return "".join(section.pieces)


def figures_of(out: Path, part: str) -> set[str]:
    return {path.stem for path in (out / part).glob("*.png")}


def test_run_methods(feature_folder: Path, tmp_path: Path) -> None:
    settings = tiny(feature_folder, tmp_path, methods=("csq", "hashnet", "ics", "lsh"))
    section = run_twice(settings, scores.run_methods)
    assert section.part == "table-methods"
    printed = ("<i>0.635</i>", "<i>0.772</i>", "<i>printed</i>, NUS-WIDE")
    for text in ("Table 2, AlexNet", "Table 3, ResNet-50", *printed):
        assert text in body(section)
    rows = read_rows(tmp_path / "tables" / "results.jsonl")
    assert {row["config"]["method"] for row in rows} == {"csq", "hashnet", "ics", "lsh"}
    assert f"{rows[0]['evaluation']['map_retrieved']:.3f}" in body(section)


def test_tables_of_compared_rows(feature_folder: Path, tmp_path: Path) -> None:
    tasks = plan_tasks(["csq", "ewcs"], [16], 1, SMALL)
    source = Source(feature_folder, k=30, device="cpu")
    run_tasks(source, tasks, tmp_path / scores.ROWS, train_and_evaluate)
    before = (tmp_path / scores.ROWS / "results.jsonl").read_bytes()
    settings = tiny(feature_folder, tmp_path, methods=("csq", "ewcs"))
    assert "E-WCS" in body(scores.run_methods(settings))
    assert "E-WCS" in body(scores.run_ablation(settings))
    assert (tmp_path / scores.ROWS / "results.jsonl").read_bytes() == before


def test_run_ablation(feature_folder: Path, tmp_path: Path) -> None:
    section = run_once(tiny(feature_folder, tmp_path), scores.run_ablation)
    for title in ("CSQ", "E-WCS", "ICS as printed", "ICS-softmax (ours)", "<i>0.642</i>"):
        assert title in body(section)


def test_run_solver(feature_folder: Path, tmp_path: Path) -> None:
    section = run_twice(tiny(feature_folder, tmp_path), solver.run)
    assert figures_of(tmp_path, "pgd") == {"convergence-ics-printed", "convergence-ics"}
    assert "about 8 ms" in body(section)
    for row in read_rows(tmp_path / "pgd" / "results.jsonl", KEYS):
        found = row["found"]
        assert len(found["true"]) == solver.STEPS + 1
        assert found["true"][0] == found["printed"][0]
        assert min(found["true"]) >= found["minimum"] - 1e-6
        assert found["images"] == 64
        assert min(found[f"{name}_ms"] for name in ("exact", "printed", "true")) > 0


@pytest.mark.parametrize(("parameter", "letter"), [("beta", "β"), ("lambda", "λ")])
def test_run_parameters(feature_folder: Path, tmp_path: Path, parameter: str, letter: str) -> None:
    # Both are one function, which runs twice for one of them.
    section = (run_twice if parameter == "lambda" else run_once)(
        tiny(feature_folder, tmp_path), PARTS[parameter]
    )
    rows = read_rows(tmp_path / parameter / "results.jsonl", KEYS)
    values = [0.0001, 0.001, 0.01, 0.1, 1, 10][: len(rows) // 2]
    assert len(values) == {"beta": 5, "lambda": 6}[parameter]
    for form in ("ics-printed", "ics"):
        of_form = [row for row in rows if row["config"]["method"] == form]
        assert sorted(row["about"][parameter] for row in of_form) == values
        assert all(row["config"]["options"][parameter] == row["about"][parameter] for row in of_form)
    assert figures_of(tmp_path, parameter) == {"map", "weights"}
    assert f"ICS as printed, {letter} = 0.01" in body(section)
    if parameter == "lambda":
        # A small lambda makes exact weights uneven, the opposite of the paper.
        exact = [row for row in rows if row["config"]["method"] == "ics"]
        uneven = {row["about"]["lambda"]: row["found"]["weights"]["variance_uneven"] for row in exact}
        assert uneven[0.0001] > 0.1 > uneven[0.1] > uneven[10] >= 0


def test_run_weights(scene_folder: Path, feature_cache: Path, tmp_path: Path) -> None:
    settings = tiny(scene_folder, tmp_path, cache=feature_cache, methods=("ics", "ics-softmax"))
    run_twice(settings, weights.run)
    assert figures_of(tmp_path, "weights") == {"pictures", "histograms"}
    for row in read_rows(tmp_path / "weights" / "results.jsonl", KEYS):
        assert row["found"]["queries"]
        for query in row["found"]["queries"]:
            assert 2 <= len(query["weights"]) <= 4
            assert sum(query["weights"].values()) == pytest.approx(1, abs=1e-3)
    with Image.open(tmp_path / "weights" / "pictures.png") as picture:
        assert min(picture.size) > 200


def test_run_weights_of_features(feature_folder: Path, tmp_path: Path) -> None:
    section = run_once(tiny(feature_folder, tmp_path, methods=("ics",)), weights.run)
    assert figures_of(tmp_path, "weights") == {"histograms"}
    assert "features and no images" in body(section)


def test_run_instances(scene_folder: Path, feature_cache: Path, tmp_path: Path) -> None:
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


def test_run_in_processes(feature_folder: Path, tmp_path: Path) -> None:
    first, second = (
        body(weights.run(tiny(feature_folder, tmp_path / str(jobs), methods=("ics",), jobs=jobs)))
        for jobs in (1, 2)
    )
    assert first == second


def test_run_with_a_failure(feature_folder: Path, tmp_path: Path) -> None:
    broken = {**SMALL, "ics-printed": {**SMALL["ics-printed"], "options": {"gamma": 1e39}}}
    section = solver.run(tiny(feature_folder, tmp_path, options=broken))
    assert len(section.failures) == 1
    assert section.failures[0].startswith("ics-printed 16 bits seed 0: the loss became")
    assert figures_of(tmp_path, "pgd") == {"convergence-ics"}
    assert [row["config"]["method"] for row in read_failures(tmp_path / "pgd")] == ["ics-printed"]


def test_reproduce_all(feature_folder: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    settings = tiny(feature_folder, tmp_path, methods=("ewcs", "ics"), warn=warnings.extend)
    page, failures = reproduce("all", settings)
    assert failures == []
    text = page.read_text()
    assert page == tmp_path / "report.html"
    assert re.findall(r"<li><a href='#([^']+)'>", text) == list(PARTS)
    assert re.findall(r"<section id='([^']+)'>", text) == list(PARTS)
    assert "has no areas of its objects" in text
    assert str(tmp_path) not in text
    assert not re.search(r"(src|href)=['\"]https?:", text)
    assert len(warnings) == len(set(warnings))
    assert figures_of(tmp_path, "lambda") == {"map", "weights"}


def test_reproduce_command(feature_folder: Path, tmp_path: Path) -> None:
    words = ["pgd", "--data", str(feature_folder), "--out", str(tmp_path), "--bits", "16", "--epochs", "1"]
    words += ["--methods", "ics", "--device", "cpu", "-o", 'all:head={"hidden": [16]}']
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "pgd.html").read_text().startswith("<!doctype html>")
    failing = CliRunner().invoke(app, [*words, "-o", "ics:gamma=1e39"])
    assert failing.exit_code == 1
