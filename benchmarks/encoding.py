"""Images per second from files to codes, as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.encoding [--out benchmarks/results/encoding.json]

The whole path of every engine is compared with a plain PyTorch loop (Pillow, then the network as it was trained, batch by
batch) and with the engine alone on pixels in memory. Decoding by threads is compared with a plain Pillow loop. They take
turns, and the ratios are medians over the turns, so that other work on the machine affects all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.reporting import arguments_of, show, store
from centerhash import Dataset, train
from centerhash.codes import binarize, pack
from centerhash.core.parallel import batches_ahead
from centerhash.model.model import HashModel
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.encoder import BATCH_SIZE, Encoder, pixels_of
from centerhash.networks.engines import ENGINES, open_engine
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from tests.shapes import draw_shapes

BACKBONE = get_backbone(DEFAULT_BACKBONE)
BITS, CLASSES = 64, 80
FILES, IMAGES_IN_MEMORY = 32, 128
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
        image = draw_shapes(number, size=512)[0].resize(size, Image.Resampling.BICUBIC)
        noise = np.random.default_rng(number).normal(scale=6.0, size=(size[1], size[0], 3))
        noisy = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path, quality=90)
    return paths


def decoded(paths: Sequence[Path]) -> list[np.ndarray]:
    """Open, convert, resize and crop, as a script would do."""
    edge = (BACKBONE.resize - BACKBONE.crop) // 2
    box = (edge, edge, edge + BACKBONE.crop, edge + BACKBONE.crop)
    square = (BACKBONE.resize, BACKBONE.resize)
    return [
        np.asarray(Image.open(path).convert("RGB").resize(square, Image.Resampling.BILINEAR).crop(box))
        for path in paths
    ]


def decoded_by_threads(paths: Sequence[Path]) -> list[np.ndarray]:
    """Decode as the encoder does."""
    batches = [paths[start : start + BATCH_SIZE] for start in range(0, len(paths), BATCH_SIZE)]
    futures = batches_ahead(partial(pixels_of, backbone=BACKBONE), batches)
    return [future.result() for batch in futures for future in batch]


def model_of_noise() -> HashModel:
    """Return a model of the default shape, trained on noise, which makes no difference to its speed."""
    features = np.random.default_rng(0).standard_normal((4 * CLASSES, BACKBONE.features), np.float32)
    data = Dataset.from_arrays(features, np.tile(np.eye(CLASSES, dtype=bool), (4, 1)))
    return train(data, method="ics", bits=BITS, epochs=1, progress=False)


def eager(paths: Sequence[Path]) -> Callable[[], Any]:
    """Return a plain loop: decode, run the network with its batch norms, binarize the logits of the head."""
    network = BACKBONE.trainable().eval()
    head = build_head(BACKBONE.features, BITS, HeadOptions()).eval()

    def work() -> np.ndarray:
        with torch.inference_mode():
            return pack(binarize(head(network(torch.from_numpy(np.stack(decoded(paths))))).logits.numpy()))

    return work


def encoding(files: dict[str, list[Path]], folder: Path) -> dict[str, dict[str, float]]:
    """Measure all installed engines and the plain loops; return the results by size of the photos."""
    model, shape = model_of_noise(), (IMAGES_IN_MEMORY, BACKBONE.crop, BACKBONE.crop, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def packed_codes(encoder: Encoder, paths: list[Path]) -> np.ndarray:
        return pack(model.encode_features(encoder.features(paths)))

    works: dict[tuple[str, str], Callable[[], Any]] = {}
    for name in (engine for engine, library in ENGINES.items() if find_spec(library)):
        engine = open_engine(BACKBONE, name, folder=folder / "networks")
        encoder = Encoder(BACKBONE, device="cpu", engine=engine)
        works["alone", name] = partial(engine.features, pixels)
        for size, paths in files.items():
            works[size, name] = partial(packed_codes, encoder, paths)
    for size, paths in files.items():
        works[size, "eager"] = eager(paths)
        works[size, "decoded"] = partial(decoded, paths)
        works[size, "threads"] = partial(decoded_by_threads, paths)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    # The first turn compiles and fills caches, and does not count.
    for _ in range(1 + TURNS):
        for key, work in works.items():
            started = time.perf_counter()
            work()
            seconds[key].append(
                (time.perf_counter() - started) / (IMAGES_IN_MEMORY if key[0] == "alone" else FILES)
            )

    def ratio(first: tuple[str, str], second: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(seconds[first][1:], seconds[second][1:], strict=True))

    figures: dict[str, dict[str, float]] = {size: {} for size in ("alone", *files)}
    for (size, name), times in seconds.items():
        figures[size][f"{name}_images_per_second"] = 1 / statistics.median(times[1:])
        if size != "alone" and ("alone", name) in works:
            figures[size][f"{name}_times_eager"] = ratio((size, "eager"), (size, name))
            figures[size][f"{name}_share_of_alone"] = ratio(("alone", name), (size, name))
    return figures


def main() -> None:
    """Measure, print and store."""
    out = arguments_of(__doc__).parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        files = {name: write_photos(Path(folder) / name, size, FILES) for name, size in SIZES.items()}
        measured = encoding(files, Path(folder))
    for size, figures in measured.items():
        show(size, figures)
    store(out, {"backbone": BACKBONE.name, **measured}, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
