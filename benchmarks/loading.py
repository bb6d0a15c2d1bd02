"""Images per second into the network, as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.loading [--out benchmarks/results/loading.json]

Our path decodes in threads and draws large JPEGs at a reduced size; beside it stand a plain Pillow loop, our path
on one thread, and the network that has to be fed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.reporting import arguments_of, show, store
from benchmarks.speed import seconds
from centerhash.core.prefetch import batches_ahead
from centerhash.data.scenes.scenes import render_scene
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import BATCH, pixels_of

BACKBONE = get_backbone(DEFAULT_BACKBONE)
SIZES = {"photos of 2000 x 1500": ((2000, 1500), 12), "photos of 500 x 375": ((500, 375), 64)}


def write_photos(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Emoji scenes drawn large with the noise of a camera, so that their files are as heavy as photos."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        scene = render_scene(number, size=512, hard=True).image.resize(size, Image.Resampling.BICUBIC)
        noise = np.random.default_rng(number).normal(scale=6.0, size=(size[1], size[0], 3))
        noisy = np.clip(np.asarray(scene) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path, quality=90)
    return paths


def plain(paths: Sequence[Path]) -> list[np.ndarray]:
    """What a script would do: open, convert, resize, crop."""
    edge = (BACKBONE.resize - BACKBONE.crop) // 2
    box = (edge, edge, edge + BACKBONE.crop, edge + BACKBONE.crop)
    square = (BACKBONE.resize, BACKBONE.resize)
    return [
        np.asarray(Image.open(path).convert("RGB").resize(square, Image.Resampling.BILINEAR).crop(box))
        for path in paths
    ]


def one_thread(paths: Sequence[Path]) -> list[np.ndarray]:
    """Our decoding without its threads."""
    return [pixels_of(path, BACKBONE) for path in paths]


def threads(paths: Sequence[Path]) -> list[np.ndarray]:
    """Our decoding as features and encoding use it."""
    batches = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]
    futures = batches_ahead(partial(pixels_of, backbone=BACKBONE), batches)
    return [future.result() for batch in futures for future in batch]


def loading(paths: Sequence[Path]) -> dict[str, float]:
    """Images per second of the three ways, and how far our pixels are from the plain ones (of 255)."""
    ways = (plain, one_thread, threads)
    rates = {way.__name__: len(paths) / seconds(partial(way, paths), repeats=3) for way in ways}
    apart = np.abs(np.stack(plain(paths)).astype(int) - np.stack(threads(paths)).astype(int))
    return {
        **{f"{name}_images_per_second": rate for name, rate in rates.items()},
        "one_thread_times_plain": rates["one_thread"] / rates["plain"],
        "threads_times_plain": rates["threads"] / rates["plain"],
        "mean_difference_of_pixels": float(apart.mean()),
    }


def network(batch: int = 32) -> float:
    """Images per second through the backbone, which decoding must not be slower than."""
    loaded = BACKBONE.load()
    images = torch.zeros(batch, BACKBONE.crop, BACKBONE.crop, 3, dtype=torch.uint8)
    with torch.inference_mode():
        return batch / seconds(lambda: loaded(images), repeats=3)


def main() -> None:
    out = arguments_of(__doc__).parse_args().out
    fed = network()
    measured: dict[str, Any] = {"network": {"images_per_second": fed}}
    with tempfile.TemporaryDirectory() as folder:
        for name, (size, count) in SIZES.items():
            found = loading(write_photos(Path(folder) / name, size, count))
            measured[name] = {**found, "threads_times_network": found["threads_images_per_second"] / fed}
            show(name, measured[name])
    store(out, measured)


if __name__ == "__main__":
    main()
