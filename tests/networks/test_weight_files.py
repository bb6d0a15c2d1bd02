"""Weight files: where they come from (a server in this process, wheels), what is read, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from centerhash.core.errors import ConfigError, DataError
from centerhash.networks import weight_files
from centerhash.networks.backbones import BACKBONES, backbone_rows, get_backbone, import_torchvision
from centerhash.networks.weight_files import Download, Hub, Wheel, load_weights, read_weights
from tests.hub import Hub as LocalHub
from tests.hub import serving
from tests.toys import cli
from tests.webserver import FileServer

SMALL = "timm:test_resnet"


class Runs:
    """Pickled, it would write a file when it is read."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return Path.touch, (self.victim,)


def small_network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(OrderedDict(body=nn.Conv2d(3, 4, 1), norm=nn.BatchNorm2d(4)))


def state() -> dict[str, Tensor]:
    """The tensors of the small network and of a classifier behind it."""
    torch.manual_seed(2)
    classifier = {"head.weight": torch.randn(5, 4), "head.bias": torch.randn(5)}
    body = {name: (9 * torch.rand(t.shape)).to(t.dtype) for name, t in small_network().state_dict().items()}
    return {**body, **classifier}


def write(path: Path, content: Any) -> Path:
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_read_weights_by_content(tmp_path: Path, name: str) -> None:
    tensors = state()
    stored = read_weights(write(tmp_path / name, tensors).rename(tmp_path / "without_suffix"))
    assert sorted(stored) == sorted(tensors)
    assert all(torch.equal(stored[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("protocol", ["torch", "plain pickle"])
def test_read_weights_without_code(tmp_path: Path, protocol: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "w.pth"
    content = {"weight": torch.zeros(1), "evil": Runs(victim)}
    if protocol == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=r"w\.pth.*safetensors"):
        read_weights(path)
    assert not victim.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no weights at all",
        b"PK\x03\x04 cut",
        b"\x10\0\0\0\0\0\0\0{cut",
        b"\x80\x02",
        [1, 2],
        {},
        {"a": 1},
        {"a": torch.zeros(1), "b": "text"},
        torch.zeros(2),
    ],
)
def test_read_weights_rejects(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(content) if isinstance(content, bytes) else write(path, content)
    with pytest.raises(DataError, match=r"w\.pth"):
        read_weights(path)


@pytest.mark.parametrize("without", ["", "head.", "norm.num_batches_tracked"])
def test_load_weights_without_classifier(tmp_path: Path, without: str) -> None:
    tensors = {k: v for k, v in state().items() if not without or not k.startswith(without)}
    network = small_network()
    load_weights(network, write(tmp_path / "w.safetensors", tensors), ["head"])
    loaded = network.state_dict()
    assert all(torch.equal(loaded[name], tensors[name]) for name in loaded if name in tensors)


def test_load_weights_rejects(tmp_path: Path) -> None:
    tensors = state()
    del tensors["norm.bias"]
    tensors.update({"norm.weight": torch.zeros(7), "headless.weight": torch.zeros(1)})
    with pytest.raises(DataError) as caught:
        load_weights(small_network(), write(tmp_path / "w.pth", tensors), ["head"])
    assert all(name in str(caught.value) for name in ("w.pth", "norm.bias", "headless.weight", "norm.weight"))


def test_missing_weight_file(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.safetensors", state())
    row = get_backbone(SMALL, weights=path)
    path.unlink()
    assert not row.is_local
    for use in (row.load, row.trainable, lambda: row.key, lambda: get_backbone(SMALL, weights=path)):
        with pytest.raises(DataError, match=r"weights\.safetensors"):
            use()


@pytest.mark.parametrize("names", ["wheel", "timm"])
def test_names_of_lite_weights(tmp_path: Path, names: str) -> None:
    row = get_backbone("efficientnet-lite0")
    assert row.weights is not None
    path = row.weights.fetch()
    if names == "timm":
        path = write(tmp_path / "w.safetensors", row.build(row, path).state_dict())
    other = get_backbone("efficientnet-lite0", weights=path)
    images = torch.randint(0, 256, (1, row.crop, row.crop, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(other.load()(images), row.load()(images))


def test_cut_wheel(tmp_path: Path) -> None:
    path = write(tmp_path / "w.pth", {"_conv_stem.weight": torch.zeros(32, 3, 3, 3)})
    with pytest.raises(DataError):
        get_backbone("efficientnet-lite0", weights=path).load()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classifier"), [("alexnet", "classifier.6"), ("resnet50", "fc")])
def test_weights_of_torchvision(monkeypatch: pytest.MonkeyPatch, name: str, classifier: str) -> None:
    """The whole file with its classifier goes in; features and the stored classifier give the whole's logits."""
    torch.manual_seed(4)
    whole = getattr(import_torchvision().models, name)().eval()
    monkeypatch.setattr(weight_files, "read_weights", lambda path: whole.state_dict())
    body = BACKBONES[name].build(BACKBONES[name], Path("weights.pth")).eval()
    pixels = torch.randn(1, 3, 96, 96)
    with torch.inference_mode():
        features = body(pixels)
        assert features.shape == (1, get_backbone(name).features)
        torch.testing.assert_close(whole.get_submodule(classifier)(features), whole(pixels))


REPOSITORY = "timm/test_resnet.r160_in1k"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of torch and of the hub that are empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def published(content: bytes = b"some weights") -> str:
    """A file's path with the begin of its digest, as torchvision's files are named."""
    return f"/models/net-{hashlib.sha256(content).hexdigest()[:8]}.pth"


# Downloads by address


def test_download_once(server: FileServer, caches: Path) -> None:
    path = published()
    server.files[path] = b"some weights"
    source = Download(server.url + path)
    assert source.find() is None
    for _ in range(2):
        assert source.fetch().read_bytes() == b"some weights"
    assert source.find() == caches / "torch" / "hub" / "checkpoints" / path.rpartition("/")[2]
    assert server.asked == [(path, None)]


@pytest.mark.parametrize("fault", ["wrong checksum", "cut connection", "no such file"])
def test_broken_download(server: FileServer, caches: Path, fault: str) -> None:
    path = published()
    if fault != "no such file":
        server.files[path] = b"other weights" if fault == "wrong checksum" else b"some weights"
    server.cuts[path] = [6] if fault == "cut connection" else []
    with pytest.raises(DataError) as caught:
        Download(server.url + path).fetch()
    assert f"{server.url}{path}" in str(caught.value)
    assert list((caches / "torch" / "hub" / "checkpoints").iterdir()) == []


# The hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A local hub in place of the real one."""
    with serving() as running:
        template = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        yield running


def test_hub_weights(hub: LocalHub) -> None:
    whole = get_backbone("timm:test_resnet", pretrained=False)
    network = whole.build(whole, None)
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    classifier = {"fc.weight": torch.zeros(1000, 96), "fc.bias": torch.zeros(1000)}
    hub.put(REPOSITORY, {"model.safetensors": save({**tensors, **classifier})})
    row = get_backbone("timm:test_resnet")
    assert not row.is_local
    images = torch.randint(0, 256, (2, 160, 160, 3), dtype=torch.uint8)
    same = dataclasses.replace(whole, build=lambda *_: network)
    with torch.inference_mode():
        assert torch.equal(row.load()(images), same.load()(images))
    assert row.is_local
    requests = len(hub.requests)
    assert row.key == row.key
    assert len(hub.requests) == requests


@pytest.mark.parametrize("content", [b"no weights", save({"conv1.0.weight": torch.zeros(1)})])
def test_damaged_hub_file(hub: LocalHub, content: bytes) -> None:
    hub.put(REPOSITORY, {"model.safetensors": content})
    with pytest.raises(DataError, match=r"model\.safetensors"):
        get_backbone("timm:test_resnet").load()


def test_repository_without_weights(hub: LocalHub) -> None:
    hub.put(REPOSITORY, {})
    with pytest.raises(DataError, match=r"model\.safetensors"):
        Hub(REPOSITORY).fetch()


# Wheels


def test_missing_package() -> None:
    source = Wheel("no-such-package==0.1.0", "models/w.pth")
    assert source.find() is None
    assert Wheel("numpy", "models/w.pth").find() is None
    with pytest.raises(ConfigError, match="no-such-package"):
        source.fetch()


# The list


def test_backbone_rows(caches: Path) -> None:
    folder = caches / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "resnet50-0676ba61.pth").touch()
    local = {row["name"]: row["weights_here"] for row in backbone_rows()}
    assert (local["efficientnet-lite0"], local["alexnet"], local["resnet50"]) == (True, False, True)


def test_command_lists_backbones() -> None:
    assert cli("backbones", "--json").json == backbone_rows()
    text = cli("backbones").out
    assert all(name in text for name in (*BACKBONES, "57,003,840", "mean+max"))
