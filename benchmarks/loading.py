"""Images per second into the network, as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.loading [--out benchmarks/results/loading.json]

Our path decodes in threads and draws large JPEGs at a reduced size; beside it stand a plain Pillow loop, our path
on one thread, and the network that has to be fed. Where all cores compute, the network cannot have more of them than its
share of the processor time of all stages: `network_share` is the most that encoding can reach of the network's own speed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.reporting import arguments_of, show, store
from benchmarks.speed import seconds
from centerhash.core.parallel import batches_ahead
from centerhash.data.images import load_image, squash_and_crop
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import BATCH, pixels_of
from centerhash.networks.engines import Engine, open_engine
from reproduction.scenes import render_scene

BACKBONE = get_backbone(DEFAULT_BACKBONE)
SIZES = {
    "photos of 4000 x 3000": ((4000, 3000), 6),
    "photos of 2000 x 1500": ((2000, 1500), 12),
    "photos of 500 x 375": ((500, 375), 64),
    "photos of 256 x 256": ((256, 256), 64),
}


def write_photos(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Emoji scenes drawn large with the noise of a camera, so that their files are as heavy as photos."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        scene = render_scene(number, size=512).image.resize(size, Image.Resampling.BICUBIC)
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


def stages(paths: Sequence[Path], engine: Engine) -> dict[str, float]:
    """Milliseconds of processor time per image: read, decode (at a reduced size where it is large), resize, network."""
    contents = [path.read_bytes() for path in paths]
    decoded = [load_image(data, at_least=2 * BACKBONE.resize) for data in contents]
    pixels = np.stack([squash_and_crop(image, BACKBONE.resize, BACKBONE.crop) for image in decoded])
    work: dict[str, Callable[[], Any]] = {
        "read": lambda: [path.read_bytes() for path in paths],
        "decode": lambda: [load_image(data, at_least=2 * BACKBONE.resize) for data in contents],
        "resize": lambda: [squash_and_crop(image, BACKBONE.resize, BACKBONE.crop) for image in decoded],
        "network": lambda: engine.features(pixels),
    }
    taken = {name: 1000 * _processor_seconds(run) / len(paths) for name, run in work.items()}
    share = taken["network"] / sum(taken.values())
    return {**{f"{name}_ms": value for name, value in taken.items()}, "network_share": share}


def _processor_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


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
    engine = open_engine(BACKBONE)
    measured["engine"] = engine.name
    with tempfile.TemporaryDirectory() as folder:
        for name, (size, count) in SIZES.items():
            paths = write_photos(Path(folder) / name, size, count)
            found = loading(paths)
            measured[name] = {**found, "threads_times_network": found["threads_images_per_second"] / fed}
            measured[name] |= stages(paths, engine)
            show(name, measured[name])
    store(out, measured)


if __name__ == "__main__":
    main()
