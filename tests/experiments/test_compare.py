from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from centerhash.codes import unpack
from centerhash.core.errors import ConfigError
from centerhash.data import open_dataset
from centerhash.encoding.code_files import read_run_codes
from centerhash.experiments.compare import (
    _precision_points,
    _recall_points,
    compare,
    comparison_page,
    train_and_evaluate,
    write_comparison,
)
from centerhash.experiments.runner import read_rows
from centerhash.experiments.tables import Score, markdown, summarize
from centerhash.experiments.tasks import Source, make_task, plan_tasks, shared_backbone
from centerhash.model.model import HashModel
from centerhash.training import last_stages, loop
from centerhash.training.run import evaluate, train
from tests.browser import chromium
from tests.stored import stored_row
from tests.toys import Killed, names

ROWS = [
    stored_row(method, bits, seed, 0.4 + bits / 200 + seed / 100 + 0.05 * (method == "ics"))
    for method in ("csq", "ics")
    for bits in (16, 32)
    for seed in (0, 1)
]
FAILURE = {"config": {"method": "dch", "bits": 16, "seed": 2}, "error": "no <memory>"}


@pytest.mark.slow
def test_a_row_holds_what_training_and_evaluating_by_hand_gives(feature_folder: Path) -> None:
    task = make_task({"method": "ics", "bits": 24, "epochs": 1, "head": {"hidden": [16]}})
    row = train_and_evaluate(Source(feature_folder, k=50, device="cpu").open(), task)
    dataset = open_dataset(feature_folder)
    found = evaluate(train(dataset, config=task.config, device="cpu"), dataset, k=50).to_dict()
    assert row["config"] == task.resolved
    for name in ("map_peers", "map_textbook", "chance_peers", "ndcg"):
        assert row["evaluation"][name] == pytest.approx(found[name], abs=1e-6)
    assert row["evaluation"]["precision"]["100"] == pytest.approx(found["precision"]["100"], abs=1e-6)
    assert "1000" not in row["evaluation"]["precision"]  # more than the database holds
    assert row["evaluation"]["curve"]["recall"] == pytest.approx(found["curve"]["recall"], abs=1e-6)
    assert len(row["evaluation"]["curve"]["recall"]) == 25
    assert min(row["train_seconds"], row["images_per_second"]) > 0


@pytest.mark.parametrize("method", ["csq", "ics-softmax"])
def test_one_training_is_scored_as_trained_and_rotated(feature_folder: Path, method: str) -> None:
    setup = Source(feature_folder, k=50, device="cpu").open()

    def scores(rotate: bool) -> dict[str, Any]:
        given = {"method": method, "bits": 24, "epochs": 2, "head": {"hidden": [16], "rotate": rotate}}
        return train_and_evaluate(setup, make_task(given))

    plain, rotated = scores(False), scores(True)
    for name in ("map_peers", "map_textbook"):
        assert plain[f"{name}_as_trained"] == plain["evaluation"][name]
        assert rotated[f"{name}_rotated"] == rotated["evaluation"][name]
        assert plain[f"{name}_rotated"] == pytest.approx(rotated["evaluation"][name], abs=2e-3)
        assert rotated[f"{name}_as_trained"] == pytest.approx(plain["evaluation"][name], abs=2e-3)
    assert plain["map_peers_rotated"] != plain["map_peers_as_trained"]
    [table] = re.findall(
        r"## mAP@50 over retrieved relevant items: logits as trained / rotated\n\n(.*?)\n\n",
        markdown(summarize([{**setup.facts(), **plain}])),
        re.S,
    )
    assert f"{plain['map_peers_as_trained']:.3f} / {plain['map_peers_rotated']:.3f}" in table


def test_a_shallow_method_has_no_logits_to_rotate(feature_folder: Path) -> None:
    row = train_and_evaluate(
        Source(feature_folder, k=50, device="cpu").open(), make_task({"method": "lsh", "bits": 24})
    )
    assert not [name for name in row if name.endswith("_rotated")]
    assert "rotated" not in markdown(summarize([{**Source(feature_folder, k=50).open().facts(), **row}]))


def curve_score(*curves: tuple[list[float | None], list[float]]) -> Score:
    rows = [stored_row() for _ in curves]
    for row, (precision, recall) in zip(rows, curves, strict=True):
        row["evaluation"]["curve"] = {"precision": precision, "recall": recall}
    return Score(tuple(rows))


def test_curves_are_means_over_the_seeds_by_hand() -> None:
    score = curve_score(([None, None, 0.8, 0.5], [0, 0, 0.4, 1]), ([None, 1.0, 0.6, 0.5], [0, 0.2, 0.6, 1]))
    recall, precision = _recall_points(score)
    assert recall == pytest.approx([0.1, 0.5, 1])  # at radius 0 no ball holds an item
    assert precision == pytest.approx([1, 0.7, 0.5])


def test_precision_is_the_mean_over_the_seeds_at_places_that_all_have() -> None:
    first, second = stored_row(), stored_row()
    first["evaluation"]["precision"] = {"1": 1.0, "10": 0.5, "100": 0.2}
    second["evaluation"]["precision"] = {"10": 0.7, "1": 0.0}
    places, precision = _precision_points(Score((first, second)))
    assert places == [1, 10]
    assert precision == pytest.approx([0.5, 0.6])


def sections(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


@pytest.mark.slow
def test_the_page_has_every_table_and_plot() -> None:
    text = comparison_page(summarize(ROWS))
    assert sections(text) == [
        "Mean average precision",
        "mAP against bits",
        "Precision and recall by Hamming radius",
        "Precision at the first places",
        "Settings",
    ]
    assert text.count("class='plot'") == 2 + 2 + 2
    assert "<b>0.615</b><small>± 0.007</small>" in text  # ICS at 32 bits: 0.61 and 0.62
    assert "0.250" in text
    assert "0.125" in text
    assert "lambda 0.1" in text
    assert "For all: epochs 3" in text


@pytest.mark.slow
def test_the_page_needs_nothing_from_outside() -> None:
    text = comparison_page(summarize(ROWS))
    assert "<link" not in text
    assert not re.findall(r"(?:src|href)=[\"']?(?!#)", re.sub(r"xlink:href=\"#", "", text))


@pytest.mark.slow
def test_missing_cells_and_seeds_are_shown_as_such() -> None:
    rows = [row for row in ROWS if (row["config"]["method"], row["config"]["bits"]) != ("csq", 32)]
    text = comparison_page(summarize(rows[:-1]))
    assert "<td>–</td>" in text
    assert "n=1" in text


def test_settings_that_differ_are_shown_with_their_method() -> None:
    text = comparison_page(summarize([stored_row("csq", epochs=5), stored_row("ics", epochs=9)]))
    assert "lambda 0.1, epochs 5" in text
    assert "lambda 0.1, epochs 9" in text


def test_names_and_errors_are_escaped() -> None:
    rows: list[dict[str, Any]] = [{**stored_row(), "data": "<b>toy"}]
    text = comparison_page(summarize(rows), [FAILURE])
    assert "&lt;b&gt;toy" in text
    assert "<b>toy" not in text
    assert sections(text)[-1] == "Failed"
    assert "dch 16 bits seed 2: no &lt;memory&gt;" in text


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    out = tmp_path_factory.mktemp("page")
    write_comparison(ROWS, out)
    with chromium() as opened:
        page = opened.new_page(viewport={"width": 390, "height": 844})
        page.goto((out / "report.html").resolve().as_uri())
        yield page


@pytest.mark.slow
def test_the_page_fits_a_phone(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.evaluate(
        "[...document.querySelectorAll('.plot svg')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(widths) == 6
    assert min(widths) > 250


@pytest.mark.slow
def test_a_line_stands_out_while_its_name_is_chosen(page: Any) -> None:
    def faint(name: str) -> set[bool]:
        lines = f"[...document.querySelectorAll('svg [data-series={name}]')]"
        return set(page.evaluate(f"{lines}.map(e => e.classList.contains('faint'))"))

    button = page.locator("button", has_text="ICS").first
    name = button.get_attribute("data-series")
    other = page.locator("button", has_text="CSQ").first.get_attribute("data-series")
    assert faint(name) == faint(other) == {False}
    button.click()
    assert (faint(name), faint(other)) == ({False}, {True})
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    page.mouse.move(0, 0)
    assert faint(name) == faint(other) == {False}


# Runs that train their network

TUNED = {"finetune": "last", "stages": 1, "crop": 64, "epochs": 2, "batch_size": 16, "head": {"hidden": [16]}}


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["last", "all"])
def test_rows_of_trained_networks_resume_share_maps_and_are_those_of_train(
    scene_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finetune: str
) -> None:
    training: dict[str, Any] = {**TUNED, "finetune": finetune, "warm_start": False}
    seeds = 2 if finetune == "last" else 1  # only runs of last stages share something
    if finetune == "all":
        training |= {"stages": None}
    tasks = plan_tasks(["csq"], [16], seeds, None, training)
    cache, out = tmp_path / "cache", tmp_path / "out"
    source = Source(scene_folder, k=30, cache=cache, device="cpu", backbone=shared_backbone(training))
    real, calls = loop._run_epoch, []

    def dies(epoch: int, *rest: Any) -> Any:
        calls.append(epoch)
        if len(calls) == 2 * seeds:  # in the second epoch of the last run
            raise Killed
        return real(epoch, *rest)

    monkeypatch.setattr(loop, "_run_epoch", dies)
    session = Source.session
    monkeypatch.setattr(  # a checkpoint after every epoch
        Source, "session", lambda *given: replace(session(*given), checkpoint_seconds=0.0)
    )
    tables, computed = [], last_stages.compute_maps

    def compute(*given: Any) -> Any:
        tables.append(given[0])
        return computed(*given)

    monkeypatch.setattr(last_stages, "compute_maps", compute)
    with pytest.raises(Killed):
        compare(source, tasks, out)
    assert len(tables) == (finetune == "last")  # both runs read the same one
    assert len(read_rows(out / "results.jsonl")) == seeds - 1
    stages: list[tuple[str, int]] = []
    rows, failures = compare(
        source, tasks, out, progress=lambda stage, done, total, note="", /: stages.append((stage, done))
    )
    assert calls[2 * seeds :] == [1]  # the epoch that was interrupted, and no other
    assert failures == []
    assert names(out) == ["results.jsonl"]  # the folders of the runs are gone
    assert not any(path.is_dir() and path.name == "features" for path in out.rglob("*"))
    if finetune == "last":
        assert {done for stage, done in stages if stage == "maps"} == {40}  # all were in the cache
    assert {(row["config"]["finetune"], row["backbone"]["crop"]) for row in rows} == {(finetune, 64)}
    dataset, common = open_dataset(scene_folder), {"cache": cache, "device": "cpu", "progress": False}
    model = train(dataset, config=tasks[-1].config, **common)
    expected = evaluate(model, dataset, k=30, **common)
    assert rows[-1]["evaluation"]["map_peers"] == pytest.approx(expected.map_peers, abs=0.01)
    assert f"finetune {finetune})\n" in markdown(summarize(rows))


@pytest.mark.slow
def test_frozen_and_trained_rows_stand_in_one_table_and_a_kept_network_encodes_images(
    scene_folder: Path, tmp_path: Path, feature_cache: Path
) -> None:
    shared = {"crop": 64, "epochs": 2, "head": {"hidden": [16]}}
    frozen = plan_tasks(["csq"], [16], 1, None, shared)
    tuned = plan_tasks(["csq"], [16], 1, None, {**shared, "finetune": "last", "stages": 1})
    source = Source(scene_folder, k=30, cache=feature_cache, device="cpu", backbone=shared_backbone(shared))
    rows, failures = compare(source, [*frozen, *tuned], tmp_path, keep=True)
    assert failures == []
    assert {line.variant for line in summarize(rows).lines} == {"finetune=off", "finetune=last"}
    for row in rows:
        model = HashModel.load(tmp_path / row["run"])
        query, _ = read_run_codes(tmp_path / row["run"])
        paths = open_dataset(scene_folder).image_paths
        assert paths is not None
        codes = model.encode([paths[number] for number in query.ids.tolist()], device="cpu")
        assert (unpack(query.packed, 16) != codes).mean() < 0.02  # maps are stored in 16 bits
    assert "backbone.safetensors" in names(tmp_path / rows[1]["run"])
    assert not list(tmp_path.rglob("checkpoint*"))


def test_networks_are_trained_one_after_the_other_on_images(
    scene_folder: Path, feature_folder: Path, tmp_path: Path
) -> None:
    tasks = plan_tasks(["csq"], [16], 1, None, {"finetune": "last"})
    with pytest.raises(ConfigError, match="jobs"):
        compare(Source(scene_folder), tasks, tmp_path, jobs=2)
    with pytest.raises(ConfigError, match="images"):
        compare(Source(feature_folder), tasks, tmp_path)
    with pytest.raises(ConfigError, match="finetune"):
        train_and_evaluate(Source(feature_folder).open(), tasks[0])
