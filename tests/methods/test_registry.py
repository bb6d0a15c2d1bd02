"""The registry: built-in methods and their options; custom methods, by name or by file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

import centerhash as ch
from centerhash.core.errors import ConfigError, UnknownMethodError
from centerhash.core.options import options_of
from centerhash.core.progress import Progress
from centerhash.losses import Batch, CentralLoss, HashingLoss, ICSLoss, Option
from centerhash.methods import registry
from centerhash.methods.registry import METHODS, Method, get_method
from centerhash.methods.shallow.projections import LinearHash
from centerhash.model.model import HashModel
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig, resolve
from tests.methods.registering import temporary_methods
from tests.toys import QUICK, cli, cli_process, feature_dataset, toy_config, write_feature_folder

ROOT = Path(__file__).parents[2]
HINGE = ROOT / "examples" / "hinge.py"
BUILT_IN = [method for method in METHODS.values() if method.built_in]


def test_built_in_methods() -> None:
    assert [method.name for method in BUILT_IN] == list(registry._BUILT_IN)
    for method in BUILT_IN:
        path = f"{method.cls.__module__}:{method.cls.__name__}".removeprefix("centerhash.")
        assert path == registry._BUILT_IN[method.name][0]
    assert len({method.title for method in BUILT_IN}) == len(BUILT_IN) == 25


@pytest.mark.parametrize("method", BUILT_IN, ids=lambda method: method.name)
def test_options_of_methods(method: Method) -> None:
    assert all(field.description for field in options_of(method.cls).model_fields.values())
    assert method.summary
    assert "https://" in str(method.cls.__doc__) or method.family == "shallow" or method.name in WITHOUT_LINK
    for bits in (8, 16, 48, 1024):
        options = method.options({}, bits)
        assert list(options) == method.option_names()
        assert method.name == "hyp2" or None not in options.values()
        assert method.options(json.loads(json.dumps(options)), bits) == options


WITHOUT_LINK = ("ics-softmax", "lscsh")


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("ics-sofmax", {}, "'ics-softmax'"),
        ("csq", {"gama": 1}, "'gama' of method 'csq'.*'gamma'"),
        ("ics", {"lambda": "-1"}, "'lambda' of method 'ics'"),
        ("ics", {"lambda": 1, "entropy": 2}, "entropy, lambda"),
        ("ics", {"form": "per_center"}, "solver"),
        ("lscsh", {"keep": True}, "solver"),
        ("itq", {"unit": True}, "'unit' of method 'itq'"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        get_method(name).options(options, 16)


@pytest.mark.parametrize("method", ["ics", "ics-printed", "ics-softmax"])
@pytest.mark.parametrize("name", ["lambda", "entropy"])
def test_lambda_by_both_names(method: str, name: str) -> None:
    assert get_method(method).options({name: "0.375"}, 64)["lambda"] == 0.375


@pytest.mark.parametrize(
    ("method", "options", "bits", "name", "value"),
    [
        ("ics-softmax", {}, 16, "lambda", 3.0),
        ("ics-softmax", {"scale": 3.0}, 64, "lambda", 1.5),
        ("ics-softmax", {"lambda": 0.5}, 64, "lambda", 0.5),
        ("mdsh", {}, 64, "scale", 8.0),
        ("mdsh", {"scale": 3}, 64, "scale", 3.0),
        ("ics", {}, 64, "lambda", 2.0),
        ("ics", {"per_bit": False}, 64, "lambda", 0.01),
        ("ics-printed", {}, 16, "beta", 0.001),
        ("ics-printed", {}, 64, "beta", 0.1),
        ("hashnet", {}, 20, "alpha", 0.5),
        ("hashnet", {"alpha": 0.1}, 20, "alpha", 0.1),
        ("dch", {"gamma": 3}, 64, "gamma", 3.0),
        ("dch", {}, 64, "gamma", 128.0),
        ("dhn", {}, 64, "lambda", 19.2),
    ],
)
def test_default_options(method: str, options: dict[str, float], bits: int, name: str, value: float) -> None:
    assert METHODS[method].options(options, bits)[name] == pytest.approx(value)


def test_methods_command() -> None:
    listed = cli("methods", "--json").json
    assert [row["name"] for row in listed] == list(METHODS)
    assert listed[0]["title"] == "LSH"
    assert all(name in cli("methods").out for name in METHODS)
    options = {row["name"]: row["default"] for row in cli("methods", "ics", "--bits", "16", "--json").json}
    assert options == get_method("ics").options({}, 16)
    assert "lambda" in cli("methods", "ics").out
    refused = cli("methods", "icz")
    assert refused.code == 2
    assert "'ics'" in refused.err


@pytest.mark.slow
def test_names_without_torch() -> None:
    script = (
        "import sys\nfrom centerhash.methods.registry import METHODS\n"
        "assert len(list(METHODS)) > 20 and 'ics' in METHODS and METHODS['itq'].title == 'ITQ'\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_defaults_of_training_and_head() -> None:
    assert resolve(TrainConfig(method="dhn")).learning_rate == METHODS["dhn"].training["learning_rate"]
    assert resolve(TrainConfig(method="dhn", learning_rate=0.02)).learning_rate == 0.02
    assert resolve(resolve(TrainConfig(method="dhn"))) == resolve(TrainConfig(method="dhn"))
    assert resolve(TrainConfig(method="mdsh")).centers == "mdsh"
    assert resolve(TrainConfig(method="mdsh", centers="random")).centers == "random"
    divided = [method.name for method in BUILT_IN if resolve(TrainConfig(method=method.name)).head.divide]
    assert divided == ["dnnh"]
    assert resolve(TrainConfig(method="dnnh", head=HeadOptions(divide=False))).head.divide is False


# Custom methods


class Push(HashingLoss):
    """Logits of images that share labels agree."""

    def __init__(
        self, bits: int, *, strength: Annotated[float, Option("factor of the loss", gt=0)] = 1.0
    ) -> None:
        super().__init__()
        self.bits, self.strength = bits, strength

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        codes, shared = batch.logits.tanh(), batch.labels.float() @ batch.labels.float().T > 0
        targets = 2 * shared.float() - 1
        return {"push": self.strength * (codes @ codes.T / self.bits - targets).square().mean()}


class FirstFeatures(LinearHash):
    """The signs of the first K features."""

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        self.projection = np.eye(features.shape[1], self.bits)
        self.offset = features.mean(axis=0) @ self.projection


def test_registered_loss(tmp_path: Path) -> None:
    ch.register_method("push", Push, title="Push!", defaults={"strength": 2.0}, training={"epochs": 9})
    method = METHODS["push"]
    assert (method.title, method.family, method.cls) == ("Push!", "other", Push)
    assert method.options({}, 16) == {"strength": 2.0}
    dataset = feature_dataset()
    model = ch.train(dataset, config=toy_config(method="push"))
    assert ch.evaluate(model, dataset).map_all > 0.8
    model.save(tmp_path)
    loaded = HashModel.load(tmp_path)
    assert np.array_equal(loaded.encode_features(dataset.features), model.encode_features(dataset.features))
    assert any(row["name"] == "push" for row in cli("methods", "--json").json)
    assert "strength" in cli("methods", "push").out


def test_registered_shallow_method(tmp_path: Path) -> None:
    ch.register_method("first", FirstFeatures, uses_labels=False)
    dataset = feature_dataset()
    ch.train(dataset, config=toy_config(method="first")).save(tmp_path)
    assert HashModel.load(tmp_path).method.family == "shallow"


@pytest.mark.parametrize(
    ("name", "cls", "facts", "named"),
    [
        ("ics", Push, {}, "built-in"),
        ("my push", Push, {}, "letters"),
        ("push", dict, {}, "HashingLoss"),
        ("push", CentralLoss, {}, "HashingLoss"),
        ("push", Push, {"defaults": {"strenght": 1}}, "Did you mean 'strength'"),
    ],
)
def test_wrong_methods(name: str, cls: type, facts: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ch.register_method(name, cls, **facts)
    assert METHODS["ics"].cls is ICSLoss


def test_class_of_a_file_or_module() -> None:
    by_file = get_method(f"{HINGE}:Hinge")
    assert (by_file.name, by_file.title) == (f"{HINGE}:Hinge", "Hinge")
    assert METHODS["hinge"].cls is by_file.cls
    assert get_method(f"{HINGE}:Hinge") is by_file
    by_module = get_method(f"{__name__}:Push")
    assert (by_module.cls, by_module.family) == (Push, "other")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("nowhere.py:Hinge", "nowhere.py"),
        ("no_such_module:Hinge", "no_such_module"),
        (f"{HINGE}:Hing", "Did you mean 'Hinge'"),
        ("hing", "my_method.py:Class"),
        ("{broken}:Loss", "ZeroDivisionError"),
    ],
)
def test_unknown_methods(name: str, named: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=named):
        get_method(name.format(broken=broken))


def test_stored_method_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"{HINGE.read_text()}\nopen({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    dataset, run = feature_dataset(), tmp_path / "run"
    with temporary_methods():
        ch.train(dataset, config=toy_config(method=f"{trap}:Hinge", epochs=1)).save(run)
    (tmp_path / "sprung").unlink()
    with pytest.raises(UnknownMethodError, match="CENTERHASH_METHODS"):
        HashModel.load(run)
    assert not (tmp_path / "sprung").exists()
    moved = tmp_path / "elsewhere" / "trap.py"
    moved.parent.mkdir()
    shutil.copy(HINGE, moved)
    monkeypatch.setenv("CENTERHASH_METHODS", f"{moved}:Hinge")
    model = HashModel.load(run)
    assert model.weights(dataset.features, dataset.labels).shape == dataset.labels.shape
    assert not (tmp_path / "sprung").exists()


@pytest.mark.slow
def test_commands_with_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
