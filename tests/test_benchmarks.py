"""Stored results of the benchmarks, and the badge of the test coverage."""

from __future__ import annotations

import copy
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from benchmarks import coverage_badge
from benchmarks.full_database import SharedTrunk
from benchmarks.words import Word, counted, read_words
from centerhash.core.errors import ConfigError
from centerhash.experiments.runner import read_rows, unfinished
from centerhash.experiments.tasks import plan_tasks
from centerhash.methods.registry import METHODS
from centerhash.networks.backbones import get_backbone

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SVG = "{http://www.w3.org/2000/svg}"


def words(picture: str) -> list[str]:
    """The texts of an SVG, which must be well-formed."""
    return ["".join(found.itertext()) for found in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_every_part_of_the_benchmark_is_stored_with_its_commit() -> None:
    parts = re.findall(r"for part in (.*?);", (ROOT / "Makefile").read_text())[0].split()
    for part in parts:
        commit = json.loads((RESULTS / f"{part}.json").read_text())["commit"]
        assert re.fullmatch("[0-9a-f]{10}", commit), part  # and without changes


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


def test_words_of_a_list_are_counted_once_and_by_half(tmp_path: Path) -> None:
    lines = [
        "a\tlearned\tde\tdog\tHund",
        "b\tlearned\tde\tdog\thund",  # the same word
        "b\tlearned\tde\tcat\tHund",  # read as a dog
        "b\tlearned\tde\tcat\tKatzenwurm",
        "c\theld out\tfr\tdog\tchien",
    ]
    (tmp_path / "words.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = read_words(tmp_path / "words.tsv")
    assert found[-1] == Word("c", "held out", "fr", "dog", "chien")
    figures = counted(found[:-1], ["dog", "cat"])
    assert [figures[name] for name in ("words", "right", "wrong", "refused")] == [3, 1, 1, 1]
    assert figures["right share"] == 0.3333
    (tmp_path / "words.tsv").write_text("a\tkept\tde\tdog\tHund")
    with pytest.raises(SystemExit):
        read_words(tmp_path / "words.tsv")


def test_the_stored_table_has_every_method_with_its_defaults_of_now() -> None:
    # `centerhash compare` with this folder trains nothing again
    rows = read_rows(RESULTS / "coco117k" / "results.jsonl")
    named = [name for name, row in METHODS.items() if row.built_in]
    wanted = plan_tasks(named, [16, 32, 64], 3)
    assert not unfinished(wanted, rows)


def test_the_dataset_built_from_photos_gives_the_stored_table() -> None:
    rows = {row["config"]["method"]: row for row in read_rows(RESULTS / "coco117k-rebuilt" / "results.jsonl")}
    stored = [
        row
        for row in read_rows(RESULTS / "coco117k" / "results.jsonl")
        if row["config"]["method"] in rows and (row["config"]["bits"], row["config"]["seed"]) == (64, 0)
    ]
    assert len(stored) == len(rows) == 3
    for row in stored:
        again = rows[row["config"]["method"]]
        for score in ("map_peers", "map_textbook"):
            assert abs(row["evaluation"][score] - again["evaluation"][score]) < 0.001


def test_networks_that_differ_in_their_last_stage_share_the_others() -> None:
    backbone = get_backbone("timm:test_resnet", pretrained=False)
    first = backbone.load()
    second, third = copy.deepcopy(first), copy.deepcopy(first)
    with torch.no_grad():
        for parameter in second.network.layer4.parameters():
            parameter.mul_(1.5)
        for parameter in third.network.layer3.parameters():
            parameter.mul_(1.5)
        pixels = torch.randint(0, 256, (2, backbone.crop, backbone.crop, 3), dtype=torch.uint8)
        expected = torch.cat([first(pixels), second(pixels)], dim=1)
        with pytest.raises(ConfigError, match="stage"):
            SharedTrunk([first, third])
        assert torch.allclose(SharedTrunk([first, second])(pixels), expected, rtol=1e-4, atol=1e-6)
