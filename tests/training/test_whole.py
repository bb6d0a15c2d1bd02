from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.data.scenes.scenes import write_scenes
from centerhash.model import HashModel
from centerhash.training.fitting import resolve
from centerhash.training.loop import TrainConfig
from centerhash.training.run import train
from tests.toys import Killed, cli, feature_dataset, names, refused, run_contents, toy_config

SMALL = {"finetune": True, "bits": 16, "epochs": 2, "batch_size": 16}


def test_short_fine_tuning_has_defaults_of_its_own() -> None:
    frozen, tuned = resolve(TrainConfig()), resolve(TrainConfig(finetune=True))
    assert (frozen.epochs, frozen.batch_size, frozen.learning_rate) == (30, 256, 4e-3)
    assert (tuned.epochs, tuned.batch_size, tuned.learning_rate) == (6, 64, 1e-3)
    assert resolve(TrainConfig(finetune=True, epochs=9)).epochs == 9


def test_what_cannot_be_fine_tuned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="method 'itq' has no network to fine-tune"):
        resolve(TrainConfig(finetune=True, method="itq"))
    with pytest.raises(ConfigError, match="--finetune needs images"):
        train(feature_dataset(), toy_config(finetune=True), tmp_path / "run")


def test_presets_hold_the_printed_recipe(tmp_path: Path) -> None:
    from centerhash.training.presets import preset_names, read_preset

    assert preset_names() == ["paper-alexnet", "paper-resnet50"]
    config = TrainConfig(**read_preset("paper-resnet50"))
    assert (config.epochs, config.batch_size, config.learning_rate) == (90, 64, 1e-4)
    assert (config.method, config.backbone, config.schedule) == ("ics-printed", "resnet50", "steps")
    assert config.head.hidden == ()
    assert [resolve(config.model_copy(update={"bits": bits})).options["beta"] for bits in (16, 32, 64)] == [
        0.001,
        0.01,
        0.1,
    ]
    assert resolve(config).options["lambda"] == 0.01
    assert resolve(config).options["gamma"] == 0.05
    with pytest.raises(ConfigError, match="Did you mean 'paper-alexnet'"):
        read_preset("paper-alexnt")
    own = tmp_path / "own.toml"
    own.write_text("bits = 24\nepochz = 3\n")
    words = refused(cli("train", tmp_path, "--preset", own, "--out", tmp_path / "run"))
    assert "unknown option 'epochz'" in words
    own.write_text("bits =")
    with pytest.raises(ConfigError, match="is no TOML file"):
        read_preset(str(own))
    with pytest.raises(ConfigError, match="cannot read the preset"):
        read_preset("gone.toml")


@pytest.mark.slow
def test_fine_tuning_resumes_encodes_and_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed fine-tuning goes on to the same model; its backbone travels with it."""
    data = write_scenes(tmp_path / "scenes", 48, size=64)
    dataset = open_dataset(data)
    config = TrainConfig(**SMALL)
    cache = tmp_path / "cache"
    whole = train(dataset, config, tmp_path / "whole", cache=cache, device="cpu")

    from centerhash.training import loop as train_module

    real, calls = train_module._run_epoch, []

    def dies(epoch: int, *rest: object) -> dict[str, float]:
        calls.append(epoch)
        if len(calls) == 32:  # 30 epochs of the head, one of the whole network, then the kill
            raise Killed
        return real(epoch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(train_module, "_run_epoch", dies)
    with pytest.raises(Killed):
        train(dataset, config, tmp_path / "cut", cache=cache, device="cpu", checkpoint_seconds=0)
    monkeypatch.setattr(train_module, "_run_epoch", real)
    train(dataset, config, tmp_path / "cut", cache=cache, device="cpu")
    assert run_contents(tmp_path / "cut") == run_contents(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "backbone.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in two)

    frozen = load_file(tmp_path / "whole" / "model.safetensors")
    assert frozen.keys() == whole.tensors().keys()
    start = load_start()
    moved = [name for name in two if not torch.equal(two[name], start[name])]
    assert any(name.endswith("conv_pw.weight") for name in moved)
    assert not any("running_" in name for name in moved)

    image = dataset.image_paths[0] if dataset.image_paths else Path()
    stored = HashModel.load(tmp_path / "whole")
    codes = stored.encode([image], device="cpu")
    stored.save(tmp_path / "moved")
    assert names(tmp_path / "moved") == ["backbone.safetensors", "model.json", "model.safetensors"]
    assert (HashModel.load(tmp_path / "moved").encode([image], device="cpu") == codes).all()
    spec = json.loads((tmp_path / "whole" / "model.json").read_text())
    assert spec["tuned"] is True
    (tmp_path / "moved" / "backbone.safetensors").unlink()
    with pytest.raises((ConfigError, DataError), match=r"backbone\.safetensors"):
        HashModel.load(tmp_path / "moved").encode([image], device="cpu")


def load_start() -> dict[str, torch.Tensor]:
    """The weights that the fine-tuning began with."""
    from centerhash.networks.backbones import get_backbone

    network = get_backbone("efficientnet-lite0").trainable()
    return {name.removeprefix("network."): tensor for name, tensor in network.state_dict().items()}


@pytest.mark.slow
def test_a_broken_training_image_stops_fine_tuning_unless_it_may_be_skipped(tmp_path: Path) -> None:
    data = write_scenes(tmp_path / "scenes", 30, size=64)
    dataset = open_dataset(data)
    assert dataset.image_paths is not None
    Path(dataset.image_paths[int(dataset.splits.train[0])]).write_bytes(b"no picture")
    words = ["train", data, "--finetune", "--bits", "16", "--epochs", "1", "--out", tmp_path / "run"]
    assert "1 of" in refused(cli(*words, "--cache", tmp_path / "cache"))
    done = cli(*words, "--cache", tmp_path / "cache", "--skip-broken")
    assert done.code == 0, done.err
    assert "backbone.safetensors" in names(tmp_path / "run")
