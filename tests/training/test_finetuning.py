from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from centerhash.core.errors import ImageError
from centerhash.networks.backbones import get_backbone
from centerhash.training.finetuning import WholeNetwork, augmented, find_broken, image_inputs
from tests.toys import noise_image, write_images

BACKBONE = get_backbone("efficientnet-lite0")


def gradient_image(width: int, height: int) -> Image.Image:
    """Red grows to the right and green downwards, so that a pixel tells where it came from."""
    across = np.tile(np.linspace(0, 255, width), (height, 1))
    down = np.tile(np.linspace(0, 255, height), (width, 1)).T
    return Image.fromarray(np.stack([across, down, np.zeros((height, width))], axis=2).astype(np.uint8))


def test_a_crop_is_a_part_of_the_frame_and_sometimes_flipped(tmp_path: Path) -> None:
    path = tmp_path / "gradient.png"
    gradient_image(400, 300).save(path)
    share = BACKBONE.crop / BACKBONE.resize  # of the frame, on each side
    lefts, flips = set(), set()
    for seed in range(24):
        pixels = augmented(path, BACKBONE, np.random.default_rng(seed)).astype(float)
        assert pixels.shape == (BACKBONE.crop, BACKBONE.crop, 3)
        red, green = pixels[0, :, 0], pixels[:, 0, 1]
        flips.add(bool(red[0] > red[-1]))
        lefts.add(round(min(red[0], red[-1])))
        assert abs(abs(red[-1] - red[0]) - 255 * share) < 3
        assert abs((green[-1] - green[0]) - 255 * share) < 3  # never upside down
    assert flips == {True, False}
    assert len(lefts) > 5


def test_a_crop_has_the_pixels_of_the_squashed_frame(tmp_path: Path) -> None:
    """But for its border, where the filter may not look beyond the crop."""
    path = tmp_path / "noise.png"
    noise_image(512, seed=3).save(path)
    generator = np.random.default_rng(5)
    left, top = generator.integers(0, BACKBONE.resize - BACKBONE.crop + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    square = np.asarray(
        Image.open(path).resize((BACKBONE.resize, BACKBONE.resize), Image.Resampling.BILINEAR)
    )
    expected = square[top : top + BACKBONE.crop, left : left + BACKBONE.crop].astype(int)
    expected = expected[:, ::-1] if flipped else expected
    found = augmented(path, BACKBONE, np.random.default_rng(5)).astype(int)
    assert np.abs(found - expected)[2:-2, 2:-2].max() <= 1


def test_batches_come_in_order_and_only_seed_epoch_and_image_decide_them(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 7)
    inputs = image_inputs(paths, BACKBONE, seed=4)
    batches = [
        torch.tensor([2, 0]),
        torch.tensor([5]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([6, 1, 3]),
    ]
    first = list(inputs(batches, 1))
    assert [batch.shape[0] for batch in first] == [2, 1, 0, 3]
    assert all(batch.dtype == torch.uint8 and batch.shape[1:] == (224, 224, 3) for batch in first)
    again = list(inputs(list(reversed(batches)), 1))
    assert all(torch.equal(one, two) for one, two in zip(first, reversed(again), strict=True))
    other = list(inputs(batches, 2))
    assert not torch.equal(first[0], other[0])
    expected = augmented(paths[5], BACKBONE, np.random.default_rng((4, 1, 5)))
    assert np.array_equal(first[1][0].numpy(), expected)


def test_a_broken_image_is_found_before_the_training(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 4)
    paths[2].write_bytes(b"no picture")
    seen: list[tuple[int, int]] = []
    broken = find_broken(paths, lambda done, total: seen.append((done, total)))
    assert list(broken) == [2]
    assert isinstance(broken[2], ImageError)
    assert seen[-1] == (4, 4)
    with pytest.raises(ImageError, match=r"002\.png"):
        list(image_inputs(paths, BACKBONE, 0)([torch.tensor([1, 2])], 0))


class Tiny(nn.Module):
    """A backbone of one convolution and one batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.permute(0, 3, 1, 2).float()).mean(dim=(2, 3))


def test_the_backbones_statistics_stay_while_its_weights_may_learn() -> None:
    whole = WholeNetwork(Tiny(), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8)))
    assert whole.train() is whole
    norm = whole.backbone.network[1]
    before = norm.running_mean.clone()
    whole(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8)).sum().backward()
    assert torch.equal(norm.running_mean, before)
    assert norm.weight.grad is not None
    assert whole.head[0].training
    assert float(whole.head[0].running_mean.abs().sum()) > 0
    head, backbone = whole.groups(0.1)
    assert (head.factor, backbone.factor) == (1.0, 0.1)
    assert len(head.params) + len(backbone.params) == len(list(whole.parameters()))
