from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.networks import backbones
from centerhash.networks.backbones import (
    BACKBONES,
    DEFAULT_BACKBONE,
    Backbone,
    choose_device,
    first_preprocessing,
    get_backbone,
)

LITE0 = BACKBONES["efficientnet-lite0"]


@pytest.fixture(scope="module")
def images() -> Tensor:
    return sample_images(LITE0.crop)


def sample_images(size: int) -> Tensor:
    """Random pixels (4, size, size, 3): noise, smooth patches and a plain one."""
    generator = np.random.default_rng(7)
    noise = generator.integers(0, 256, (1, size, size, 3), dtype=np.uint8)
    coarse = generator.integers(0, 256, (2, 7, 7, 3), dtype=np.uint8)
    smooth = coarse.repeat(42, axis=1).repeat(42, axis=2)[:, :size, :size]
    plain = np.full((1, size, size, 3), 200, dtype=np.uint8)
    return torch.from_numpy(np.concatenate([noise, smooth, plain]))


def pooled(maps: Tensor) -> Tensor:
    """Mean, then maximum, of every channel of maps (B, W, H, W'), one place after the other."""
    total, largest = torch.zeros(maps.shape[:2]), torch.full(maps.shape[:2], -torch.inf)
    for y in range(maps.shape[2]):
        for x in range(maps.shape[3]):
            total += maps[:, :, y, x]
            largest = torch.maximum(largest, maps[:, :, y, x])
    return torch.cat([total / (maps.shape[2] * maps.shape[3]), largest], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2"])
def test_features_and_logits_equal_those_of_the_original_network(name: str) -> None:
    """The original is the network of the weights' own authors."""
    from efficientnet_lite_pytorch import EfficientNet

    row = BACKBONES[name]
    assert row.weights is not None
    original = EfficientNet.from_name(name, image_size=row.crop)  # decides its paddings
    original.load_state_dict(torch.load(row.weights.fetch(), map_location="cpu", weights_only=True))
    images = sample_images(row.crop)
    pixels = (images.permute(0, 3, 1, 2).float() - 127) / 128
    with torch.inference_mode():
        expected = pooled(original.eval().extract_features(pixels))
        found = row.load()(images)
        logits, found_logits = original(pixels), original._fc(found[:, : row.width])
    assert found.shape == (4, row.features)
    assert float(expected.std()) > 0.1  # not equal because both are nothing
    assert float(logits.std()) > 0.5
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found_logits, logits, atol=1e-4, rtol=1e-4)


def test_the_network_is_loaded_for_use_not_for_training(images: Tensor) -> None:
    network = LITE0.load()
    assert not any(module.training for module in network.modules())
    with torch.inference_mode():
        assert torch.equal(network(images[:1]), network(images[:1]))


@pytest.mark.slow
def test_the_trainable_network_gives_the_same_features_and_learns(images: Tensor) -> None:
    network = LITE0.trainable()
    assert all(module.training for module in network.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == 49  # none is folded
    network(images[:2]).square().mean().backward()
    assert all(
        parameter.grad is not None and bool(parameter.grad.any()) for parameter in network.parameters()
    )
    unchanged = LITE0.trainable().eval()
    with torch.inference_mode():
        torch.testing.assert_close(unchanged(images), LITE0.load()(images), atol=1e-4, rtol=1e-4)


def test_the_network_leaves_the_pixels_alone(images: Tensor) -> None:
    before = images.clone()
    with torch.inference_mode():
        LITE0.load()(images[:1])
    assert torch.equal(images, before)


def test_the_key_follows_weights_and_preprocessing(tmp_path: Path) -> None:
    assert LITE0.key.startswith("efficientnet-lite0-256-256-mean+max-")
    other = tmp_path / "weights.pth"
    other.write_bytes(b"other weights")
    changed = [
        get_backbone("efficientnet-lite0", weights=other),
        get_backbone("efficientnet-lite0", pretrained=False),
        get_backbone("efficientnet-lite0", pretrained=False, seed=1),
        dataclasses.replace(LITE0, resize=300),
        get_backbone("efficientnet-lite0", crop=200),
        get_backbone("efficientnet-lite0", pool="mean"),
        get_backbone("efficientnet-lite0", pool="max"),
        dataclasses.replace(LITE0, interpolation="bicubic"),
        dataclasses.replace(LITE0, shift=(127.0, 127.0, 128.0)),
        dataclasses.replace(LITE0, scale=(127.0, 127.0, 128.0)),
    ]
    assert len({LITE0.key, *(row.key for row in changed)}) == 11
    before = changed[0].key
    other.write_bytes(b"other weights in the same file")
    assert changed[0].key != before


@pytest.mark.parametrize(
    ("name", "crop", "key"),
    [
        ("efficientnet-lite0", 224, "efficientnet-lite0-256-224-782d15c006c4"),
        ("efficientnet-lite2", 260, "efficientnet-lite2-297-260-b05600ba7e4e"),
    ],
)
def test_keys_of_the_first_preprocessing_stay(name: str, crop: int, key: str) -> None:
    """Caches and models out there are named by them."""
    assert first_preprocessing(name) == (crop, "mean")
    assert get_backbone(name, crop=crop, pool="mean").key == key


def test_the_embedded_backbones_read_the_whole_frame() -> None:
    found = {row.name: (row.resize, row.crop, row.pool, row.features) for row in BACKBONES.values()}
    assert found == {
        "efficientnet-lite0": (256, 256, "mean+max", 2560),
        "efficientnet-lite2": (288, 288, "mean+max", 2560),
        "alexnet": (256, 224, None, 4096),
        "resnet50": (256, 224, "mean", 2048),
    }
    cut = get_backbone("efficientnet-lite2", crop=200)
    assert (cut.resize, cut.crop) == (288, 200)


@pytest.mark.slow
def test_pools_are_the_parts_of_both(images: Tensor) -> None:
    with torch.inference_mode():
        both, mean, largest = (
            get_backbone("efficientnet-lite0", pool=pool).load()(images)
            for pool in ("mean+max", "mean", "max")
        )
    assert torch.equal(both, torch.cat([mean, largest], dim=1))
    assert bool((largest >= mean).all())


@pytest.mark.slow
def test_resnet50_pools_as_it_is_told() -> None:
    images = sample_images(64)
    whole = get_backbone("resnet50", pretrained=False, pool="mean+max").load()
    maps: list[Tensor] = []
    whole.network.avgpool.register_forward_hook(lambda layer, given, out: maps.append(given[0]))  # type: ignore[union-attr]
    with torch.inference_mode():
        found = whole(images)
        mean = get_backbone("resnet50", pretrained=False).load()(images)
    torch.testing.assert_close(found, pooled(maps[0]))
    torch.testing.assert_close(found[:, :2048], mean)


@pytest.mark.parametrize(
    ("name", "choice", "words"),
    [
        ("efficientnet-lite0", {"crop": 257}, "64 to 256"),
        ("efficientnet-lite0", {"crop": 0}, "64 to 256"),
        ("efficientnet-lite0", {"pool": "mean+maximum"}, r"unknown pool .*mean\+max"),
        ("alexnet", {"pool": "max"}, "its own way"),
        ("timm:test_vit", {"pool": "mean"}, "its own way"),
        ("timm:vit_tiny_patch16_224", {"crop": 96}, "crop of 96"),
        ("timm:mobilenetv3_small_050", {"pool": "mean+max"}, r"pool mean\+max"),
        ("timm:test_convnext", {"pool": "mean+max"}, r"pool mean\+max"),
    ],
)
def test_a_crop_or_pool_that_cannot_be_is_refused(name: str, choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        get_backbone(name, pretrained=False, **choice)


def test_keys_are_names_of_folders(tmp_path: Path) -> None:
    key = get_backbone("timm:test_resnet", pretrained=False).key
    assert key.startswith("timm-test_resnet-168-160-")
    assert Path(key).name == key
    assert ":" not in key


def test_the_default_backbone_exists() -> None:
    assert get_backbone(DEFAULT_BACKBONE).name == DEFAULT_BACKBONE


@pytest.mark.slow
@pytest.mark.parametrize("row", BACKBONES.values(), ids=lambda row: row.name)
def test_every_row_gives_what_it_promises(row: Backbone) -> None:
    network = get_backbone(row.name, pretrained=False).trainable().eval()
    with torch.inference_mode():
        found = network(torch.zeros(1, row.crop, row.crop, 3, dtype=torch.uint8))
    assert found.shape == (1, row.features)
    assert found.dtype == torch.float32
    assert sum(parameter.numel() for parameter in network.parameters()) == row.parameters


@pytest.mark.slow
def test_folding_leaves_the_features_of_resnet50_as_they_are() -> None:
    images = sample_images(64)
    network = get_backbone("resnet50", pretrained=False).trainable()
    with torch.no_grad():
        network(images)  # gives the norms statistics of their own
        expected = network.eval()(images)
        backbones.fold_batch_norms(network)
        found = network(images)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_imagenet_networks_see_mean_zero_and_unit_variance() -> None:
    class Seen(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return pixels.mean(dim=(2, 3))

    row = dataclasses.replace(BACKBONES["alexnet"], weights=None, build=lambda *_: Seen())
    colours = torch.tensor([[124, 116, 104], [255, 0, 255]], dtype=torch.uint8).reshape(2, 1, 1, 3)
    expected = (colours.reshape(2, 3) / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
        [0.229, 0.224, 0.225]
    )
    torch.testing.assert_close(row.load()(colours), expected, atol=1e-5, rtol=1e-5)


def test_random_weights_come_from_the_seed_alone(images: Tensor) -> None:
    def features(seed: int) -> Tensor:
        torch.manual_seed(len(made))  # the state of torch's own generator must not matter
        made.append(seed)
        with torch.inference_mode():
            found: Tensor = get_backbone("efficientnet-lite0", pretrained=False, seed=seed).load()(images[:1])
        return found

    made: list[int] = []
    first = features(3)
    assert torch.equal(first, features(3))
    assert not torch.equal(first, features(4))


def test_loading_leaves_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    LITE0.load()
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_and_no_pretrained_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        get_backbone("resnet50", weights=tmp_path / "file", pretrained=False)


def test_an_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown backbone 'resnet-50'. Did you mean 'resnet50'\?.*Or timm:NAME"
    ):
        get_backbone("resnet-50")


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
    with pytest.raises(ConfigError, match=rf"device '{name}' cannot be used: .*[^.]\. Try `device=\"cpu\"`"):
        choose_device(name)


def test_a_device_that_cannot_be_is_named_with_the_way_out() -> None:
    for name in ("gpu", "", "cpu:x", "meta", "xpu", "7"):
        with pytest.raises(ConfigError):
            choose_device(name)


def test_timm_is_imported_once() -> None:
    assert backbones.import_timm() is backbones.import_timm()


def test_the_package_has_the_names_that_it_lists() -> None:
    assert all(getattr(backbones, name) is not None for name in backbones.__all__)
    with pytest.raises(AttributeError):
        _ = backbones.fold  # type: ignore[attr-defined]


@pytest.mark.slow
def test_timm_loads_where_the_operators_of_torchvision_do_not_fit_torch() -> None:
    """As beside a CPU-only torch; a process as installed trains in tests/cli/test_processes.py."""
    script = """
import torch
torch.ops.load_library = lambda path: (_ for _ in ()).throw(OSError("does not fit"))
from centerhash.networks.backbones import BACKBONES
network = BACKBONES["efficientnet-lite0"].load()
with torch.inference_mode():
    print(tuple(network(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).shape))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1, 2560)"
