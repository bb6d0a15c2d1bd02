"""Backbones: named ones and networks of timm, their keys, devices; models use the backbone they were trained on."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.model.model import HashModel
from centerhash.networks.backbones import BACKBONES, choose_device, get_backbone, import_timm
from centerhash.networks.layers import fold_batch_norms
from centerhash.networks.weight_files import Download, Hub, WeightFile
from centerhash.training.run import train
from tests.networks.toys import write_labeled_images
from tests.toys import toy_config

LITE0 = BACKBONES["efficientnet-lite0"]
SMALL = "timm:test_resnet"


def sample_images(size: int) -> Tensor:
    """Random pixels (4, size, size, 3): noise, smooth patches and a plain one."""
    generator = np.random.default_rng(7)
    noise = generator.integers(0, 256, (1, size, size, 3), dtype=np.uint8)
    coarse = generator.integers(0, 256, (2, 7, 7, 3), dtype=np.uint8)
    smooth = coarse.repeat(42, axis=1).repeat(42, axis=2)[:, :size, :size]
    plain = np.full((1, size, size, 3), 200, dtype=np.uint8)
    return torch.from_numpy(np.concatenate([noise, smooth, plain]))


def pooled(maps: Tensor) -> Tensor:
    """Mean, then maximum, of every channel of maps (B, W, H, W'), pixel by pixel."""
    total, largest = torch.zeros(maps.shape[:2]), torch.full(maps.shape[:2], -torch.inf)
    for y in range(maps.shape[2]):
        for x in range(maps.shape[3]):
            total += maps[:, :, y, x]
            largest = torch.maximum(largest, maps[:, :, y, x])
    return torch.cat([total / (maps.shape[2] * maps.shape[3]), largest], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2"])
def test_lite_equals_original(name: str) -> None:
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
        features = row.load()(images)
        logits = original(pixels)
        actual = original._fc(features[:, : row.width])
    assert float(expected.std()) > 0.1  # not equal because both are nothing
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(actual, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_trainable_network() -> None:
    network, images = LITE0.trainable(), sample_images(LITE0.crop)
    assert all(module.training for module in network.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == 49  # none is folded
    network(images[:2]).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())
    with torch.inference_mode():
        torch.testing.assert_close(
            LITE0.trainable().eval()(images), LITE0.load()(images), atol=1e-4, rtol=1e-4
        )


def test_key_follows_weights_and_preprocessing(tmp_path: Path) -> None:
    assert LITE0.key.startswith("efficientnet-lite0-256-256-mean+max-")
    other = tmp_path / "weights.pth"
    other.write_bytes(b"other weights")
    changed = [
        get_backbone("efficientnet-lite0", weights=other),
        *(get_backbone("efficientnet-lite0", pretrained=False, seed=seed) for seed in (0, 1)),
        get_backbone("efficientnet-lite0", crop=200),
        *(get_backbone("efficientnet-lite0", pool=pool) for pool in ("mean", "max")),
        dataclasses.replace(LITE0, resize=300),
        dataclasses.replace(LITE0, interpolation="bicubic"),
        dataclasses.replace(LITE0, shift=(127.0, 127.0, 128.0)),
        dataclasses.replace(LITE0, scale=(127.0, 127.0, 128.0)),
    ]
    assert len({LITE0.key, *(row.key for row in changed)}) == 11
    before = changed[0].key
    other.write_bytes(b"other weights in the same file")
    assert changed[0].key != before
    key = get_backbone(SMALL, pretrained=False).key
    assert Path(key).name == key  # of a folder


def test_named_backbones() -> None:
    rows = {row.name: (row.resize, row.crop, row.pool, row.features) for row in BACKBONES.values()}
    assert rows == {
        "efficientnet-lite0": (256, 256, "mean+max", 2560),
        "efficientnet-lite2": (288, 288, "mean+max", 2560),
        "alexnet": (256, 224, None, 4096),
        "resnet50": (256, 224, "mean", 2048),
        "resnet50-v1": (256, 224, "mean", 2048),
    }


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("efficientnet-lite0", {"crop": 257}, "64 to 256"),
        ("efficientnet-lite0", {"crop": 0}, "64 to 256"),
        ("efficientnet-lite0", {"pool": "mean+maximum"}, r"mean\+max"),
        ("alexnet", {"pool": "max"}, "pool=max"),
        ("timm:test_vit", {"pool": "mean"}, "pool=mean"),
        ("timm:test_vit", {"crop": 97}, "97"),
        ("timm:mobilenetv3_small_050", {"pool": "mean+max"}, r"mean\+max"),
        ("timm:test_convnext", {"pool": "mean+max"}, "test_convnext"),
        ("resnet50-v1", {"pretrained": True}, "resnet50-v1"),
        ("resnet50", {"weights": "file"}, "exclude each other"),
        ("resnet-50", {}, "resnet50"),
        ("timm:resnet_18", {}, "timm:resnet18"),
        ("timm:resnet18.a1_in1", {}, "timm:resnet18.a1_in1k"),
        ("timm:", {}, "timm"),
    ],
)
def test_get_backbone_rejects(name: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        get_backbone(name, **{"pretrained": False, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKBONES, "timm:test_vit", "timm:test_efficientnet", SMALL])
def test_features_and_parameters(name: str) -> None:
    row = get_backbone(name, pretrained=False)
    network = row.trainable().eval()
    with torch.inference_mode():
        features = network(torch.zeros(1, row.crop, row.crop, 3, dtype=torch.uint8))
    assert (features.shape, features.dtype) == ((1, row.features), torch.float32)
    assert sum(parameter.numel() for parameter in network.parameters()) == row.parameters


@pytest.mark.slow
def test_resnet50_pooling_and_folding() -> None:
    images, maps = sample_images(64), list[Tensor]()
    network: Any = get_backbone("resnet50", pretrained=False, pool="mean+max").trainable()
    network.network.avgpool.register_forward_hook(lambda layer, inputs, out: maps.append(inputs[0]))
    with torch.no_grad():
        network(images)  # sets the statistics of the norms
        expected = network.eval()(images)
        torch.testing.assert_close(expected, pooled(maps[-1]), atol=1e-4, rtol=1e-4)
        fold_batch_norms(network)
        assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        torch.testing.assert_close(network(images), expected, atol=1e-4, rtol=1e-4)


def test_imagenet_normalization() -> None:
    class Colors(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return pixels.mean(dim=(2, 3))

    row = dataclasses.replace(BACKBONES["alexnet"], weights=None, build=lambda *_: Colors())
    colors = torch.tensor([[124, 116, 104], [255, 0, 255]], dtype=torch.uint8)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    actual = row.load()(colors.reshape(2, 1, 1, 3))
    torch.testing.assert_close(actual, (colors / 255 - mean) / deviation, atol=1e-5, rtol=1e-5)


def test_random_weights_by_seed() -> None:
    images = sample_images(LITE0.crop)[:1]

    def random_features(seed: int, state: int) -> Tensor:
        torch.manual_seed(state)
        before = torch.get_rng_state()
        with torch.inference_mode():
            features: Tensor = get_backbone("efficientnet-lite0", pretrained=False, seed=seed).load()(images)
        assert torch.equal(torch.get_rng_state(), before)
        return features

    assert torch.equal(random_features(3, 0), random_features(3, 1))
    assert not torch.equal(random_features(3, 0), random_features(4, 0))


def test_choose_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"


@pytest.mark.parametrize("name", ["gpu", "", "cpu:x", "meta", "xpu", "7", "cuda:99"])
def test_choose_device_rejects(name: str) -> None:
    with pytest.raises(ConfigError):
        choose_device(name)


@pytest.mark.slow
def test_import_timm_without_operators() -> None:
    """As next to a CPU-only torch; a process as installed trains in tests/cli/test_processes.py."""
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


# Networks of timm


def test_published_preprocessing() -> None:
    row = get_backbone("timm:resnet18.a1_in1k")
    published = import_timm().models.get_pretrained_cfg("resnet18.a1_in1k")
    assert (row.name, row.features, row.crop) == ("timm:resnet18.a1_in1k", 512, published.input_size[1])
    assert row.resize == round(224 / published.crop_pct)
    assert row.interpolation == published.interpolation == "bicubic"
    assert row.shift == pytest.approx([255 * value for value in published.mean])
    assert row.scale == pytest.approx([255 * value for value in published.std])
    assert row.weights == Hub("timm/resnet18.a1_in1k")


@pytest.mark.parametrize(
    ("name", "features"),
    [("mobilenetv3_small_050", 1024), ("test_vit", 64), ("test_efficientnet", 256), ("vgg11", 4096)],
)
def test_number_of_features(name: str, features: int) -> None:
    """`num_features` would be 288 for the first and 512 for the last: what goes into their last hidden layer."""
    assert get_backbone(f"timm:{name}", pretrained=False).features == features


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_crop_and_pool(name: str) -> None:
    plain = get_backbone(f"timm:{name}", pretrained=False)
    other = get_backbone(f"timm:{name}", pretrained=False, crop=128, pool="mean+max")
    assert (other.crop, other.resize, other.features) == (128, plain.resize, 2 * plain.features)
    images = torch.randint(0, 256, (2, 128, 128, 3), dtype=torch.uint8)
    with torch.inference_mode():
        both, mean = other.load()(images), plain.load()(images)
    assert torch.equal(both[:, : plain.features], mean)
    assert bool((both[:, plain.features :] >= mean).all())


def test_crop_of_transformer() -> None:
    published = get_backbone("timm:test_vit", pretrained=False)
    other = get_backbone("timm:test_vit", pretrained=False, crop=96)
    assert (other.crop, other.resize) == (96, round(96 * published.resize / published.crop))
    network: Any = other.trainable().network
    assert network(torch.zeros(1, 3, 96, 96)).shape == (1, published.features)


def test_network_without_published_weights() -> None:
    timm = import_timm()
    name = next(name for name in timm.list_models("resnet*") if not timm.list_pretrained(f"{name}.*"))
    with pytest.raises(ConfigError, match="weights="):
        get_backbone(f"timm:{name}")
    assert get_backbone(f"timm:{name}", pretrained=False).is_local
    assert get_backbone(f"timm:{name}", weights=__file__).weights == WeightFile(Path(__file__))


@pytest.mark.slow
def test_weights_outside_the_hub() -> None:
    timm = import_timm()
    settings = {name: timm.models.get_pretrained_cfg(name) for name in timm.list_pretrained()}
    name = next(name for name, row in settings.items() if row.url and not row.hf_hub_id)
    assert get_backbone(f"timm:{name}").weights == Download(settings[name].url)


# Models of a backbone


def write_weights(path: Path, seed: int) -> Path:
    """Random weights of the small network, drawn from `seed`."""
    network: Any = get_backbone(SMALL, pretrained=False, seed=seed).trainable().network
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)
    return path


@pytest.mark.slow
def test_model_with_weight_file(feature_cache: Path, tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights.safetensors", seed=1)
    data = open_dataset(write_labeled_images(tmp_path / "images", 12))
    pictures = list(data.image_paths or ())[:3]
    config = toy_config(epochs=2, backbone=SMALL, weights=str(weights))
    train(data, config=config, cache=feature_cache, device="cpu").save(tmp_path / "model")
    model = HashModel.load(tmp_path / "model")
    assert (model.spec.backbone, model.spec.features) == (SMALL, 96)
    assert model.backbone().key == model.spec.backbone_key
    codes = model.encode(pictures, device="cpu")
    kept = shutil.copy(weights, tmp_path / "kept")
    write_weights(weights, seed=2)
    with pytest.raises(ConfigError, match="have changed"):
        HashModel.load(tmp_path / "model").encode(pictures, device="cpu")
    weights.unlink()
    with pytest.raises(DataError):
        HashModel.load(tmp_path / "model").encode(pictures, device="cpu")
    shutil.copy(kept, weights)
    assert np.array_equal(HashModel.load(tmp_path / "model").encode(pictures, device="cpu"), codes)


@pytest.mark.slow
def test_model_with_random_weights(feature_cache: Path, tmp_path: Path) -> None:
    data = open_dataset(write_labeled_images(tmp_path / "images", 12))
    config = toy_config(epochs=2, backbone=SMALL, pretrained=False, seed=3)
    train(data, config=config, cache=feature_cache, device="cpu").save(tmp_path / "model")
    model = HashModel.load(tmp_path / "model")
    assert str(model.spec.backbone_key).endswith("-random3")
    assert model.backbone() == get_backbone(SMALL, pretrained=False, seed=3, crop=160, pool="mean")
