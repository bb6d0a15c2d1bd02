from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from centerhash import backbones
from centerhash.backbones import BACKBONES, DEFAULT_BACKBONE, Backbone, choose_device, get_backbone
from centerhash.errors import ConfigError

LITE0 = BACKBONES["efficientnet-lite0"]


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Random pixels: noise, smooth patches and a plain one."""
    generator = np.random.default_rng(7)
    noise = generator.integers(0, 256, (1, 224, 224, 3), dtype=np.uint8)
    smooth = generator.integers(0, 256, (2, 7, 7, 3), dtype=np.uint8).repeat(32, axis=1).repeat(32, axis=2)
    plain = np.full((1, 224, 224, 3), 200, dtype=np.uint8)
    return torch.from_numpy(np.concatenate([noise, smooth, plain]))


@pytest.fixture(scope="module")
def original() -> nn.Module:
    """The network of the weights' own authors."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(LITE0.weights(), map_location="cpu", weights_only=True))
    return network.eval()


@pytest.fixture(scope="module")
def pixels(images: Tensor) -> Tensor:
    return (images.permute(0, 3, 1, 2).float() - 127) / 128


def test_features_equal_those_of_the_original_network(
    images: Tensor, pixels: Tensor, original: nn.Module
) -> None:
    with torch.inference_mode():
        expected = original.extract_features(pixels).mean(dim=(2, 3))
        found = LITE0.load()(images)
    assert found.shape == (4, LITE0.features)
    assert float(expected.std()) > 0.1  # not equal because both are nothing
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_logits_equal_those_of_the_original_network(
    images: Tensor, pixels: Tensor, original: nn.Module
) -> None:
    with torch.inference_mode():
        expected = original(pixels)
        found = original._fc(LITE0.load()(images))
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_network_is_loaded_for_use_not_for_training(images: Tensor) -> None:
    network = LITE0.load()
    assert not any(module.training for module in network.modules())
    with torch.inference_mode():
        assert torch.equal(network(images[:1]), network(images[:1]))


def test_the_network_leaves_the_pixels_alone(images: Tensor) -> None:
    before = images.clone()
    with torch.inference_mode():
        LITE0.load()(images[:1])
    assert torch.equal(images, before)


def test_the_key_follows_weights_and_preprocessing(tmp_path: Path) -> None:
    assert LITE0.key.startswith("efficientnet-lite0-256-224-")
    other = tmp_path / "weights.pth"
    other.write_bytes(b"other weights")
    changed = [
        dataclasses.replace(LITE0, weights=lambda: other),
        dataclasses.replace(LITE0, resize=300),
        dataclasses.replace(LITE0, crop=200),
    ]
    assert len({LITE0.key, *(row.key for row in changed)}) == 4


def test_the_default_backbone_exists() -> None:
    assert get_backbone(DEFAULT_BACKBONE).name == DEFAULT_BACKBONE


@pytest.mark.parametrize("row", BACKBONES.values(), ids=lambda row: row.name)
def test_every_row_gives_the_features_that_it_promises(row: Backbone) -> None:
    with torch.inference_mode():
        found = row.load()(torch.zeros(1, row.crop, row.crop, 3, dtype=torch.uint8))
    assert found.shape == (1, row.features)
    assert found.dtype == torch.float32


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({"layer": torch.zeros(3)}, path)
    broken = dataclasses.replace(LITE0, weights=lambda: path)
    with pytest.raises(ConfigError, match=r"'other.pth' does not hold the weights.*\(1 tensors, .*reinstall"):
        broken.load()


def test_an_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown backbone 'efficientnet_lite'. Did you mean 'efficientnet-lite0'\?"
    ):
        get_backbone("efficientnet_lite")


def test_auto_finds_a_device_that_works() -> None:
    assert torch.zeros(2, device=choose_device()).sum() == 0


def test_a_named_device_is_taken() -> None:
    assert choose_device("cpu") == torch.device("cpu")


def test_the_gpu_is_preferred_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_named_with_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"device '{name}' cannot be used: .* Try --device cpu or auto\."):
        choose_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cpu:x", "meta", "xpu", "7"])
def test_a_device_that_cannot_be_is_named_with_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"device '{name}' cannot be used: .* Try --device cpu or auto\."):
        choose_device(name)


def test_timm_is_imported_once() -> None:
    assert backbones.import_timm() is backbones.import_timm()


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True], ids=["as installed", "operators missing"])
def test_timm_loads_in_a_fresh_process(broken: bool) -> None:
    """Also where torchvision's compiled operators do not fit torch, as beside a CPU-only torch."""
    script = """
import sys
import torch
if sys.argv[1] == "True":
    torch.ops.load_library = lambda path: (_ for _ in ()).throw(OSError("does not fit"))
from centerhash.backbones import BACKBONES
network = BACKBONES["efficientnet-lite0"].load()
with torch.inference_mode():
    print(tuple(network(torch.zeros(1, 224, 224, 3, dtype=torch.uint8)).shape))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(broken)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1, 1280)"
