"""Measure how well duplicates are found: copies of real photos among other photos.

    python -m benchmarks.duplicates --photos FOLDER [--out benchmarks/results/duplicates.json] [--choose]

The library has 3,000 photos of the folder, and a changed copy of 100 of them for each kind of change. The first and each
other file of every group are a reported pair. Recall is the share of the 100 pairs that are reported. Precision is the
share of right pairs among all reported pairs with a copy of that kind. `strangers` counts reported pairs without a copy.

`--choose` chooses both thresholds on other photos instead, and stores the whole grid. Candidates are the pairs of hash
bits and correlation that report no wrong pair and whose mean recall is within 0.005 of the best. The one that compares
the fewest pictures is chosen, then the strictest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from benchmarks.reporting import arguments_of, store
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, bars
from centerhash.data.images import load_image
from centerhash.photos import duplicates
from centerhash.photos.duplicates import CORRELATION, HASH_BITS, Alignment, aligned_hits, near_groups
from centerhash.photos.pixels import SIDE, Picture, picture_of, view_boxes

LIBRARY, COPIES, COPY_SUFFIX = 3_000, 100, "-copy.jpg"
Pair = tuple[str, str]  # sorted


def cropped(share: float) -> Callable[[Image.Image, np.random.Generator], Image.Image]:
    """Return a crop of this share of the sides at a random position."""

    def crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width, height = round(image.width * share), round(image.height * share)
        left = int(generator.integers(0, image.width - width + 1))
        top = int(generator.integers(0, image.height - height + 1))
        return image.crop((left, top, left + width, top + height))

    return crop


def screenshot(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return the photo on the screen of a phone, as wide as the screen, with a clock and buttons on plain bars."""
    dark = generator.random() < 0.5
    canvas = Image.new("RGB", (360, 640), (0, 0, 0) if dark else (250, 250, 250))
    resized = image.resize((360, int(generator.integers(220, 480))))
    canvas.paste(resized, (0, (640 - resized.height) // 2))
    draw, ink = ImageDraw.Draw(canvas), (230, 230, 230) if dark else (30, 30, 30)
    draw.text((14, 8), "12:30", fill=ink)
    draw.rectangle((320, 10, 344, 18), outline=ink)
    for column in (90, 180, 270):
        draw.ellipse((column - 7, 612, column + 7, 626), outline=ink)
    return canvas


CHANGES: dict[str, tuple[int, Callable[[Image.Image, np.random.Generator], Image.Image]]] = {
    "recompressed": (50, lambda image, _: image),
    "resized to half": (90, lambda image, _: image.resize((image.width // 2, image.height // 2))),
    "grey": (90, lambda image, _: image.convert("L")),
    "brightened by 30 %": (90, lambda image, _: ImageEnhance.Brightness(image).enhance(1.3)),
    "mirrored": (90, lambda image, _: ImageOps.mirror(image)),
    "flipped": (90, lambda image, _: ImageOps.flip(image)),
    "rotated by 90°": (90, lambda image, _: image.transpose(Image.Transpose.ROTATE_90)),
    "rotated by 180°": (90, lambda image, _: image.transpose(Image.Transpose.ROTATE_180)),
    "rotated by 270°": (90, lambda image, _: image.transpose(Image.Transpose.ROTATE_270)),
    "transposed": (90, lambda image, _: image.transpose(Image.Transpose.TRANSPOSE)),
    "transverse": (90, lambda image, _: image.transpose(Image.Transpose.TRANSVERSE)),
    "cropped to 90 %": (90, cropped(0.9)),
    "cropped to 80 %": (90, cropped(0.8)),
    "cropped to 70 %": (90, cropped(0.7)),
    "cropped to 60 %": (90, cropped(0.6)),
    "screenshot": (90, screenshot),
}


def pair_of(first: str, second: str) -> Pair:
    """Return two names as a pair."""
    return min(first, second), max(first, second)


def make_library(photos: Path, library: Path, part: int) -> dict[Pair, str]:
    """Write a library, and return its pairs of photo and copy with their kind of change."""
    files = sorted(photos.iterdir())
    generator = np.random.default_rng(0)
    order = generator.permutation(len(files))[part * LIBRARY : (part + 1) * LIBRARY]
    selected = [files[row] for row in order.tolist()]
    library.mkdir(parents=True)
    for file in selected:
        (library / file.name).write_bytes(file.read_bytes())
    pairs: dict[Pair, str] = {}
    for number, (name, (quality, change)) in enumerate(CHANGES.items()):
        for file in selected[number * COPIES : (number + 1) * COPIES]:
            with Image.open(file) as stored:
                image = stored.convert("RGB")
            copy = f"{file.stem}{COPY_SUFFIX}"
            change(image, generator).save(library / copy, quality=quality)
            pairs[pair_of(file.name, copy)] = name
    return pairs


def recall_and_precision(reported: set[Pair], pairs: dict[Pair, str]) -> dict[str, Any]:
    """Compute recall and precision of each kind of change."""
    kind_of = {name: kind for pair, kind in pairs.items() for name in pair if name.endswith(COPY_SUFFIX)}
    rows: dict[str, Any] = {}
    for kind in CHANGES:
        right = sum(pairs.get(pair) == kind for pair in reported)
        touched = sum(any(kind_of.get(name) == kind for name in pair) for pair in reported)
        rows[kind] = {
            "recall": right / COPIES,
            "precision": round(right / touched, 4) if touched else None,
            "wrong": touched - right,
        }
    rows["strangers"] = sum(not any(name in kind_of for name in pair) for pair in reported)
    return rows


def read_pictures(folder: Path, progress: Progress) -> tuple[list[str], list[Picture]]:
    """Return the names of all files, the largest first, and their pictures."""
    files = sorted(folder.iterdir(), key=lambda file: (-file.stat().st_size, file.name))
    pictures, broken = read_all(
        lambda file: picture_of(load_image(file, at_least=2 * SIDE)),
        dict(enumerate(files)),
        "pixels",
        progress,
    )
    for error in broken.values():
        raise error
    return [file.name for file in files], [pictures[row] for row in range(len(files))]


def reported_pairs(names: Sequence[str], pictures: Sequence[Picture], progress: Progress) -> set[Pair]:
    """Return the pairs of the first and each other file of every group."""
    groups = near_groups(pictures, progress)
    return {pair_of(names[group[0]], names[other]) for group in groups for other in group[1:]}


HASH_GRID, CORRELATION_GRID = (8, 10, 12, 14), (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
RECALL_TOLERANCE = 0.005


def choose_thresholds(folder: Path, pairs: dict[Pair, str], progress: Progress) -> dict[str, Any]:
    """Measure all thresholds, and choose as described at the top of this module.

    Pictures are compared once, at the loosest thresholds: those that stricter ones would compare are among them.
    """
    names, pictures = read_pictures(folder, progress)
    compared: list[Alignment] = []

    def at_loosest(pictures: Any, rows: Any, radius: int, report: Progress) -> list[Alignment]:
        compared[:] = compared or aligned_hits(pictures, rows, max(HASH_GRID), report)
        return [hit for hit in compared if hit.bits <= radius]

    grid = []
    for bits, correlation in product(HASH_GRID, CORRELATION_GRID):
        with patch.multiple(duplicates, HASH_BITS=bits, CORRELATION=correlation, aligned_hits=at_loosest):
            reported = reported_pairs(names, pictures, progress)
        rows = recall_and_precision(reported, pairs)
        wrong = rows.pop("strangers") + sum(row["wrong"] for row in rows.values())
        recall = sum(row["recall"] for row in rows.values()) / len(rows)
        wrong_pairs = sorted(reported - set(pairs))
        count = sum(hit.bits <= bits for hit in compared)
        row = {"hash_bits": bits, "correlation": correlation, "recall": round(recall, 4), "wrong": wrong}
        grid.append({**row, "compared": count, "wrong_pairs": wrong_pairs})
        print(row, wrong_pairs[:5], flush=True)
    right = [row for row in grid if not row["wrong"]]
    least = max(row["recall"] for row in right) - RECALL_TOLERANCE
    candidates = [row for row in right if row["recall"] >= least]
    best = min(candidates, key=lambda row: (row["compared"], -row["recall"], -row["correlation"]))
    return {"chosen": best, "used": {"hash_bits": HASH_BITS, "correlation": CORRELATION}, "grid": grid}


def main() -> None:
    """Create the library, measure or choose, and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photos", required=True)
    folder = Path("duplicates-made")
    parser.add_argument("--made", type=Path, default=folder, help="new folder for the library")
    parser.add_argument("--choose", action="store_true", help="choose thresholds on other photos")
    options = parser.parse_args()
    pairs = make_library(options.photos, options.made, part=0 if options.choose else 1)
    results: dict[str, Any] = {"images": LIBRARY + len(pairs)}
    with bars() as progress:
        if options.choose:
            store(options.out, results | {"choice": choose_thresholds(options.made, pairs, progress)})
            return
        started, used = time.perf_counter(), time.process_time()
        rows = recall_and_precision(reported_pairs(*read_pictures(options.made, progress), progress), pairs)
        times = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    for kind, row in rows.items():
        print(f"  {kind:>20}: {row}", flush=True)
    results["settings"] = {"hash_bits": HASH_BITS, "correlation": CORRELATION, "views": len(view_boxes())}
    results["found"] = {"centerhash": rows}
    results["took"] = {name: round(value, 2) for name, value in times.items()}
    store(options.out, results)


if __name__ == "__main__":
    main()
