"""The registry: built-in methods, their options, notes and search spaces; custom methods, by name or by file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

import centerhash as ch
from centerhash.cli.experiments import read_methods, read_settings
from centerhash.core.errors import ConfigError, UnknownMethodError
from centerhash.core.options import MethodOptions, option_names
from centerhash.experiments.runner import read_rows
from centerhash.experiments.tasks import make_task
from centerhash.methods import registry
from centerhash.methods.losses import ICS, Batch, CentralObjective, HashNet, Objective
from centerhash.methods.page import methods_page
from centerhash.methods.registry import (
    METHODS,
    Method,
    get_method,
    search_space,
    stored_method,
    training_options,
    value_at,
)
from centerhash.methods.shallow.base import ShallowOptions, Training
from centerhash.methods.shallow.projections import LinearHash
from centerhash.model.model import HashModel
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig, resolve
from tests.methods.registering import forgotten
from tests.toys import QUICK, cli, cli_process, feature_dataset, toy_config, write_feature_folder

ROOT = Path(__file__).parents[2]
HINGE = ROOT / "examples" / "hinge.py"
BUILT_IN = [row for row in METHODS.values() if row.built_in]


def test_every_built_in_name_is_registered_by_its_module() -> None:
    assert [row.name for row in BUILT_IN] == list(registry._BUILT_IN)
    for row in BUILT_IN:
        assert row.kind.__module__ == f"centerhash.methods.{registry._BUILT_IN[row.name]}"
    assert len({row.title for row in BUILT_IN}) == len(BUILT_IN)


@pytest.mark.parametrize("row", BUILT_IN, ids=lambda row: row.name)
def test_every_method_is_filled_in(row: Method) -> None:
    assert row.notes is not None
    texts = (row.notes.source, row.notes.equations, row.notes.differences)
    for text in (row.title, row.family, row.paper, row.multi_label, *texts):
        assert text.strip()
    assert 1990 < row.year < 2100
    assert row.name == row.name.lower()
    assert set(row.defaults) <= set(option_names(row.options_class()))
    for bits in (8, 16, 48, 1024):
        options = row.options({}, bits)
        assert row.name == "hyp2" or None not in options.model_dump().values()
    assert all(item.description for item in type(options).model_fields.values())


def test_methods_are_read_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        METHODS["ics"].name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        METHODS["new"] = METHODS["ics"]  # type: ignore[index]
    with pytest.raises(TypeError):
        METHODS["ics-printed"].defaults["gamma"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ics-sofmax", {}, "'ics-softmax'"),
        ("csq", {"gama": 1}, "'gama' of method 'csq'.*'gamma'"),
        ("ics", {"lambda": "-1"}, "'lambda' of method 'ics'"),
        ("ics", {"lambda": 1, "entropy": 2}, "entropy, lambda"),
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


def test_commands_list_methods_and_options() -> None:
    found = cli("methods", "--json").json
    assert [row["name"] for row in found] == list(METHODS)
    for row in found:
        for column, value in row.items():
            assert value == getattr(METHODS[row["name"]], column)
    shown = cli("methods").out
    assert all(name in shown for name in METHODS)
    listed = {row["name"]: row["default"] for row in cli("options", "ics", "--bits", "16", "--json").json}
    assert listed == get_method("ics").options({}, 16).model_dump(by_alias=True)
    assert "lambda" in cli("options", "ics").out
    refused = cli("options", "icz")
    assert refused.code == 2
    assert "'ics'" in refused.err


@pytest.mark.slow
def test_names_are_listed_without_torch() -> None:
    script = (
        "import sys\nfrom centerhash.methods.registry import METHODS\n"
        "assert len(list(METHODS)) > 20 and 'ics' in METHODS and METHODS['itq'].title == 'ITQ'\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_defaults_of_training_and_head_yield_to_given_ones() -> None:
    assert resolve(TrainConfig(method="dhn")).learning_rate == METHODS["dhn"].training["learning_rate"]
    assert resolve(TrainConfig(method="dhn", learning_rate=0.02)).learning_rate == 0.02
    assert resolve(resolve(TrainConfig(method="dhn"))) == resolve(TrainConfig(method="dhn"))
    assert [row.name for row in BUILT_IN if resolve(TrainConfig(method=row.name)).head.divide] == ["dnnh"]
    assert resolve(TrainConfig(method="dnnh", head=HeadOptions(divide=False))).head.divide is False


def test_the_page_of_methods_is_the_one_in_the_docs() -> None:
    page = (ROOT / "docs" / "reference" / "methods.md").read_text()
    assert page == methods_page(), "run `centerhash methods --markdown > docs/reference/methods.md`"
    assert cli("methods", "--markdown").out == page
    assert all(f"\n## {row.name}\n" in page for row in BUILT_IN)


# --- search spaces


@pytest.mark.parametrize("row", BUILT_IN, ids=lambda row: row.name)
def test_every_point_is_a_training_that_can_be(row: Method) -> None:
    space = search_space(row)
    for bits in (16, 64):
        for point in [*space.points(), space.authors]:
            given = training_options(row, point, bits)
            make_task({**given, "method": row.name, "bits": bits})
    assert row.space
    assert ("learning_rate" in space.values) == (row.family != "shallow")
    assert set(space.authors) & set(space.values) or not space.authors
    for name, value in space.authors.items():
        assert value in space.values.get(name, [value]), name
    assert row.notes is not None
    means = grid_means(row.name)
    best = json.loads(max(means, key=lambda setting: means[setting]))
    own = make_task({"method": row.name, "bits": 32, "seed": 0}).resolved
    assert best == as_searched(own), "the default is what the stored grid preferred"


def test_ours_has_no_larger_space_than_the_largest_baseline() -> None:
    sizes = {row.name: len(search_space(row).points()) for row in BUILT_IN}
    assert sizes["ics-softmax"] <= max(size for name, size in sizes.items() if name != "ics-softmax")


def as_searched(config: Mapping[str, Any]) -> dict[str, Any]:
    """A setting without its seed, and without the units of label probabilities, which were fewer in the grid."""
    head = {name: value for name, value in config["head"].items() if name != "presence_hidden"}
    return {**{name: value for name, value in config.items() if name != "seed"}, "head": head}


@cache
def grid_rows() -> list[dict[str, Any]]:
    return read_rows(ROOT / "benchmarks" / "results" / "coco117k-tune" / "results.jsonl")


def grid_means(method: str) -> dict[str, float]:
    """Mean scores of a method's full training runs by setting, of the grid on COCO's features."""
    scores: dict[str, list[float]] = {}
    for row in grid_rows():
        config = row["config"]
        if config["method"] == method and config["epochs"] == TrainConfig().epochs:
            setting = json.dumps(as_searched(config), sort_keys=True)
            scores.setdefault(setting, []).append(row["evaluation"]["map_peers"])
    return {setting: sum(found) / len(found) for setting, found in scores.items()}


@pytest.mark.parametrize("row", BUILT_IN, ids=lambda row: row.name)
def test_scores_of_the_notes_are_those_of_the_grid(row: Method) -> None:
    assert row.notes is not None
    best = json.loads((ROOT / "benchmarks" / "results" / "coco117k-tune" / "best.json").read_text())
    assert row.notes.scores is not None
    default, short, authors = row.notes.scores
    assert default == pytest.approx(best["methods"][row.name]["score"], abs=6e-4)
    epochs = TrainConfig().epochs // (1 if row.family == "shallow" else 3)
    own = [run for run in grid_rows() if run["config"]["method"] == row.name]
    trials = [run for run in own if run["config"]["epochs"] == epochs]
    if short is not None:
        setting = as_searched(make_task({"method": row.name, "bits": 32, "epochs": epochs}).resolved)
        scored = [run for run in trials if as_searched(run["config"]) == setting]
        assert short == pytest.approx(scored[0]["evaluation"]["map_peers"], abs=6e-4)
    if authors is not None:
        near = [run for run in trials if abs(run["evaluation"]["map_peers"] - authors) < 6e-4]
        assert near or authors == default


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("K", 32.0),
        ("K*0.5", 16.0),
        ("8/K", 0.25),
        ("default*4", 12.0),
        ("default", 3.0),
        ("random", "random"),
        (0.5, 0.5),
    ],
)
def test_values_by_hand(value: Any, expected: Any) -> None:
    assert value_at(value, 32, 3.0) == expected


def test_options_and_training_are_told_apart_and_a_default_follows_the_other_options() -> None:
    point = {"learning_rate": 0.01, "scale": 10.0, "lambda": "default*2", "assignment": "random"}
    assert training_options(get_method("ics-softmax"), point, 16) == {
        "learning_rate": 0.01,
        "assignment": "random",
        "options": {"scale": 10.0, "lambda": 10.0},  # half of the scale, twice
    }


# --- custom methods


class PushOptions(MethodOptions):
    """Options of Push."""

    strength: float = Field(1.0, gt=0, description="factor of the loss")


class Push(Objective):
    """Logits of images that share labels agree."""

    options: PushOptions

    def __init__(self, bits: int, *, options: PushOptions | None = None, **values: Any) -> None:
        super().__init__(options=options, **values)
        self.bits = bits

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        codes, shared = batch.logits.tanh(), batch.labels.float() @ batch.labels.float().T > 0
        targets = 2 * shared.float() - 1
        return {"push": self.options.strength * (codes @ codes.T / self.bits - targets).square().mean()}


@dataclass(frozen=True, eq=False)
class FirstFeatures(LinearHash):
    """The signs of the first K features."""

    @classmethod
    def _fit(cls, given: Training) -> Self:
        unit = given.checked(ShallowOptions).unit
        columns: NDArray[np.float64] = np.eye(given.features.shape[1], given.bits)
        return cls(np.array(unit), columns, given.features.mean(axis=0) @ columns)


def test_a_registered_loss_is_a_method_like_any_other(tmp_path: Path) -> None:
    ch.register_method("push", Push, title="Push!", defaults={"strength": 2.0}, training={"epochs": 9})
    row = METHODS["push"]
    assert (row.title, row.family, row.kind) == ("Push!", "other", Push)
    assert row.options({}, 16).model_dump() == {"strength": 2.0}
    dataset = feature_dataset()
    model = ch.train(dataset, config=toy_config(method="push"))
    assert ch.evaluate(model, dataset).map_textbook > 0.8
    model.save(tmp_path)
    loaded = HashModel.load(tmp_path)
    assert np.array_equal(loaded.encode_features(dataset.features), model.encode_features(dataset.features))
    assert any(found["name"] == "push" for found in cli("methods", "--json").json)
    assert "strength" in cli("options", "push").out


def test_a_registered_shallow_method_trains(tmp_path: Path) -> None:
    ch.register_method("first", FirstFeatures, uses_labels=False)
    dataset = feature_dataset()
    ch.train(dataset, config=toy_config(method="first")).save(tmp_path)
    assert HashModel.load(tmp_path).method.family == "shallow"


def test_the_decorator_returns_the_class_and_again_is_allowed() -> None:
    assert ch.register_method("push")(Push) is Push
    assert ch.register_method("push", title="again")(Push) is Push
    assert METHODS["push"].title == "again"


@pytest.mark.parametrize(
    ("name", "kind", "about", "words"),
    [
        ("ics", Push, {}, "built-in"),
        ("my push", Push, {}, "letters"),
        ("push", dict, {}, "Objective"),
        ("push", CentralObjective, {}, "Objective"),
        ("push", Push, {"family": "central"}, "other"),
        ("push", Push, {"defaults": {"strenght": 1}}, "Did you mean 'strength'"),
    ],
)
def test_what_cannot_be_a_method_is_refused(name: str, kind: type, about: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ch.register_method(name, kind, **about)
    assert METHODS["ics"].kind is ICS


def test_a_loss_of_the_package_may_have_a_second_row() -> None:
    ch.register_method("soft", HashNet, family="pairwise", defaults={"last_beta": 2.0})
    assert get_method("soft").options({}, 16).model_dump()["last_beta"] == 2.0


def test_a_class_is_named_by_its_file_or_its_module() -> None:
    by_file = get_method(f"{HINGE}:Hinge")
    assert by_file.name == f"{HINGE}:Hinge"
    assert by_file.title == "Hinge"
    assert by_file.multi_label  # as the file registers it
    assert METHODS["hinge"].kind is by_file.kind
    assert get_method(f"{HINGE}:Hinge") is by_file
    by_module = get_method(f"{__name__}:Push")
    assert (by_module.kind, by_module.family) == (Push, "other")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py:Hinge", "no file 'nowhere.py'"),
        ("no_such_module:Hinge", "no_such_module"),
        (f"{HINGE}:Hing", "Did you mean 'Hinge'"),
        (f"{HINGE}:HingeOptions", "Objective"),
        ("hing", "my_method.py:Class"),
    ],
)
def test_what_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        get_method(name)


def test_a_file_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        get_method(f"{tmp_path / 'broken.py'}:Loss")


def test_a_model_never_runs_the_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"{HINGE.read_text()}\nopen({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    dataset, run = feature_dataset(), tmp_path / "run"
    with forgotten():
        ch.train(dataset, config=toy_config(method=f"{trap}:Hinge", epochs=1)).save(run)
    (tmp_path / "sprung").unlink()
    with pytest.raises(UnknownMethodError, match="CENTERHASH_METHODS"):
        HashModel.load(run)
    assert not (tmp_path / "sprung").exists()
    moved = tmp_path / "elsewhere" / "trap.py"
    moved.parent.mkdir()
    shutil.copy(HINGE, moved)
    monkeypatch.setenv("CENTERHASH_METHODS", f"{moved}:Hinge")  # the user's own word; folders do not count
    model = HashModel.load(run)
    assert model.weights(dataset.features, dataset.labels).shape == dataset.labels.shape
    assert not (tmp_path / "sprung").exists()


def test_a_stored_name_may_be_registered_by_hand() -> None:
    with pytest.raises(UnknownMethodError):
        stored_method("push")
    ch.register_method("push", Push)
    assert stored_method("push").kind is Push


def test_settings_of_a_comparison_may_name_a_class() -> None:
    names = read_methods(f"csq,{HINGE}:Hinge")
    assert names == ["csq", f"{HINGE}:Hinge"]
    settings = read_settings([f"{HINGE}:Hinge:margin=0.5", "csq:gamma=1"], names)
    assert settings == {f"{HINGE}:Hinge": {"options": {"margin": "0.5"}}, "csq": {"options": {"gamma": "1"}}}


@pytest.mark.slow
def test_commands_find_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, name = write_feature_folder(tmp_path / "data"), f"{HINGE}:Hinge"
    done = cli("train", data, "--method", name, "-o", "margin=0.5", "--out", tmp_path / "run", *QUICK)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "model.json").read_text())["method"] == name
    assert cli("evaluate", tmp_path / "run").code == 0
    words = ["encode", tmp_path / "run", data / "features.npy", "--out", tmp_path / "codes.npz"]
    refused = cli_process(*words)
    assert refused.code == 2
    assert "CENTERHASH_METHODS" in refused.err
    monkeypatch.setenv("CENTERHASH_METHODS", name)
    assert cli_process(*words).code == 0
    monkeypatch.delenv("CENTERHASH_METHODS")
    grid = ["--methods", name, "--bits", "16", "--seeds", "1", "--epochs", "1"]
    done = cli("compare", data, *grid, "--out", tmp_path / "grid")
    assert done.code == 0, done.err
    assert "Hinge" in (tmp_path / "grid" / "report.html").read_text()
