"""Methods of one's own: registered by name, or named by file, found again by models, commands and processes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

import centerhash as ch
from centerhash.cli.arguments import read_methods, read_settings
from centerhash.core.errors import ConfigError, UnknownMethodError
from centerhash.core.options import MethodOptions
from centerhash.methods.losses import Batch, CentralObjective, HashNet, Objective
from centerhash.methods.shallow.base import Training
from centerhash.methods.shallow.inputs import ShallowOptions
from centerhash.methods.shallow.projections import LinearHash
from centerhash.methods.table import METHODS, get_method, stored_method
from centerhash.model.model import HashModel
from tests.methods.registering import forgotten
from tests.toys import QUICK, cli, cli_process, feature_dataset, toy_config, write_feature_folder

HINGE = Path(__file__).parents[2] / "examples" / "hinge.py"


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


class FirstFeaturesOptions(ShallowOptions):
    """Options of FirstFeatures."""


@dataclass(frozen=True, eq=False)
class FirstFeatures(LinearHash):
    """The signs of the first K features."""

    @classmethod
    def _fit(cls, given: Training) -> Self:
        unit = given.checked(FirstFeaturesOptions).unit
        columns: NDArray[np.float64] = np.eye(given.features.shape[1], given.bits)
        return cls(np.array(unit), columns, given.features.mean(axis=0) @ columns)


def test_a_registered_loss_is_a_method_like_any_other(tmp_path: Path) -> None:
    ch.register_method("push", Push, title="Push!", defaults={"strength": 2.0}, training={"epochs": 9})
    row = METHODS["push"]
    assert (row.title, row.family, row.registered) == ("Push!", "other", Push)
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
    assert METHODS["ics"].registered is None


def test_a_loss_of_the_package_may_have_a_second_row() -> None:
    ch.register_method("soft", HashNet, family="pairwise", defaults={"last_beta": 2.0})
    assert get_method("soft").options({}, 16).model_dump()["last_beta"] == 2.0


def test_a_class_is_named_by_its_file_or_its_module() -> None:
    by_file = get_method(f"{HINGE}:Hinge")
    assert by_file.name == f"{HINGE}:Hinge"
    assert by_file.title == "Hinge"
    assert by_file.multi_label  # as the file registers it
    assert METHODS["hinge"].load() is by_file.load()
    assert get_method(f"{HINGE}:Hinge") is by_file
    by_module = get_method(f"{__name__}:Push")
    assert (by_module.load(), by_module.family) == (Push, "other")


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
    assert stored_method("push").load() is Push


def test_settings_of_a_comparison_may_name_a_class() -> None:
    names = read_methods(f"csq,{HINGE}:Hinge")
    assert names == ["csq", f"{HINGE}:Hinge"]
    settings = read_settings([f"{HINGE}:Hinge:margin=0.5", "csq:gamma=1"], names)
    assert settings == {f"{HINGE}:Hinge": {"options": {"margin": "0.5"}}, "csq": {"options": {"gamma": "1"}}}


@pytest.mark.slow
def test_commands_and_their_processes_find_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    grid = ["--methods", name, "--bits", "16", "--seeds", "1", "--epochs", "1", "--jobs", "2"]
    done = cli_process("compare", data, *grid, "--out", tmp_path / "grid")
    assert done.code == 0, done.err
    assert "Hinge" in (tmp_path / "grid" / "report.html").read_text()
