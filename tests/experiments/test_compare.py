from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from centerhash.codes import unpack
from centerhash.core.errors import ConfigError
from centerhash.data import open_dataset
from centerhash.encoding.code_files import read_run_codes
from centerhash.experiments.compare import compare, comparison_page, train_and_evaluate
from centerhash.experiments.tables import markdown, summarize
from centerhash.experiments.tasks import Source, make_task, plan_tasks, shared_backbone
from centerhash.model.model import HashModel
from centerhash.training.run import evaluate, train
from tests.stored import stored_row
from tests.toys import names

ROWS = [
    stored_row(method, bits, seed, 0.4 + bits / 200 + seed / 100 + 0.05 * (method == "ics"))
    for method in ("csq", "ics")
    for bits in (16, 32)
    for seed in (0, 1)
]
FAILURE = {"config": {"method": "dch", "bits": 16, "seed": 2}, "error": "no <memory>"}


@pytest.mark.slow
def test_row_of_a_task(feature_folder: Path) -> None:
    task = make_task({"method": "ics", "bits": 24, "epochs": 1, "head": {"hidden": [16]}})
    row = train_and_evaluate(Source(feature_folder, k=50, device="cpu").open(), task)
    dataset = open_dataset(feature_folder)
    expected = evaluate(train(dataset, config=task.config, device="cpu"), dataset, k=50).to_dict()
    assert row["config"] == task.resolved
    for name in ("map_retrieved", "map_all", "random_retrieved", "ndcg"):
        assert row["evaluation"][name] == pytest.approx(expected[name], abs=1e-6)
    assert row["evaluation"]["precision"]["100"] == pytest.approx(expected["precision"]["100"], abs=1e-6)
    assert "1000" not in row["evaluation"]["precision"]  # more than the database holds
    assert row["evaluation"]["curve"]["recall"] == pytest.approx(expected["curve"]["recall"], abs=1e-6)
    assert len(row["evaluation"]["curve"]["recall"]) == 25
    assert min(row["train_seconds"], row["images_per_second"]) > 0


@pytest.mark.parametrize("method", ["csq", "ics-softmax"])
def test_both_forms_of_logits(feature_folder: Path, method: str) -> None:
    setup = Source(feature_folder, k=50, device="cpu").open()

    def scores(rotate: bool) -> dict[str, Any]:
        options = {"method": method, "bits": 24, "epochs": 2, "head": {"hidden": [16], "rotate": rotate}}
        return train_and_evaluate(setup, make_task(options), both_forms=True)

    plain, rotated = scores(False), scores(True)
    for name in ("map_retrieved", "map_all"):
        assert plain[f"{name}_as_trained"] == plain["evaluation"][name]
        assert rotated[f"{name}_rotated"] == rotated["evaluation"][name]
        assert plain[f"{name}_rotated"] == pytest.approx(rotated["evaluation"][name], abs=2e-3)
        assert rotated[f"{name}_as_trained"] == pytest.approx(plain["evaluation"][name], abs=2e-3)
    assert plain["map_retrieved_rotated"] != plain["map_retrieved_as_trained"]
    lsh = train_and_evaluate(setup, make_task({"method": "lsh", "bits": 24}), both_forms=True)
    text = markdown(summarize([{**setup.facts(), **row} for row in (plain, lsh)]))
    for form in ("as_trained", "rotated"):
        [table] = re.findall(
            f"retrieved relevant items, logits {form.replace('_', ' ')}\n(.*?)##", text, re.S
        )
        assert f"| {plain[f'map_retrieved_{form}']:.3f} |" in table
        assert "LSH" not in table


def sections(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


@pytest.mark.slow
def test_page_sections() -> None:
    text = comparison_page(summarize(ROWS))
    assert sections(text) == [
        "mAP@30 over retrieved relevant items",
        "mAP@30 over all relevant items",
        "Seconds of training, and images encoded per second (from features)",
        "mAP against bits",
        "Precision and recall by Hamming radius",
        "Precision at the first ranks",
        "Settings",
    ]
    assert text.count("<svg") == 3
    assert "<b>0.615 ± 0.007</b>" in text  # ICS at 32 bits: 0.61 and 0.62
    assert "&#34;epochs&#34;: 3" in text
    # The page does not load remote files.
    assert "<link" not in text
    assert not re.findall(r"(?:src|href)=[\"']?(?!#)", text.replace('xlink:href="#', ""))


def test_page_escapes_names() -> None:
    rows: list[dict[str, Any]] = [{**stored_row(), "data": "<b>toy"}]
    text = comparison_page(summarize(rows), [FAILURE])
    assert "&lt;b&gt;toy" in text
    assert "<b>toy" not in text
    assert sections(text)[-1] == "Failed"
    assert "dch 16 bits seed 2: no &lt;memory&gt;" in text


@pytest.mark.slow
def test_frozen_and_finetuned_rows(scene_folder: Path, tmp_path: Path, feature_cache: Path) -> None:
    shared = {"crop": 64, "epochs": 2, "head": {"hidden": [16]}}
    frozen = plan_tasks(["csq"], [16], 1, None, shared)
    tuned = plan_tasks(["csq"], [16], 1, None, {**shared, "finetune": "last", "stages": 1})
    source = Source(scene_folder, k=30, cache=feature_cache, device="cpu", backbone=shared_backbone(shared))
    rows, failures = compare(source, [*frozen, *tuned], tmp_path, keep=True)
    assert failures == []
    assert [variant for _, variant in summarize(rows).lines] == ["finetune=last", "finetune=off"]
    for row in rows:
        model = HashModel.load(tmp_path / row["run"])
        query, _ = read_run_codes(tmp_path / row["run"])
        paths = open_dataset(scene_folder).image_paths
        assert paths is not None
        codes = model.encode([paths[number] for number in query.ids.tolist()], device="cpu")
        assert (unpack(query.packed, 16) != codes).mean() < 0.02  # maps are stored in 16 bits
    assert "backbone.safetensors" in names(tmp_path / rows[1]["run"])
    assert not list(tmp_path.rglob("checkpoint*"))


def test_finetuning_is_refused(scene_folder: Path, feature_folder: Path, tmp_path: Path) -> None:
    tasks = plan_tasks(["csq"], [16], 1, None, {"finetune": "last"})
    with pytest.raises(ConfigError, match="jobs"):
        compare(Source(scene_folder), tasks, tmp_path, jobs=2)
    with pytest.raises(ConfigError, match="images"):
        compare(Source(feature_folder), tasks, tmp_path)
    with pytest.raises(ConfigError, match="finetune"):
        train_and_evaluate(Source(feature_folder).open(), tasks[0])
