from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from centerhash.core.errors import ConfigError
from centerhash.core.options import MethodOptions, option_names
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.central import CentralObjective
from centerhash.methods.page import method_notes, methods_page
from centerhash.methods.table import METHODS, Method, get_method
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig, resolve
from tests.toys import cli

ROWS = list(METHODS.values())


def test_the_methods_of_the_paper_are_there() -> None:
    assert {"csq", "ewcs", "ics", "ics-printed", "ics-softmax"} <= set(METHODS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_filled_in(row: Method) -> None:
    assert METHODS[row.name] is row
    for text in (row.name, row.title, row.family, row.paper, row.multi_label):
        assert text.strip()
    assert 1990 < row.year < 2100
    assert row.name == row.name.lower()
    assert " " not in row.name
    assert set(row.defaults) <= set(option_names(row.options_class()))


@pytest.mark.parametrize("row", [row for row in ROWS if row.family == "central"], ids=lambda row: row.name)
def test_every_central_row_makes_its_objective_with_every_option_resolved(row: Method) -> None:
    for bits in (8, 16, 48, 1024):
        options = row.options({}, bits)
        assert isinstance(options, MethodOptions)
        assert None not in options.model_dump().values()
        objective = row.objective(3, bits, torch.from_numpy(hash_centers(3, bits)), options, 0)
        assert isinstance(objective, CentralObjective)
        assert objective.centers.shape == (3, bits)


def test_rows_and_table_are_read_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROWS[0].name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        METHODS["new"] = ROWS[0]  # type: ignore[index]
    with pytest.raises(TypeError):
        METHODS["ics-printed"].defaults["gamma"] = 1  # type: ignore[index]


def test_titles_are_different() -> None:
    assert len({row.title for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ics-sofmax", {}, r"unknown method 'ics-sofmax'. Did you mean 'ics-softmax'\?"),
        ("csq", {"gama": 1}, r"unknown option 'gama' of method 'csq'. Did you mean 'gamma'\?"),
        ("ics", {"lambda": "-1"}, "option 'lambda' of method 'ics' cannot be '-1'"),
        ("ics-softmax", {"lambda": "-1"}, "option 'lambda' of method 'ics-softmax' cannot be '-1'"),
        ("ics", {"lambda": 1, "entropy": 2}, "given twice: entropy, lambda"),
    ],
)
def test_slips_are_named_as_the_user_wrote_them(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        get_method(name).options(options, 16)


def test_the_printed_form_is_the_printed_one() -> None:
    options = get_method("ics-printed").options({}, 16).model_dump()
    assert options["solver"] == "printed"
    assert options["beta"] == 0.001  # the paper's value at 16 bits
    assert not options["normalised"]


def test_methods_as_json_hold_every_row() -> None:
    found = cli("methods", "--json").json
    assert [row["name"] for row in found] == list(METHODS)
    for row in found:
        for column, value in row.items():
            assert value == getattr(METHODS[row["name"]], column)
    assert json.loads(json.dumps(found)) == found


def test_the_table_of_methods_names_all_and_where_to_read_on() -> None:
    done = cli("methods")
    assert done.code == 0
    for name in METHODS:
        assert name in done.out
    assert "centerhash options NAME" in done.out


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_options_lists_every_option_with_its_default(row: Method) -> None:
    done = cli("options", row.name, "--bits", "16")
    assert done.code == 0
    assert "defaults at 16 bits" in done.text
    resolved = row.options({}, 16)
    for name, item in type(resolved).model_fields.items():
        line = next(line for line in done.out.splitlines() if line.startswith(f"│ {item.alias or name} "))
        assert str(getattr(resolved, name)) in line
        assert item.description


def test_options_of_an_unknown_method() -> None:
    done = cli("options", "isc")
    assert done.code == 2
    assert "Did you mean 'ics'?" in done.err


@pytest.mark.slow
def test_listing_methods_does_not_load_torch() -> None:
    script = "import sys, centerhash.methods.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_method_may_want_another_learning_rate_unless_one_is_given() -> None:
    assert resolve(TrainConfig(method="dhn")).learning_rate == METHODS["dhn"].training["learning_rate"]
    assert resolve(TrainConfig(method="dhn", learning_rate=0.02)).learning_rate == 0.02
    assert resolve(resolve(TrainConfig(method="dhn"))) == resolve(TrainConfig(method="dhn"))


def test_only_dnnh_divides_its_last_layer() -> None:
    assert [row.name for row in ROWS if resolve(TrainConfig(method=row.name)).head.divide] == ["dnnh"]
    undivided = TrainConfig(method="dnnh", head=HeadOptions(divide=False))
    assert resolve(undivided).head.divide is False


def test_the_page_of_methods_is_the_one_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert page == methods_page(), "run `centerhash methods --markdown > docs/methods.md`"
    assert cli("methods", "--markdown").out == page
    for name in METHODS:
        assert f"\n## {name}\n" in page


def test_every_method_has_all_its_texts_on_the_page() -> None:
    notes = method_notes()
    assert list(notes) == list(METHODS)
    for texts in notes.values():
        assert set(texts) == {"source", "finding", "equations", "defaults", "departures"}
        assert all(text.strip() for text in texts.values())
