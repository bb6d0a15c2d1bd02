"""Images per second from files to codes, as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.encoding [--out benchmarks/results/encoding.json]

Every engine's whole path stands beside a plain PyTorch loop (Pillow, then the network as it was trained, batch by
batch) and beside what the engine alone does with pixels that are there already. They take turns, and the ratios are
medians over the turns, so that other work on the machine touches all of them. Where all cores compute, decoding can
only take turns with the network: `cpu_share_of_alone` is the network's part of the processor time, which the share of
its own limit cannot exceed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loading import plain, write_photos
from benchmarks.reporting import arguments_of, show, store
from centerhash import hash_centers
from centerhash.codes import binarize, pack
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import ENGINES, Engine, open_engine
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head

BACKBONE = get_backbone(DEFAULT_BACKBONE)
BITS, CLASSES = 64, 80
PHOTOS, SLOW, FAST = 32, 32, 128  # files; images per turn of PyTorch and of a compiled engine
SIZES = {
    "photos of 256 x 256": (256, 256),
    "photos of 500 x 375": (500, 375),
    "photos of 4000 x 3000": (4000, 3000),
}
TURNS = 3


def untrained_model() -> HashModel:
    """A model of the default shape; what it was trained on makes no difference to its speed."""
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
    """A plain loop: decode a batch, run the network with its batch norms, take the head's signs."""
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


def whole_path(paths: Sequence[Path], model: HashModel, engine: Engine) -> Callable[[], Any]:
    """Files to codes as `encode` does it, without a cache."""
    encoder = Encoder(BACKBONE, device="cpu", engine=engine)
    return lambda: pack(model.encode_features(encoder.features(paths)))


def alone(count: int, engine: Engine) -> Callable[[], Any]:
    """The engine's own limit: random pixels to features."""
    shape = (count, BACKBONE.crop, BACKBONE.crop, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return lambda: engine.features(pixels)


@dataclass
class Work:
    """Something that handles images; how long each turn of it took per image, on the clock and on the processor."""

    count: int
    run: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def take_turn(self) -> None:
        clock, processor = time.perf_counter(), time.process_time()
        self.run()
        self.seconds.append((time.perf_counter() - clock) / self.count)
        self.cpu_seconds.append((time.process_time() - processor) / self.count)

    @property
    def rate(self) -> float:
        return 1 / statistics.median(self.seconds)


def take_turns(works: Sequence[Work]) -> None:
    """Run every work in every turn, after one call of each that does not count."""
    for work in works:
        work.run()
    for _ in range(TURNS):
        for work in works:
            work.take_turn()


def encoding(folder: Path) -> dict[str, Any]:
    """The figures of every engine that is installed, and of the plain loop."""
    files = {name: write_photos(folder / name, size, PHOTOS) for name, size in SIZES.items()}
    model = untrained_model()
    loops = {size: Work(PHOTOS, eager(paths)) for size, paths in files.items()}
    limits, wholes, starts = {}, {}, {}
    for name in (row.name for row in ENGINES.values() if row.is_here):
        open_engine(BACKBONE, name, folder=folder / "networks")  # the first start converts
        started = time.perf_counter()
        engine = open_engine(BACKBONE, name, folder=folder / "networks")
        starts[name] = time.perf_counter() - started
        count = SLOW if name == "torch" else FAST
        limits[name] = Work(count, alone(count, engine))
        for size, paths in files.items():
            repeated = (paths * (count // PHOTOS))[:count]
            wholes[name, size] = Work(count, whole_path(repeated, model, engine))
    take_turns([*loops.values(), *limits.values(), *wholes.values()])
    result: dict[str, Any] = {}
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
    result["alone"] = {name: {"images_per_second": limit.rate} for name, limit in limits.items()}
    result["start"] = {name: {"second_start_seconds": seconds} for name, seconds in starts.items()}
    return result


def _median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def main() -> None:
    out = arguments_of(__doc__).parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        measured = encoding(Path(folder))
    for group, rows in measured.items():
        for name, figures in rows.items():
            show(f"{group}, {name}", figures)
    store(out, {"backbone": BACKBONE.name, **measured}, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
