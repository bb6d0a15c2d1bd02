"""Small networks and models of them, quick to convert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash import hash_centers
from centerhash.data.images import squash_and_crop
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from centerhash.networks.weight_files import WeightFile
from tests.toys import CLASSES, noise_image, write_images

SMALL = "timm:test_efficientnet"
SIDE = 16


class Colors(nn.Module):
    """The mean color of an image (B, 3, H, W), changed by any function."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, images: Tensor) -> Tensor:
        return self.change(images.mean(dim=(2, 3)))


def colors(change: Callable[[Tensor], Tensor] = torch.sin, weights: Path | None = None) -> Backbone:
    """A backbone of three features; `weights` names a file that stands for its weights."""
    return Backbone(
        name="colors",
        width=3,
        parameters=0,
        resize=SIDE,
        crop=SIDE,
        shift=(127.0, 127.0, 127.0),
        scale=(128.0, 128.0, 128.0),
        weights=None if weights is None else WeightFile(weights),
        build=lambda *_: Colors(change),
    )


def small_backbone() -> Backbone:
    """A convolutional network of timm with random weights, another crop and another pooling."""
    return get_backbone(SMALL, pretrained=False, crop=128, pool="mean+max")


def pictures(backbone: Backbone, count: int) -> NDArray[np.uint8]:
    """Different pictures (count, crop, crop, 3) as a backbone reads them."""
    return np.stack(
        [
            squash_and_crop(noise_image(96, seed), backbone.resize, backbone.crop, backbone.interpolation)
            for seed in range(count)
        ]
    )


def untrained_model(bits: int = 20, **changes: object) -> HashModel:
    """A central model of the small backbone, with a head of random weights and the features' statistics."""
    backbone = small_backbone()
    with torch.inference_mode():
        features = backbone.load()(torch.from_numpy(pictures(backbone, 16)))
    spec = ModelSpec(
        method="ics",
        options={},
        bits=bits,
        features=backbone.features,
        classes=CLASSES,
        head=HeadOptions(hidden=(32,)),
        backbone=SMALL,
        pretrained=False,
        crop=backbone.crop,
        pool=backbone.pool,
        label_threshold=0.25,
        seed=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        head = build_head(spec.features, bits, spec.head)
        for layer in head:
            if isinstance(layer, nn.BatchNorm1d):
                # The statistics are those of the next batch.
                layer.momentum = None
        with torch.no_grad():
            head(features.clone())
    tensors = {f"encoder.{name}": tensor for name, tensor in head.state_dict().items()}
    centers = torch.from_numpy(hash_centers(len(CLASSES), bits))
    return HashModel(spec.model_copy(update=changes), {**tensors, "centers": centers})


def write_labeled_images(folder: Path, count: int, size: int = 64) -> Path:
    """Write pictures with a labels.csv; every picture has one to three of four labels."""
    labels = np.random.default_rng(1).random((count, 4)) < 0.4
    labels[:, 0] |= ~labels.any(axis=1)
    lines = ["file_name,labels"]
    for path, row in zip(write_images(folder, count, size), labels, strict=True):
        lines.append(f"{path.name},{'|'.join(CLASSES[column] for column in np.flatnonzero(row))}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder
