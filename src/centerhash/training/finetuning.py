"""Whole networks: backbone and head trained together on augmented images (Sec. 4.3).

An image is squashed to the backbone's frame, cropped at a random place and flipped every other time; the place is
drawn from (seed, epoch, image) alone, so a run that goes on repeats what an unbroken run would have seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.core.errors import DataError, ImageError
from centerhash.core.files import atomic
from centerhash.core.prefetch import batches_ahead
from centerhash.data.images import ImageSource, load_image
from centerhash.networks.backbones import Backbone
from centerhash.networks.heads import HeadOutput
from centerhash.training.loop import Inputs, ParameterGroup

_AHEAD = 3  # batches that are decoded while one is in use


class WholeNetwork(nn.Module):
    """A backbone and a head, uint8 images (B, H, W, 3) in, the head's output out.

    The backbone's batch norms keep the statistics of its first training: those of small batches are noise, and
    several processes then agree without talking.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything but the backbone's batch norms."""
        super().train(mode)
        for layer in self.backbone.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        return self

    def forward(self, images: Tensor) -> HeadOutput:
        """What the head reads from a batch."""
        output: HeadOutput = self.head(self.backbone(images))
        return output

    def groups(self, backbone_rate: float) -> list[ParameterGroup]:
        """The head's parameters, and the backbone's at the share `backbone_rate` of the learning rate."""
        return [
            ParameterGroup(self.head.parameters()),
            ParameterGroup(self.backbone.parameters(), backbone_rate),
        ]


def augmented(source: ImageSource, backbone: Backbone, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Pixels (crop, crop, 3) of one image at a random place of its frame, flipped every other time."""
    image = load_image(source, at_least=2 * backbone.resize)
    left, top = generator.integers(0, backbone.resize - backbone.crop + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    # one resampling straight to the crop gives the pixels of squashing the whole frame first, but for its border
    step_x, step_y = image.width / backbone.resize, image.height / backbone.resize
    box = (left * step_x, top * step_y, (left + backbone.crop) * step_x, (top + backbone.crop) * step_y)
    filter_kind = Image.Resampling[backbone.interpolation.upper()]
    pixels = np.asarray(image.resize((backbone.crop, backbone.crop), filter_kind, box=box))
    return np.ascontiguousarray(pixels[:, ::-1] if flipped else pixels)


def image_inputs(sources: Sequence[ImageSource], backbone: Backbone, seed: int) -> Inputs:
    """What the training loop reads: augmented images (B, crop, crop, 3) uint8, decoded in threads ahead of it."""

    def decode(place: int, epoch: int) -> NDArray[np.uint8]:
        return augmented(sources[place], backbone, np.random.default_rng((seed, epoch, place)))

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        places = (batch.tolist() for batch in batches)
        for futures in batches_ahead(lambda place: decode(place, epoch), places, _AHEAD, most_threads=16):
            pixels = [future.result() for future in futures]
            shape = (len(pixels), backbone.crop, backbone.crop, 3)
            yield torch.from_numpy(np.stack(pixels) if pixels else np.zeros(shape, np.uint8))

    return inputs


def find_broken(
    sources: Sequence[ImageSource], progress: Callable[[int, int], None] | None = None
) -> dict[int, ImageError]:
    """Which images cannot be decoded, by place: better known before a training of hours than in its middle."""

    def problem(source: ImageSource) -> ImageError | None:
        try:
            load_image(source, at_least=64)
        except ImageError as error:
            return error
        return None

    broken = {}
    with ThreadPoolExecutor(max_workers=min(16, (os.cpu_count() or 1) + 1)) as pool:
        for place, found in enumerate(pool.map(problem, sources)):
            if found is not None:
                broken[place] = found
            if progress is not None and (place % 64 == 0 or place + 1 == len(sources)):
                progress(place + 1, len(sources))
    return broken


def write_backbone(network: WholeNetwork, path: Path) -> None:
    """Store the tuned backbone as `get_backbone(name, weights=path)` reads it."""
    normalised = network.backbone
    if not isinstance(normalised.network, nn.Module):
        raise DataError("the backbone has no network inside: it was not made by Backbone.trainable.")
    tensors = {name: tensor.contiguous() for name, tensor in normalised.network.state_dict().items()}
    with atomic(path) as stream:
        stream.write(save(tensors))
