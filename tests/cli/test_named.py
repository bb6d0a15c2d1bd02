"""Training and comparing on a published data set by its name, from a small copy of its layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from centerhash.experiments.runner import read_rows
from tests.layouts import write_coco
from tests.toys import QUICK, cli, names, refused

GRID = ("--methods", "csq,itq", "--bits", "16", "--epochs", "2", "--device", "cpu")


@pytest.mark.slow
def test_a_published_set_trains_by_its_name(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco2014", count=30)  # splits shrink in proportion
    words = [
        "train",
        "coco2014",
        "--root",
        tmp_path,
        "--out",
        tmp_path / "run",
        "--cache",
        tmp_path / "cache",
    ]
    done = cli(*words, *QUICK)
    assert done.code == 0, done.err
    assert "warning" in done.err  # fewer images than the published set has
    assert {"query.npz", "database.npz", "model.json", "weights.npz"} <= set(names(tmp_path / "run"))


def test_a_name_without_its_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    words = refused(cli("train", "coco2014", "--root", tmp_path, "--out", tmp_path / "run"))
    assert "centerhash download coco2014" in words
    words = refused(cli("train", "flickr25", "--root", tmp_path, "--out", tmp_path / "run"))
    assert "Did you mean 'flickr25k'?" in words


@pytest.mark.slow
def test_a_published_set_is_compared_and_tuned_by_its_name_and_by_lists(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco2014", count=30)
    lists = tmp_path / "lists"
    lists.mkdir()
    for name, numbers in {"train": range(1, 21), "test": range(21, 26), "database": range(1, 21)}.items():
        lines = (f"x/COCO_train2014_{number:012d}.jpg 1 {number % 2}\n" for number in numbers)
        (lists / f"{name}.txt").write_text("".join(lines))
    given = ["coco2014", "--root", tmp_path, "--cache", tmp_path / "cache", "--crop", "64", "--pool", "mean"]
    done = cli("compare", *given, "--lists", lists, "--out", tmp_path / "out", *GRID, "--hidden", "16")
    assert done.code == 0, done.err
    network = "efficientnet-lite0, crop 64, pool mean, finetune off"
    assert f"network: {network}\n" in done.out
    assert (tmp_path / "out" / "table.md").read_text().startswith(f"# coco2014 ({network})\n")
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert len(rows) == 6
    for row in rows:
        assert row["images"] == {"train": 20, "query": 5, "database": 20}
        assert {name: row["backbone"][name] for name in ("name", "crop", "pool")} == {
            "name": "efficientnet-lite0",
            "crop": 64,
            "pool": "mean",
        }
        assert (row["config"]["crop"], row["config"]["pool"]) == (64, "mean")
        assert row["config"]["head"]["hidden"] == [16]
    words = refused(cli("compare", *given[:-4], "--lists", lists, "--out", tmp_path / "out", *GRID))
    assert "efficientnet-lite0-256-64" in words  # other features than those of the rows

    done = cli(
        "tune", *given, "--lists", lists, "--out", tmp_path / "tuned", *GRID, "--trials", "2", "--full", "1"
    )
    assert done.code == 0, done.err
    assert "warning: images in two lists" in done.err
    best = json.loads((tmp_path / "tuned" / "best.json").read_text())
    assert best["backbone"]["crop"] == 64
    assert best["training"] == {"crop": 64, "pool": "mean"}
    assert best["data"] == "coco2014"


def test_what_a_grid_refuses_of_the_network(feature_folder: Path, scene_folder: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    for words, reason in (
        ((feature_folder, *out, "--crop", "64"), "holds features"),
        ((scene_folder, *out, "--backbone", "resnet"), "Did you mean"),
        ((scene_folder, *out, "--weights", tmp_path / "gone.pth"), "gone.pth"),
        ((scene_folder, *out, "--methods", "csq", "--no-pretrained"), "only one seed"),
        ((scene_folder, *out, "--methods", "csq", "-o", "csq:weights=x"), "unknown option"),
        (("coco2014", *out, "--root", tmp_path), "centerhash download coco2014"),
    ):
        assert reason in refused(cli("compare", *words))
    assert "omit --crop" in refused(cli("compare", "--from", tmp_path, "--crop", "64"))
    assert not (tmp_path / "out").exists()
