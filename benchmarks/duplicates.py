"""How well duplicates are found: copies of real photos among photos that are none, compared with other tools' rules.

    python -m benchmarks.duplicates --photos FOLDER [--out benchmarks/results/duplicates.json] [--choose]

From a folder of photos, 3,000 are taken, and 100 of them for each kind of change get a changed copy: one library for all
kinds. A pair is *found* if a tool reports both as copies of each other; ours reports the pairs of the kept photo and each
other one of its group. Recall is the share of the 100 pairs that are found. Precision is the share of right pairs among
all found pairs with a copy of that kind; `strangers` are found pairs of two photos that are no copies.

The rules of the other tools are computed here as documented, from the same decoded pixels:

  imagehash   `phash` of the package itself, equal hashes (its demo find_similar_images), and at most 8 of 64 bits, since
              its documentation names no threshold
  imagededup  PHash, at most 10 of 64 bits, its default (imagededup/methods/hashing.py): the lowest 8 x 8 frequencies of
              the DCT of 32 x 32 pixels, compared with their median without the first one; its CNN needs a download
  czkawka     gradient hash of 16 x 16 bits (neighboring pixels compared, Lanczos3), presets High (5 bits) and Medium
              (15), and mean hash of 8 x 8 bits, Medium (5): SIMILAR_VALUES of czkawka_core/src/tools/similar_images

`--choose` chooses both thresholds on other photos instead, and stores the whole grid: of all pairs of hash bits and
correlation without a wrong pair, those whose mean recall is within 0.005 of the best are as good, and of these the one
that compares the fewest pictures, then the strictest one. `--speed OLD` also measures this
and an older source folder of centerhash on the photos of `--timed`, each in its own process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from scipy.fft import dct

from benchmarks.reporting import arguments_of, store
from centerhash.core.progress import Progress, bars
from centerhash.search import duplicates
from centerhash.search.duplicates import (
    CORRELATION,
    HASH_BITS,
    Aligned,
    Group,
    Looks,
    aligned_hits,
    equal_contents,
    find_duplicates,
    folder_duplicates,
    look_at,
)
from centerhash.search.keepers import Keeping, RealFile, file_at
from centerhash.search.pixels import view_boxes

LIBRARY, COPIES = 3_000, 100
Pair = tuple[str, str]


def cropped(share: float) -> Callable[[Image.Image, np.random.Generator], Image.Image]:
    """A window of this share of the sides, anywhere."""

    def crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width, height = round(image.width * share), round(image.height * share)
        left = int(generator.integers(0, image.width - width + 1))
        top = int(generator.integers(0, image.height - height + 1))
        return image.crop((left, top, left + width, top + height))

    return crop


def screenshot(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """The photo on the screen of a phone, as wide as the screen, with a clock and buttons on plain bars."""
    dark = generator.random() < 0.5
    canvas = Image.new("RGB", (360, 640), (0, 0, 0) if dark else (250, 250, 250))
    shown = image.resize((360, int(generator.integers(220, 480))))
    canvas.paste(shown, (0, (640 - shown.height) // 2))
    draw, ink = ImageDraw.Draw(canvas), (230, 230, 230) if dark else (30, 30, 30)
    draw.text((14, 8), "12:30", fill=ink)
    draw.rectangle((320, 10, 344, 18), outline=ink)
    for place in (90, 180, 270):
        draw.ellipse((place - 7, 612, place + 7, 626), outline=ink)
    return canvas


def turned(way: Image.Transpose) -> Callable[[Image.Image, np.random.Generator], Image.Image]:
    """One of the orientations."""
    return lambda image, _: image.transpose(way)


CHANGES: dict[str, tuple[int, Callable[[Image.Image, np.random.Generator], Image.Image]]] = {
    "recompressed": (50, lambda image, _: image),
    "resized to half": (90, lambda image, _: image.resize((image.width // 2, image.height // 2))),
    "grey": (90, lambda image, _: image.convert("L")),
    "brightened by 30 %": (90, lambda image, _: ImageEnhance.Brightness(image).enhance(1.3)),
    "mirrored": (90, lambda image, _: ImageOps.mirror(image)),
    "flipped": (90, lambda image, _: ImageOps.flip(image)),
    "rotated by 90°": (90, turned(Image.Transpose.ROTATE_90)),
    "rotated by 180°": (90, turned(Image.Transpose.ROTATE_180)),
    "rotated by 270°": (90, turned(Image.Transpose.ROTATE_270)),
    "transposed": (90, turned(Image.Transpose.TRANSPOSE)),
    "transverse": (90, turned(Image.Transpose.TRANSVERSE)),
    "cropped to 90 %": (90, cropped(0.9)),
    "cropped to 80 %": (90, cropped(0.8)),
    "cropped to 70 %": (90, cropped(0.7)),
    "cropped to 60 %": (90, cropped(0.6)),
    "screenshot": (90, screenshot),
}


def make_library(photos: Path, made: Path, part: int) -> dict[Pair, str]:
    """Write a library to `made`, and return its pairs of photo and copy with their kind of change."""
    files = sorted(photos.iterdir())
    generator = np.random.default_rng(0)
    order = generator.permutation(len(files))[part * LIBRARY : (part + 1) * LIBRARY]
    chosen = [files[row] for row in order.tolist()]
    made.mkdir(parents=True)
    for file in chosen:
        (made / file.name).write_bytes(file.read_bytes())
    pairs: dict[Pair, str] = {}
    for number, (name, (quality, change)) in enumerate(CHANGES.items()):
        for file in chosen[number * COPIES : (number + 1) * COPIES]:
            with Image.open(file) as stored:
                image = stored.convert("RGB")
            copy = f"{file.stem}-copy.jpg"
            change(image, generator).save(made / copy, quality=quality)
            pairs[file.name, copy] = name
    return pairs


def scored(found: Iterable[Pair], pairs: dict[Pair, str]) -> dict[str, Any]:
    """Recall and precision of each kind of change."""
    every = {(min(pair), max(pair)) for pair in found}
    expected = {(min(pair), max(pair)): kind for pair, kind in pairs.items()}
    kind_of = {pair[1]: kind for pair, kind in pairs.items()}
    rows: dict[str, Any] = {}
    for kind in CHANGES:
        right = sum(expected.get(pair) == kind for pair in every)
        touched = sum(any(kind_of.get(name) == kind for name in pair) for pair in every)
        rows[kind] = {
            "recall": right / COPIES,
            "precision": round(right / touched, 4) if touched else None,
            "wrong": touched - right,
        }
    rows["strangers"] = sum(not any(name in kind_of for name in pair) for pair in every)
    return rows


def pairs_of(groups: Iterable[Group]) -> list[Pair]:
    """The photo to keep and each other one, of all groups."""
    return [
        (Path(group.keep.path or "").name, Path(one.path or "").name)
        for group in groups
        for one in group.others
    ]


def own_pairs(folder: Path) -> list[Pair]:
    """The pairs that are found."""
    with bars() as progress:
        return pairs_of(folder_duplicates(folder, progress=progress))


HASH_GRID, CORRELATION_GRID = (8, 10, 12, 14), (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)


AS_GOOD = 0.005  # recall: 8 of 1,600 copies


def chosen_thresholds(folder: Path, pairs: dict[Pair, str]) -> dict[str, Any]:
    """Measure all thresholds, and choose: see the top of this module.

    Pictures are compared once, at the loosest thresholds: those that stricter ones would compare are among them.
    """
    with bars() as progress:
        contents, _ = equal_contents(
            [file_at(path) or RealFile(path) for path in sorted(folder.iterdir())], progress
        )
        looks = Looks(contents)
        look_at(looks, progress, None)
        compared: list[Aligned] = []

        def at_loosest(pictures: Any, rows: Any, most: int, report: Progress) -> list[Aligned]:
            compared[:] = compared or aligned_hits(pictures, rows, max(HASH_GRID), report)
            return [hit for hit in compared if hit.bits <= most]

        grid = []
        for bits, least in product(HASH_GRID, CORRELATION_GRID):
            with patch.multiple(duplicates, HASH_BITS=bits, CORRELATION=least, aligned_hits=at_loosest):
                groups = find_duplicates(looks, Keeping(()), kind="near", progress=progress)
            found = {(min(pair), max(pair)) for pair in pairs_of(groups)}
            rows = scored(found, pairs)
            wrong = rows.pop("strangers") + sum(row["wrong"] for row in rows.values())
            recall = sum(row["recall"] for row in rows.values()) / len(rows)
            others = sorted(found - {(min(pair), max(pair)) for pair in pairs})
            count = sum(hit.bits <= bits for hit in compared)
            row = {"hash_bits": bits, "correlation": least, "recall": round(recall, 4), "wrong": wrong}
            grid.append({**row, "compared": count, "wrong_pairs": others})
            print(row, others[:5], flush=True)
    right = [row for row in grid if not row["wrong"]]
    enough = max(row["recall"] for row in right) - AS_GOOD
    good = [row for row in right if row["recall"] >= enough]
    best = min(good, key=lambda row: (row["compared"], -row["recall"], -row["correlation"]))
    used = {"hash_bits": HASH_BITS, "correlation": CORRELATION}
    return {"chosen": best, "used": used, "grid": grid}


# --- the rules of other tools


def imagehash_bits(image: Image.Image) -> NDArray[np.bool_]:
    return np.asarray(imagehash.phash(image).hash).ravel()


def imagededup_bits(image: Image.Image) -> NDArray[np.bool_]:
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), np.float64)
    low = dct(dct(grey, axis=0), axis=1)[:8, :8].ravel()
    return np.asarray(low >= np.median(low[1:]))


def gradient_bits(image: Image.Image) -> NDArray[np.bool_]:
    grey = np.asarray(image.convert("L").resize((17, 16), Image.Resampling.LANCZOS), np.int16)
    return np.asarray(grey[:, :-1] < grey[:, 1:]).ravel()


def mean_bits(image: Image.Image) -> NDArray[np.bool_]:
    grey = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.LANCZOS), np.float64)
    return np.asarray(grey >= grey.mean()).ravel()


OTHERS = {
    "imagehash phash, equal": (imagehash_bits, 0),
    "imagehash phash, 8 bits": (imagehash_bits, 8),
    "imagededup PHash, 10 bits": (imagededup_bits, 10),
    "czkawka gradient 16, High": (gradient_bits, 5),
    "czkawka gradient 16, Medium": (gradient_bits, 15),
    "czkawka mean 8, Medium": (mean_bits, 5),
}


def other_pairs(folder: Path, bits_of: Callable[[Image.Image], NDArray[np.bool_]], most: int) -> list[Pair]:
    """All pairs of images whose hashes differ in at most so many bits."""
    names = sorted(path.name for path in folder.iterdir())
    bits = []
    for name in names:
        with Image.open(folder / name) as image:
            bits.append(bits_of(image.convert("RGB")))
    signs = np.stack(bits).astype(np.float32) * 2 - 1
    distances = (signs.shape[1] - signs @ signs.T) / 2
    first, second = np.nonzero(np.triu(distances <= most, 1))
    return [(names[a], names[b]) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


# --- time


_TIMED = """
import json, sys, time
from centerhash.search.duplicates import folder_duplicates
wall, cpu = time.perf_counter(), time.process_time()
found = folder_duplicates(sys.argv[1], progress=False, kind=sys.argv[2] or None)
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu,
    "images": found.looked_at, "groups": len(found)}))
"""


def timed(source: Path, folder: Path, kind: str = "") -> dict[str, Any]:
    """Wall and CPU seconds of `folder_duplicates` of a source folder, in its own process."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED, str(folder), kind],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: round(value, 2) for name, value in json.loads(done.stdout).items()}


def speed(old: Path, folder: Path) -> dict[str, Any]:
    """This source folder and an older one in turn, twice; the quicker run of each counts.

    They do not do the same by default: the older one always runs the network for similar photos, this one only if they
    are the `kind`. So `ratio` compares the defaults, and `ratio_similar` the same work.
    """
    own = Path(duplicates.__file__).parents[2]
    runs = [(timed(old, folder), timed(own, folder), timed(own, folder, "similar")) for _ in range(2)]
    before, after, similar = (
        min((run[place] for run in runs), key=lambda row: row["seconds"]) for place in range(3)
    )

    def ratio(row: dict[str, Any]) -> dict[str, float]:
        return {name: round(row[name] / before[name], 3) for name in ("seconds", "cpu_seconds")}

    rows = {"before": before, "after": after, "after_similar": similar}
    return {**rows, "ratio": ratio(after), "ratio_similar": ratio(similar)}


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photos", required=True)
    parser.add_argument(
        "--made", type=Path, default=Path("duplicates-made"), help="new folder for the library"
    )
    parser.add_argument("--choose", action="store_true", help="choose thresholds on other photos")
    parser.add_argument(
        "--speed", type=Path, help="source folder of an older centerhash to compare times with"
    )
    parser.add_argument("--timed", type=Path, help="folder of photos for --speed")
    given: argparse.Namespace = parser.parse_args()
    pairs = make_library(given.photos, given.made, part=0 if given.choose else 1)
    if given.choose:
        choice = chosen_thresholds(given.made, pairs)
        store(given.out, {"images": LIBRARY + len(pairs), "choice": choice})
        return
    started, used = time.perf_counter(), time.process_time()
    found: dict[str, Any] = {"centerhash": scored(own_pairs(given.made), pairs)}
    took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    for name, (bits_of, most) in OTHERS.items():
        found[name] = scored(other_pairs(given.made, bits_of, most), pairs)
    for name, rows in found.items():
        print(name)
        for kind, row in rows.items():
            print(f"  {kind:>20}: {row}", flush=True)
    settings = {"hash_bits": HASH_BITS, "correlation": CORRELATION, "views": len(view_boxes())}
    results: dict[str, Any] = {"settings": settings, "images": LIBRARY + len(pairs), "found": found}
    results["took"] = {name: round(value, 2) for name, value in took.items()}
    if given.speed is not None:
        results["speed"] = speed(given.speed, given.timed or given.made)
    store(given.out, results)


if __name__ == "__main__":
    main()
