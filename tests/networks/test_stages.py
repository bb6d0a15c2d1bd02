"""Backbones in two parts, and the maps between them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from centerhash.core.errors import ConfigError, OutputError
from centerhash.core.progress import Progress, silent
from centerhash.networks.backbones import get_backbone
from centerhash.networks.encoder import Encoder, pixels_of
from centerhash.networks.stages import MapTable, compute_maps, split_backbone, stages_of
from tests.toys import write_images


@pytest.mark.parametrize(
    ("name", "settings", "stages", "shape"),
    [
        ("efficientnet-lite0", {"crop": 64}, None, (112, 4, 4)),
        ("efficientnet-lite0", {"crop": 64}, 1, (192, 2, 2)),
        ("resnet50", {"pretrained": False, "crop": 64, "pool": "mean+max"}, None, (1024, 4, 4)),
        ("resnet50-v1", {"pretrained": False, "crop": 64}, 2, (512, 8, 8)),
        ("alexnet", {"pretrained": False, "crop": 64}, None, (256, 6, 6)),
        ("timm:test_resnet", {"pretrained": False}, None, (192, 10, 10)),
        ("timm:test_vit", {"pretrained": False}, None, (101, 64)),
    ],
)
def test_split_backbone(
    name: str, settings: dict[str, Any], stages: int | None, shape: tuple[int, ...]
) -> None:
    backbone = get_backbone(name, **settings)
    split = split_backbone(backbone, stages)
    assert split.shape == shape
    assert split.trunk.features == np.prod(shape)
    assert split.trunk.key != backbone.key
    pixels = torch.randint(0, 256, (2, backbone.crop, backbone.crop, 3), dtype=torch.uint8)
    whole, tail = split.trainable()
    with torch.no_grad():
        maps = split.trunk.load()(pixels).reshape(2, *shape)
        features, expected = tail.eval()(maps), whole.eval()(pixels)
    assert torch.allclose(features, expected, atol=1e-4 * float(expected.abs().max()))


def test_tail_shares_layers() -> None:
    whole, tail = split_backbone(get_backbone("efficientnet-lite0", crop=64), 1).trainable()
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.add_(1)
    moved = {name for name, tensor in whole.state_dict().items() if not torch.equal(tensor, before[name])}
    parts = {".".join(name.split(".")[1 : 3 if "blocks" in name else 2]) for name in moved}
    assert parts == {"blocks.6", "conv_head", "bn2"}


def test_depthwise_kernels_are_fixed() -> None:
    tail = split_backbone(get_backbone("efficientnet-lite0", pretrained=False)).trainable()[1]
    kernels = [layer for layer in tail.modules() if isinstance(layer, nn.Conv2d)]
    fixed = [layer.groups for layer in kernels if not layer.weight.requires_grad]
    assert fixed == [672, 1152, 1152, 1152, 1152]
    assert all(layer.groups == 1 for layer in kernels if layer.weight.requires_grad)


def test_split_backbone_rejects() -> None:
    with pytest.raises(ConfigError, match="Linear"):
        stages_of(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="stages=8"):
        split_backbone(get_backbone("efficientnet-lite0", crop=64), 8)


def test_strides_of_resnet_v1() -> None:
    network: Any = get_backbone("resnet50-v1", pretrained=False).trainable().network
    block = network.layer3[0]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))


# Maps


SPLIT = split_backbone(get_backbone("efficientnet-lite0", crop=64), 1)


def maps_of(paths: list[Path], flipped: list[int], cache: Path, progress: Progress = silent) -> MapTable:
    encoder = Encoder(SPLIT.trunk, device="cpu", engine="torch")
    return compute_maps(paths, flipped, encoder, cache, progress)


def test_compute_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, cache = write_images(tmp_path / "images", 5), tmp_path / "cache"
    paths[2].write_bytes(b"no picture")
    calls: list[tuple[int, int]] = []
    first = maps_of(paths, [1, 2, 3], cache, lambda stage, *call: calls.append(call[:2]))
    assert (calls[0], calls[-1]) == ((0, 8), (8, 8))
    assert list(first.broken) == [2]
    pixels = pixels_of(paths[1], SPLIT.trunk)
    with torch.no_grad():
        both = torch.from_numpy(np.stack([pixels, pixels[:, ::-1]]))
        expected = SPLIT.trunk.load()(both).numpy()
    maps = np.concatenate([first.read([1]), first.read([1], mirrored=True)])
    assert maps.dtype == np.float16
    assert np.abs(maps.astype(np.float32) - expected).max() < 2e-3 * np.abs(expected).max()
    assert np.array_equal(first.read([1]), maps[:1])
    monkeypatch.setattr(Encoder, "pixels", lambda *_: pytest.fail("a cached image was decoded"))
    paths.pop(2)
    again = maps_of(paths, [1, 2], cache)
    assert np.array_equal(again.read([3, 0]), first.read([4, 0]))


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "images", 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    with pytest.raises(OutputError, match="GB free"):
        maps_of(paths, [], tmp_path / "cache")
