"""Models remember their backbone: its name, where its weights came from, and that these are still the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.model.model import HashModel
from centerhash.networks.backbones import get_backbone
from centerhash.training.config import TrainConfig
from centerhash.training.run import evaluate, train
from tests.toys import toy_config

SMALL = "timm:test_resnet"


def write_weights(path: Path, seed: int) -> Path:
    """Random weights of the small network, drawn from `seed`."""
    network = get_backbone(SMALL, pretrained=False, seed=seed).trainable()
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    return sorted(scene_folder.rglob("*.png"))[:3] or sorted(scene_folder.rglob("*.jpg"))[:3]


def config(**changes: object) -> TrainConfig:
    return toy_config(epochs=2, backbone=SMALL, **changes)


@pytest.mark.slow
def test_a_model_with_own_weights_is_used_only_with_them(
    scene_folder: Path, feature_cache: Path, pictures: list[Path], tmp_path: Path
) -> None:
    weights = write_weights(tmp_path / "own.safetensors", seed=1)
    data = open_dataset(scene_folder)
    train(data, config=config(weights=str(weights)), cache=feature_cache, device="cpu").save(
        tmp_path / "model"
    )
    model = HashModel.load(tmp_path / "model")
    assert (model.spec.backbone, model.spec.features) == (SMALL, 96)
    assert model.backbone().key == model.spec.backbone_key
    codes = model.encode(pictures, device="cpu")
    assert codes.shape == (3, 16)
    assert evaluate(model, data, cache=feature_cache, device="cpu", k=10).queries > 0

    kept = shutil.copy(weights, tmp_path / "kept")
    write_weights(weights, seed=2)
    model = HashModel.load(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"trained on features of timm-test_resnet-.* have changed"):
        model.encode(pictures, device="cpu")
    weights.unlink()
    with pytest.raises(DataError):
        model.encode(pictures, device="cpu")
    shutil.copy(kept, weights)
    assert np.array_equal(model.encode(pictures, device="cpu"), codes)


@pytest.mark.slow
def test_random_weights_are_drawn_again_from_the_seed(
    scene_folder: Path, feature_cache: Path, pictures: list[Path], tmp_path: Path
) -> None:
    data = open_dataset(scene_folder)
    train(data, config=config(pretrained=False, seed=3), cache=feature_cache, device="cpu").save(tmp_path)
    model = HashModel.load(tmp_path)
    assert str(model.spec.backbone_key).endswith("-random3")
    same = get_backbone(SMALL, pretrained=False, seed=3).load()
    with torch.inference_mode():
        one = same(torch.zeros(1, 160, 160, 3, dtype=torch.uint8))
        again = model.backbone().load()(torch.zeros(1, 160, 160, 3, dtype=torch.uint8))
    assert torch.equal(one, again)
    assert model.encode(pictures, device="cpu").shape == (3, 16)


def test_weights_that_are_missing_are_refused_before_any_work(scene_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train(
            open_dataset(scene_folder), config=config(weights=tmp_path / "none.pth"), cache=None, device="cpu"
        )
