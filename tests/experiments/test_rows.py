from __future__ import annotations

import json
from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.experiments.rows import completed, other_setting, read_rows, rounded, row_key, task_name
from centerhash.training.config import TrainConfig, resolve
from tests.stored import early_row, stored_row


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_no_file_means_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "gone.jsonl") == []


def test_rows_come_back(tmp_path: Path) -> None:
    rows = [stored_row(seed=0), early_row(seed=1)]
    path = write(tmp_path / "results.jsonl", *map(json.dumps, rows), "")
    assert read_rows(path) == rows


@pytest.mark.parametrize("torn", ['{"data": "to', "{}", '"text', "\udc80"])
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(json.dumps(stored_row()).encode() + b"\n" + torn.encode(errors="surrogateescape"))
    assert read_rows(path) == [stored_row()]


def test_a_whole_last_line_needs_no_line_break(tmp_path: Path) -> None:
    assert read_rows(write(tmp_path / "results.jsonl", json.dumps(stored_row()))) == [stored_row()]


@pytest.mark.parametrize(
    ("damaged", "reason"), [("{", "line 2 is damaged"), ('{"config": {}}', "it needs config, data")]
)
def test_a_damaged_line_before_the_last_is_named(tmp_path: Path, damaged: str, reason: str) -> None:
    path = write(tmp_path / "results.jsonl", json.dumps(stored_row()), damaged, json.dumps(stored_row()))
    with pytest.raises(DataError, match=reason):
        read_rows(path)


def test_a_folder_of_that_name_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_rows(tmp_path)


def test_rounding_reaches_every_fraction_and_nothing_else() -> None:
    value = {"a": 1 / 3, "b": [2 / 3, None, 7, {"c": True}], "d": "0.123456789"}
    assert rounded(value) == {"a": 0.333333, "b": [0.666667, None, 7, {"c": True}], "d": "0.123456789"}
    assert rounded(value, 2)["a"] == 0.33


def test_rows_of_one_comparison_do_not_differ() -> None:
    assert other_setting(stored_row(method="csq", seed=3), stored_row()) == []


def test_a_renamed_folder_is_the_same_data() -> None:
    assert other_setting({**stored_row(), "data": "renamed"}, stored_row()) == []


def test_other_labels_under_the_same_name_are_other_data() -> None:
    assert other_setting({**stored_row(), "fingerprint": "beef"}, stored_row()) == [
        "data was toy, now toy with other labels or splits"
    ]


def test_rows_without_fingerprint_go_by_name() -> None:
    assert other_setting(early_row(), stored_row()) == []
    assert other_setting({**early_row(), "data": "else"}, stored_row()) == ["data was else, now toy"]


def test_every_other_difference_is_told() -> None:
    row = {**stored_row(), "split": "validation", "images": {"train": 1}}
    row["evaluation"] = {**row["evaluation"], "k": 5, "exclude_self": True}
    assert other_setting(row, stored_row()) == [
        "split was validation, now files",
        "images was {'train': 1}, now {'train': 20, 'query': 8, 'database': 40}",
        "k was 5, now 30",
        "exclude_self was True, now False",
    ]


def test_a_row_of_an_earlier_version_gets_the_defaults_of_later_settings() -> None:
    config = resolve(TrainConfig(method="csq", bits=32)).model_dump(mode="json")
    earlier = {**config, "head": {name: value for name, value in config["head"].items() if name != "divide"}}
    assert completed({"config": earlier, "data": "x"}) == {"config": config, "data": "x"}


def test_a_row_of_a_setting_that_is_gone_stays_as_it_is() -> None:
    row = {"config": {"method": "csq", "bits": 32, "forgotten": 1}}
    assert completed(row) == row
    unknown = {"config": {"method": "no-longer-here", "bits": 32}}
    assert completed(unknown) == unknown


def test_rows_and_failures_are_found_by_what_was_asked() -> None:
    config = {"method": "ics", "bits": 16, "seed": 0}
    row = {"task": {"value": 0.1, "config": config}, "found": {}}
    assert row_key(row) == row_key({"config": config, "about": {"value": 0.1}, "error": "x"})
    assert row_key(row) != row_key({"config": config})
    assert task_name(config, {"value": 0.1, "test": {}}) == "ics 16 bits seed 0 (value 0.1)"


def test_a_row_of_a_part_of_the_paper_is_filled_up_too() -> None:
    config = resolve(TrainConfig(method="csq", bits=32)).model_dump(mode="json")
    earlier = {k: v for k, v in config.items() if k != "precision"}
    assert completed({"task": {"config": earlier, "value": 1}}) == {"task": {"config": config, "value": 1}}
