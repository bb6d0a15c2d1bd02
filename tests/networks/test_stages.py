from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from centerhash.core.errors import ConfigError, OutputError
from centerhash.core.progress import silent
from centerhash.networks import maps as maps_module
from centerhash.networks.backbones import get_backbone
from centerhash.networks.encoder import Encoder, pixels_of
from centerhash.networks.engines import open_layers
from centerhash.networks.maps import MapCache, MapTable, compute_maps
from centerhash.networks.stages import split_backbone, stages_of
from centerhash.training import last_stages
from centerhash.training.last_stages import tail_features
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
def test_trunk_and_tail_together_are_the_network(
    name: str, settings: dict[str, object], stages: int | None, shape: tuple[int, ...]
) -> None:
    backbone = get_backbone(name, **settings)  # type: ignore[arg-type]
    split = split_backbone(backbone, stages)
    assert split.shape == shape
    assert split.trunk.features == np.prod(shape)
    assert split.trunk.key != backbone.key
    pixels = torch.randint(0, 256, (2, backbone.crop, backbone.crop, 3), dtype=torch.uint8)
    whole, tail = split.trainable()
    with torch.no_grad():
        maps = split.trunk.load()(pixels).reshape(2, *shape)
        found, expected = tail.eval()(maps), whole.eval()(pixels)
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = open_layers(tail, maps[:1])
    assert compiled is not None  # all families can be compiled
    np.testing.assert_allclose(compiled(maps[1:].numpy()), found[1:], atol=1e-4 * float(found.abs().max()))


def test_features_of_few_images_and_of_many_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = split_backbone(get_backbone("timm:test_resnet", pretrained=False, seed=1))
    cache = MapCache(tmp_path, split.trunk.features)
    keys = [str(row) for row in range(5)]
    cache.write(keys, np.random.default_rng(0).random((5, split.trunk.features)).astype(np.float16))
    maps, tail = MapTable(keys, {False: cache, True: cache}, {}), split.trainable()[1]
    rows = [3, 0, 4, 1]
    few = tail_features(tail, maps, rows, split, torch.device("cpu"), silent)
    monkeypatch.setattr(last_stages, "_WORTH_COMPILING", 4)
    monkeypatch.setattr(last_stages, "_CHUNK", 3)
    many = tail_features(tail, maps, rows, split, torch.device("cpu"), silent)
    np.testing.assert_allclose(few, many, atol=1e-4 * np.abs(few).max())
    assert len(np.unique(many.round(5), axis=0)) == 4


def test_layers_that_cannot_be_compiled_are_left_to_torch() -> None:
    class Eigenvalues(nn.Module):
        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigh(maps[:, 0]).eigenvalues

    with pytest.warns(UserWarning, match="linalg_eigh"):
        assert open_layers(Eigenvalues(), torch.eye(4)[None, None]) is None


def test_the_tail_is_a_part_of_the_whole_network() -> None:
    whole, tail = split_backbone(get_backbone("efficientnet-lite0", crop=64), 1).trainable()
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.add_(1)
    moved = {name for name, tensor in whole.state_dict().items() if not torch.equal(tensor, before[name])}
    own = {name.split(".")[1] + ("." + name.split(".")[2] if "blocks" in name else "") for name in moved}
    assert own == {"blocks.6", "conv_head", "bn2"}


def test_depthwise_kernels_of_the_tail_stay_as_they_are() -> None:
    tail = split_backbone(get_backbone("efficientnet-lite0", pretrained=False)).trainable()[1]
    kernels = [layer for layer in tail.modules() if isinstance(layer, nn.Conv2d)]
    fixed = [layer for layer in kernels if not layer.weight.requires_grad]
    assert [layer.groups for layer in fixed] == [672, 1152, 1152, 1152, 1152]
    assert all(layer.groups == 1 for layer in kernels if layer.weight.requires_grad)
    share = sum(layer.weight.numel() for layer in fixed) / sum(each.numel() for each in tail.parameters())
    assert 0.035 < share < 0.045  # as docs say


def test_networks_and_counts_that_cannot_be_split_are_named() -> None:
    with pytest.raises(ConfigError, match="Linear"):
        stages_of(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="stages=8"):
        split_backbone(get_backbone("efficientnet-lite0", crop=64), 8)


def test_strides_of_the_first_resnet_are_in_the_first_convolution() -> None:
    network = get_backbone("resnet50-v1", pretrained=False).trainable().network
    block = network.layer3[0]  # type: ignore[union-attr, index]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with pytest.raises(ConfigError, match="resnet50-v1"):
        get_backbone("resnet50-v1")


def test_maps_are_computed_once_mirrored_where_asked_and_kept(tmp_path: Path) -> None:
    paths = write_images(tmp_path / "images", 5)
    split = split_backbone(get_backbone("efficientnet-lite0", crop=64), 1)
    calls: list[tuple[object, ...]] = []

    def table() -> maps_module.MapTable:
        encoder = Encoder(split.trunk, device="cpu", engine="torch")
        return compute_maps(
            paths, [1, 3], split.trunk, tmp_path / "cache", encoder, lambda *call: calls.append(call)
        )

    first = table()
    assert calls[0][:3] == ("maps", 0, 5)
    assert calls[-1][:3] == ("maps", 5, 5)
    pixels = np.stack([pixels_of(paths[1], split.trunk), pixels_of(paths[1], split.trunk)[:, ::-1]])
    with torch.no_grad():
        expected = split.trunk.load()(torch.from_numpy(pixels.copy())).numpy()
    found = first.read([1, 1], [False, True])
    assert np.abs(found.astype(np.float32) - expected).max() < 2e-3 * np.abs(expected).max()
    assert np.array_equal(first.read([1]), found[:1])
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.npy")}
    calls.clear()
    assert np.array_equal(table().read([4, 0]), first.read([4, 0]))
    assert calls == [("maps", 5, 5, "")]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.npy")} == stamps


def test_a_damaged_shard_is_computed_again(tmp_path: Path) -> None:
    cache = MapCache(tmp_path, 3)
    cache.write(["a", "b"], np.ones((2, 3), np.float16))
    assert "b" in MapCache(tmp_path, 3)
    assert "b" not in MapCache(tmp_path / "elsewhere", 3)
    [shard] = tmp_path.glob("*.npy")
    shard.write_bytes(shard.read_bytes()[:-3])
    assert "b" not in MapCache(tmp_path, 3)
    assert not list(tmp_path.iterdir())
    cache.write(["a", "b"], np.ones((2, 3), np.float16))
    assert "b" not in MapCache(tmp_path, 4)  # maps of another shape


def test_a_disk_that_is_too_small_is_an_error_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "images", 2)
    split = split_backbone(get_backbone("efficientnet-lite0", crop=64), 1)
    monkeypatch.setattr(maps_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    encoder = Encoder(split.trunk, device="cpu", engine="torch")
    with pytest.raises(OutputError, match="GB free"):
        compute_maps(paths, [], split.trunk, tmp_path / "cache", encoder, lambda *_: None)
