"""Networks of timm by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from centerhash.core.errors import ConfigError
from centerhash.networks.backbones import get_backbone, import_timm
from centerhash.networks.backbones.sources import Download, Hub, WeightFile


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


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "test_resnet"])
def test_a_row_keeps_its_promises(name: str) -> None:
    row = get_backbone(f"timm:{name}", pretrained=False)
    network = row.trainable()
    found = network(torch.randint(0, 256, (2, row.crop, row.crop, 3), dtype=torch.uint8))
    assert found.shape == (2, row.features)
    assert sum(parameter.numel() for parameter in network.parameters()) == row.parameters
    with torch.inference_mode():
        once = row.load()(torch.zeros(1, row.crop, row.crop, 3, dtype=torch.uint8))
    assert once.shape == (1, row.features)


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


def test_an_unknown_name_gives_the_nearest() -> None:
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
