"""The demo: its measures, and the report of a short run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

import centerhash as ch
from reproduction import demo
from reproduction.__main__ import PARTS, app
from reproduction.report import ALL
from reproduction.report import PARTS as RUN


def small(count: int = 60) -> ch.Dataset:
    generator = np.random.default_rng(0)
    labels = generator.random((count, 4)) < 0.4
    labels[~labels.any(axis=1), 0] = True
    features = labels @ generator.normal(size=(4, 12)) + 0.1 * generator.normal(size=(count, 12))
    rows = np.arange(count)
    return ch.Dataset.from_arrays(
        features.astype(np.float32), labels, train=rows[20:], query=rows[:20], database=rows[20:]
    )


def test_of_numbers() -> None:
    data = small()
    rows = np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32)
    scores = rows[data.splits.query] @ rows[data.splits.database].T
    expected = [average_precision_score(*pair) for pair in zip(demo.relevant(data), scores, strict=True)]
    assert demo.of_numbers("", "", rows, data, 20).map == pytest.approx(np.mean(expected), abs=1e-6)


def test_logits() -> None:
    data = small()
    logits = demo.logits(data, 1e-4)
    assert ((logits > 0) == data.labels).mean() > 0.95
    assert abs(demo.logits(data, 10.0)).mean() < abs(logits).mean()


def test_probability_features() -> None:
    found = demo.probability_features(np.array([[0.0, 100.0, -100.0]], np.float32))
    assert found[0, 0] == pytest.approx(np.sqrt(-np.log(0.75)))
    assert np.isfinite(found).all()


@pytest.mark.slow
def test_run_demo(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--epochs", "1"])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {(row["name"], row["bits"]): row for row in results["scores"]}
    assert len(scores) == len(demo.BITS) * (len(demo.LEARNED) + 2) + 3
    assert scores["classifier", 64]["bytes"] == scores["csq", 64]["bytes"] == 8
    assert scores["cosine", 0]["map"] > scores["random", 0]["map"] + 0.1
    assert len(results["weights_against_areas"]) == len(demo.WEIGHTED) + 1
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("data:image/jpeg") > 20
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "results.json"}


def test_commands_are_the_parts() -> None:
    assert list(PARTS) == [*RUN, ALL]
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert commands == {"demo", "coco117k", "coco29k", *PARTS}
