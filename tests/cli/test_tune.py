"""`centerhash tune` as a command, and what it chose in `centerhash compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from centerhash.experiments.runner import read_rows
from tests.toys import cli, refused

SMALL = ("--methods", "lsh,csq", "--bits", "16", "--epochs", "2", "-k", "50", "--device", "cpu")


@pytest.mark.slow
def test_tuned_settings_are_compared(feature_folder: Path, tmp_path: Path) -> None:
    words = ("tune", feature_folder, "--out", tmp_path / "tuned", *SMALL, "--trials", "3", "--full", "1")
    done = cli(*words)
    assert done.code == 0, done.err
    assert "mAP of held-out training images, 16 bits" in done.out
    assert "settings:" in done.out
    assert "csq 16 bits seed 0 (with default): mAP 0." in done.err
    again = cli(*words)
    assert again.out == done.out
    assert "seed" not in again.err  # nothing was computed

    best = tmp_path / "tuned" / "best.json"
    stored = json.loads(best.read_text())
    stored["methods"]["csq"]["setting"] = {"learning_rate": 0.003, "gamma": 8.0}
    best.write_text(json.dumps(stored))
    done = cli(
        "compare", feature_folder, "--out", tmp_path / "table", *SMALL, "--seeds", "1", "--settings", best
    )
    assert done.code == 0, done.err
    configs = {
        row["config"]["method"]: row["config"] for row in read_rows(tmp_path / "table" / "results.jsonl")
    }
    assert configs["csq"]["learning_rate"] == 0.003
    assert configs["csq"]["options"]["gamma"] == 8.0


def test_rejected_tuning(feature_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for words, reason in (
        (["--methods", "icss"], "Did you mean 'ics'?"),
        (["--trials", "2", "--full", "3"], "full must be at most trials"),
        (["--trials", "0"], "--trials"),
    ):
        assert reason in refused(cli("tune", feature_folder, "--out", out, *words))
    assert not out.exists()


def test_settings_of_other_methods(feature_folder: Path, tmp_path: Path) -> None:
    best = tmp_path / "best.json"
    best.write_text('{"bits": 16, "methods": {"csq": {"setting": {}}}}')
    words = ("compare", feature_folder, "--out", tmp_path / "out", "--settings", best)
    assert "--methods csq" in refused(cli(*words))
    best.write_text('{"bits": 16, "methods": {"csq": {"setting": {"gama": 1}}}}')
    assert "gama" in refused(cli(*words, "--methods", "csq"))
