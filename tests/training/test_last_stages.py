from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import centerhash as ch
from centerhash.codes import unpack
from centerhash.core.errors import ConfigError
from centerhash.data import open_dataset
from centerhash.model.model import HashModel
from centerhash.networks.backbones import get_backbone
from centerhash.training import loop
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.run import train
from reproduction.scenes import write_scenes
from tests.toys import Killed, cli, feature_dataset, names, refused, run_contents, toy_config

SMALL = {"finetune": "last", "stages": 1, "bits": 16, "epochs": 2, "batch_size": 16, "crop": 64}


def test_stages_belong_to_the_last_stages() -> None:
    assert resolve(TrainConfig(finetune="last", stages=2)).epochs == 6
    for other in ("off", "all"):
        with pytest.raises(ConfigError, match="stages"):
            resolve(TrainConfig(finetune=other, stages=1))


def test_images_and_a_cache_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="features"):
        train(feature_dataset(), config=toy_config(), finetune="last", cache=tmp_path)
    data = write_scenes(tmp_path / "scenes", 12, size=64)
    with pytest.raises(ConfigError, match="cache="):
        train(data, **SMALL, cache=None, out=tmp_path / "run")


@pytest.mark.slow
def test_the_last_stages_learn_resume_and_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run resumes to the same model, the stages below do not move, and the portable model agrees."""
    data = write_scenes(tmp_path / "scenes", 24, size=64)
    dataset, config, cache = open_dataset(data), TrainConfig(**SMALL), tmp_path / "cache"
    train(dataset, config=config, out=tmp_path / "whole", cache=cache, device="cpu")

    real, calls = loop._run_epoch, []

    def dies(epoch: int, *rest: object) -> dict[str, float]:
        calls.append(epoch)
        if len(calls) == 32:  # 30 epochs of the head, one of the last stages, then the kill
            raise Killed
        return real(epoch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "_run_epoch", dies)
    with pytest.raises(Killed):
        train(dataset, config=config, out=tmp_path / "cut", cache=cache, device="cpu", checkpoint_seconds=0)
    monkeypatch.setattr(loop, "_run_epoch", real)
    train(dataset, config=config, out=tmp_path / "cut", cache=cache, device="cpu")
    assert run_contents(tmp_path / "cut") == run_contents(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "backbone.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in two)

    network = get_backbone("efficientnet-lite0").trainable()
    start = {name.removeprefix("network."): tensor for name, tensor in network.state_dict().items()}
    moved = {name for name in two if not torch.equal(two[name], start[name])}
    assert {name.split(".")[0] for name in moved} == {"blocks", "conv_head", "bn2"}
    assert all(name.startswith("blocks.6.") for name in moved if name.startswith("blocks."))
    assert not any("running_" in name for name in moved)

    assert json.loads((tmp_path / "whole" / "config.json").read_text())["config"]["finetune"] == "last"
    assert dataset.image_paths is not None
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "model.onnx").write_bytes((tmp_path / "whole" / "model.onnx").read_bytes())
    model, portable = HashModel.load(tmp_path / "whole"), ch.load(tmp_path / "moved")
    images = [dataset.image_paths[row] for row in dataset.splits.query.tolist()]
    codes = model.encode(images, device="cpu")
    assert (portable.encode(images) != codes).mean() < 0.02
    with np.load(tmp_path / "whole" / "query.npz") as stored:  # computed from maps of 16 bits
        assert (unpack(stored["packed"], 16) != codes).mean() < 0.02


@pytest.mark.slow
def test_the_command_line_trains_the_last_stages_and_skips_broken_images(tmp_path: Path) -> None:
    data = write_scenes(tmp_path / "scenes", 30, size=64)
    dataset = open_dataset(data)
    assert dataset.image_paths is not None
    Path(dataset.image_paths[int(dataset.splits.train[0])]).write_bytes(b"no picture")
    words = [
        "train",
        data,
        "--finetune",
        "last",
        "--bits",
        "16",
        "--epochs",
        "1",
        "--crop",
        "64",
        "--watch",
        "1",
    ]
    words += ["--stages", "1", "--out", tmp_path / "run", "--cache", tmp_path / "cache"]
    assert "1 of" in refused(cli(*words))
    done = cli(*words, "--skip-broken")
    assert done.code == 0, done.err
    assert "backbone.safetensors" in names(tmp_path / "run")
    assert "validation_map" in (tmp_path / "run" / "log.jsonl").read_text()
