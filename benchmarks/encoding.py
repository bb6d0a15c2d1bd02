"""Images per second from files to codes, as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.encoding [--out benchmarks/results/encoding.json]

The whole path of every engine is compared with a plain PyTorch loop (Pillow, then the network as it was trained, batch by
batch) and with the engine alone on pixels in memory. They take turns, and the ratios are medians over the turns, so that
other work on the machine affects all of them. `cpu_share_of_alone` is the network's part of the CPU time. Decoding is
also measured alone: threads and one thread compared with a plain Pillow loop.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.reporting import arguments_of, show, store
from benchmarks.speed import seconds
from centerhash import hash_centers
from centerhash.codes import binarize, pack
from centerhash.core.parallel import batches_ahead
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import BATCH, Encoder, pixels_of
from centerhash.networks.engines import ENGINES, open_engine
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from tests.shapes import draw_shapes

BACKBONE = get_backbone(DEFAULT_BACKBONE)
BITS, CLASSES = 64, 80
PHOTOS, SLOW, FAST = 32, 32, 128  # files; images per turn of PyTorch and of a compiled engine
SIZES = {
    "photos of 256 x 256": (256, 256),
    "photos of 500 x 375": (500, 375),
    "photos of 4000 x 3000": (4000, 3000),
}
TURNS = 3


def write_photos(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Write drawn shapes, enlarged, with the noise of a camera, so that their files are as large as photos."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        drawn = draw_shapes(number, size=512)[0].resize(size, Image.Resampling.BICUBIC)
        noise = np.random.default_rng(number).normal(scale=6.0, size=(size[1], size[0], 3))
        noisy = np.clip(np.asarray(drawn) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path, quality=90)
    return paths


# Decoding


def plain(paths: Sequence[Path]) -> list[np.ndarray]:
    """Open, convert, resize and crop, as a script would do."""
    edge = (BACKBONE.resize - BACKBONE.crop) // 2
    box = (edge, edge, edge + BACKBONE.crop, edge + BACKBONE.crop)
    square = (BACKBONE.resize, BACKBONE.resize)
    return [
        np.asarray(Image.open(path).convert("RGB").resize(square, Image.Resampling.BILINEAR).crop(box))
        for path in paths
    ]


def threads(paths: Sequence[Path]) -> list[np.ndarray]:
    """Decode as features and encoding do."""
    batches = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]
    futures = batches_ahead(partial(pixels_of, backbone=BACKBONE), batches)
    return [future.result() for batch in futures for future in batch]


def decoding(paths: Sequence[Path]) -> dict[str, float]:
    """Return images per second of the plain loop, of one thread and of threads, and how far our pixels are off."""
    ways: dict[str, Callable[[], Any]] = {
        "plain": partial(plain, paths),
        "one_thread": lambda: [pixels_of(path, BACKBONE) for path in paths],
        "threads": partial(threads, paths),
    }
    rates = {name: len(paths) / seconds(work, repeats=3) for name, work in ways.items()}
    apart = np.abs(np.stack(plain(paths)).astype(int) - np.stack(threads(paths)).astype(int))
    return {
        **{f"{name}_images_per_second": rate for name, rate in rates.items()},
        "one_thread_times_plain": rates["one_thread"] / rates["plain"],
        "threads_times_plain": rates["threads"] / rates["plain"],
        "mean_difference_of_pixels": float(apart.mean()),
    }


# The whole path


def untrained_model() -> HashModel:
    """Return a model of the default shape; its training makes no difference to its speed."""
    spec = ModelSpec(
        method="ics",
        options={},
        bits=BITS,
        features=BACKBONE.features,
        classes=tuple(f"class {number}" for number in range(CLASSES)),
        head=HeadOptions(),
        backbone=BACKBONE.name,
        crop=BACKBONE.crop,
        pool=BACKBONE.pool,
        seed=0,
    )
    head = build_head(BACKBONE.features, BITS, spec.head).state_dict()
    centers = torch.from_numpy(hash_centers(CLASSES, BITS))
    return HashModel(spec, {**{f"encoder.{name}": value for name, value in head.items()}, "centers": centers})


def eager(paths: Sequence[Path], batch: int = 32) -> Callable[[], Any]:
    """Return a plain loop: decode a batch, run the network with its batch norms, take the signs of the head."""
    network = BACKBONE.trainable().eval()
    head = build_head(BACKBONE.features, BITS, HeadOptions()).eval()

    def work() -> list[np.ndarray]:
        codes = []
        for start in range(0, len(paths), batch):
            pixels = torch.from_numpy(np.stack(plain(paths[start : start + batch])))
            with torch.inference_mode():
                codes.append(pack(binarize(head(network(pixels)).logits.numpy())))
        return codes

    return work


def whole_path(paths: Sequence[Path], model: HashModel, encoder: Encoder) -> np.ndarray:
    """Return the codes of files as `encode` computes them, without a cache."""
    return pack(model.encode_features(encoder.features(paths)))


@dataclass
class Work:
    """Something that handles images, and how long each turn of it took per image."""

    count: int
    run: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def take_turn(self) -> None:
        """Run once and note the times."""
        clock, processor = time.perf_counter(), time.process_time()
        self.run()
        self.seconds.append((time.perf_counter() - clock) / self.count)
        self.cpu_seconds.append((time.process_time() - processor) / self.count)

    @property
    def rate(self) -> float:
        """Images per second."""
        return 1 / statistics.median(self.seconds)


def encoding(files: dict[str, list[Path]], folder: Path) -> dict[str, Any]:
    """Measure every engine that is installed, and the plain loop."""
    model, shape = untrained_model(), (FAST, BACKBONE.crop, BACKBONE.crop, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    loops = {size: Work(PHOTOS, eager(paths)) for size, paths in files.items()}
    limits, wholes = {}, {}
    for name in (row.name for row in ENGINES.values() if row.is_here):
        engine, count = (
            open_engine(BACKBONE, name, folder=folder / "networks"),
            SLOW if name == "torch" else FAST,
        )
        encoder = Encoder(BACKBONE, device="cpu", engine=engine)
        limits[name] = Work(count, partial(engine.features, pixels[:count]))
        for size, paths in files.items():
            some = (paths * (count // PHOTOS))[:count]
            wholes[name, size] = Work(count, partial(whole_path, some, model, encoder))
    works = [*loops.values(), *limits.values(), *wholes.values()]
    for work in works:
        work.run()  # compiles and fills caches, and does not count
    for _ in range(TURNS):
        for work in works:
            work.take_turn()
    result: dict[str, Any] = {
        "alone": {name: {"images_per_second": row.rate} for name, row in limits.items()}
    }
    for size, loop in loops.items():
        result[size] = {"eager": {"images_per_second": loop.rate}}
        for name, limit in limits.items():
            work = wholes[name, size]
            result[size][name] = {
                "images_per_second": work.rate,
                "times_eager": _median_ratio(loop.seconds, work.seconds),
                "share_of_alone": _median_ratio(limit.seconds, work.seconds),
                "cpu_share_of_alone": _median_ratio(limit.cpu_seconds, work.cpu_seconds),
            }
    return result


def _median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def main() -> None:
    """Measure, print and store."""
    out = arguments_of(__doc__).parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        files = {name: write_photos(Path(folder) / name, size, PHOTOS) for name, size in SIZES.items()}
        measured = encoding(files, Path(folder))
        for name, paths in files.items():
            measured[name]["decoding"] = decoding(paths)
    for group, rows in measured.items():
        for name, figures in rows.items():
            show(f"{group}, {name}", figures)
    store(out, {"backbone": BACKBONE.name, **measured}, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
