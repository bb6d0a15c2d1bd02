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
from centerhash.networks.backbones import (
    BACKBONES,
    DEFAULT_BACKBONE,
    choose_device,
    get_backbone,
    import_timm,
)
from centerhash.networks.layers import fold_batch_norms
from centerhash.networks.weight_files import Download, Hub, WeightFile
from centerhash.training.config import TrainConfig
from centerhash.training.run import evaluate, train
from tests.toys import toy_config

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
    key = get_backbone("timm:test_resnet", pretrained=False).key
    assert key.startswith("timm-test_resnet-168-160-")
    assert Path(key).name == key  # of a folder


def test_the_embedded_backbones_read_the_whole_frame() -> None:
    found = {row.name: (row.resize, row.crop, row.pool, row.features) for row in BACKBONES.values()}
    assert found == {
        "efficientnet-lite0": (256, 256, "mean+max", 2560),
        "efficientnet-lite2": (288, 288, "mean+max", 2560),
        "alexnet": (256, 224, None, 4096),
        "resnet50": (256, 224, "mean", 2048),
        "resnet50-v1": (256, 224, "mean", 2048),
    }
    cut = get_backbone("efficientnet-lite2", crop=200)
    assert (cut.resize, cut.crop) == (288, 200)
    assert DEFAULT_BACKBONE in BACKBONES


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKBONES, "timm:test_vit", "timm:test_efficientnet", "timm:test_resnet"])
def test_every_row_gives_what_it_promises(name: str) -> None:
    row = get_backbone(name, pretrained=False)
    network = row.trainable().eval()
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
        fold_batch_norms(network)
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


def test_the_gpu_is_preferred_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_named_with_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        choose_device(name)


def test_a_device_that_cannot_be_is_named_with_the_way_out() -> None:
    for name in ("gpu", "", "cpu:x", "meta", "xpu", "7"):
        with pytest.raises(ConfigError):
            choose_device(name)


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


def test_preprocessing_is_what_timm_publishes() -> None:
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
def test_the_number_of_features_is_what_the_network_gives(name: str, features: int) -> None:
    """`num_features` would be 288 for the first and 512 for the last: what goes into their last hidden layer."""
    assert get_backbone(f"timm:{name}", pretrained=False).features == features


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_a_convolutional_network_takes_another_crop_and_pool(name: str) -> None:
    plain = get_backbone(f"timm:{name}", pretrained=False)
    other = get_backbone(f"timm:{name}", pretrained=False, crop=128, pool="mean+max")
    assert (other.crop, other.resize, other.features) == (128, plain.resize, 2 * plain.features)
    images = torch.randint(0, 256, (2, 128, 128, 3), dtype=torch.uint8)
    with torch.inference_mode():
        found, mean = other.load()(images), plain.load()(images)
    assert torch.equal(found[:, : plain.features], mean)
    assert bool((found[:, plain.features :] >= mean).all())


def test_a_transformer_of_another_size_resamples_its_positions(tmp_path: Path) -> None:
    published = get_backbone("timm:test_vit", pretrained=False)
    weights = published._network().network.state_dict()  # type: ignore[operator, union-attr]
    save_file({name: value.contiguous() for name, value in weights.items()}, tmp_path / "vit.safetensors")
    same = get_backbone(f"timm:test_vit@{published.crop}", tmp_path / "vit.safetensors")
    other = get_backbone("timm:test_vit@96", tmp_path / "vit.safetensors")
    images = torch.randint(0, 256, (2, published.crop, published.crop, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(same.load()(images), published.load()(images))
        smaller = other._network().network
        assert smaller(torch.zeros(1, 3, 96, 96)).shape == (1, published.features)  # type: ignore[operator]
    for name, tensor in smaller.state_dict().items():  # type: ignore[operator, union-attr]
        assert name == "pos_embed" or torch.equal(tensor, weights[name])
    assert (other.crop, other.resize) == (96, round(96 * published.resize / published.crop))


@pytest.mark.parametrize(
    "name", ["timm:test_vit@97", "timm:test_vit@big", "timm:test_vit@9", "timm:test_vit@"]
)
def test_a_size_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="test_vit"):
        get_backbone(name, pretrained=False)


def test_a_convolutional_network_takes_another_size() -> None:
    row = get_backbone("timm:test_resnet@96", pretrained=False)
    assert (row.crop, row.features) == (96, get_backbone("timm:test_resnet", pretrained=False).features)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match="resnet50"):
        get_backbone("resnet-50")
    with pytest.raises(ConfigError, match=r"timm has no network 'resnet_18'. Did you mean timm:resnet18[,?]"):
        get_backbone("timm:resnet_18")
    with pytest.raises(ConfigError, match=r"Did you mean timm:resnet18.a1_in1k"):
        get_backbone("timm:resnet18.a1_in1")
    with pytest.raises(ConfigError):
        get_backbone("timm:")


def test_a_network_without_published_weights_says_so() -> None:
    timm = import_timm()
    name = next(name for name in timm.list_models("resnet*") if not timm.list_pretrained(f"{name}.*"))
    with pytest.raises(
        ConfigError, match=rf"timm publishes no weights of '{name}': pass a file as `weights=`"
    ):
        get_backbone(f"timm:{name}")
    assert get_backbone(f"timm:{name}", pretrained=False).is_here
    assert get_backbone(f"timm:{name}", weights=__file__).weights == WeightFile(Path(__file__))


@pytest.mark.slow
def test_weights_outside_the_hub_come_by_their_address() -> None:
    timm = import_timm()
    settings = {name: timm.models.get_pretrained_cfg(name) for name in timm.list_pretrained()}
    name = next(name for name, row in settings.items() if row.url and not row.hf_hub_id)
    assert get_backbone(f"timm:{name}").weights == Download(settings[name].url)


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
