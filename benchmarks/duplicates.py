"""How well duplicates are found: made pairs of real photos, among photos that are none.

    python -m benchmarks.duplicates --photos coco6k [--out benchmarks/results/duplicates.json] [--choose]

`--photos` is a folder with images/. 500 photos are each encoded again (JPEG, quality 50), resized to half, cropped to
90 % of their sides anywhere, brightened by 30 %, and mirrored. For each kind of change there is one library: the photos,
their changed copies, and 3,000 other photos. A pair counts as found when both are in one group, at the defaults;
recall is the share of the 500 pairs that were found, precision the share of all found pairs that were made.

`--choose` reports pairs of 200 and 1,000 other photos, at several thresholds: the defaults were chosen there.

The visual code is that of the built-in model. `--join` measures only the join of 127,000 codes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

import centerhash as ch
from benchmarks.reporting import arguments_of, store
from centerhash.codes import Packed, pack
from centerhash.core.progress import bars
from centerhash.networks.cache import default_cache
from centerhash.search.duplicates import NEAR, PIXELS, SIMILAR, read_views
from centerhash.search.near_pairs import complete_link_groups, linked_pairs

CHOOSING, REPORTED = (200, 1_000), (500, 3_000)  # photos that are changed, and others
JOINED = 127_000
PHASH = 8  # bits of 64, of imagehash alone

Groups = Iterable[Sequence[int]]


def cropped(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """A window of nine tenths of the sides, anywhere."""
    width, height = round(image.width * 0.9), round(image.height * 0.9)
    left = int(generator.integers(0, image.width - width + 1))
    top = int(generator.integers(0, image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


CHANGES: dict[str, tuple[int, Callable[[Image.Image, np.random.Generator], Image.Image]]] = {
    "reencoded": (50, lambda image, _: image),
    "resized": (
        90,
        lambda image, _: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
    ),
    "cropped": (90, cropped),
    "brightened": (90, lambda image, _: ImageEnhance.Brightness(image).enhance(1.3)),
    "mirrored": (90, lambda image, _: ImageOps.mirror(image)),
}


class Part(NamedTuple):
    """Photos, their changed copies in the same order, and others."""

    photos: list[Path]
    changed: dict[str, list[Path]]
    others: list[Path]

    @property
    def paths(self) -> list[Path]:
        return [*self.photos, *(path for each in self.changed.values() for path in each), *self.others]


def make_parts(images: Path, made: Path) -> tuple[Part, Part]:
    """The part to choose on and the part that is reported; changed photos are written to `made`."""
    files = sorted(images.iterdir())
    generator = np.random.default_rng(0)
    order = generator.permutation(len(files)).tolist()
    first, second = CHOOSING[0], CHOOSING[0] + REPORTED[0]
    made.mkdir(parents=True, exist_ok=True)
    changed: dict[str, list[Path]] = {name: [] for name in CHANGES}
    for number in order[:second]:
        with Image.open(files[number]) as stored:
            image = stored.convert("RGB")
        for name, (quality, change) in CHANGES.items():
            target = made / f"{number:05d}-{name}.jpg"
            change(image, generator).save(target, quality=quality)
            changed[name].append(target)
    split = second + CHOOSING[1]
    return (
        Part(
            [files[row] for row in order[:first]],
            {name: each[:first] for name, each in changed.items()},
            [files[row] for row in order[second:split]],
        ),
        Part(
            [files[row] for row in order[first:second]],
            {name: each[first:] for name, each in changed.items()},
            [files[row] for row in order[split : split + REPORTED[1]]],
        ),
    )


class Looked(NamedTuple):
    """The visual codes (N, 16) and views (N, V) of images by their paths' rows."""

    rows: dict[Path, int]
    visual: Packed
    views: NDArray[np.uint64]


def look(paths: list[Path]) -> Looked:
    model = ch.load("coco")
    with bars() as progress:
        features = model.encoder().table(paths, default_cache(), progress=progress).features
        views, _ = read_views(dict(enumerate(paths)), progress)
    stacked = np.stack([views[row] for row in range(len(paths))])
    return Looked({path: row for row, path in enumerate(paths)}, pack(model.visual_codes(features)), stacked)


def scored(groups: Groups, count: int) -> dict[str, float]:
    """Recall and precision of groups where rows 0..count-1 are photos and the next `count` their copies."""
    found = [pair for group in groups for pair in combinations(sorted(group), 2)]
    right = sum(second - first == count and second < 2 * count for first, second in found)
    return {
        "recall": right / count,
        "precision": right / len(found) if found else 1.0,
        "wrong": len(found) - right,
    }


def measure(
    part: Part, looked: Looked, methods: dict[str, Callable[[Packed, Any], Groups]]
) -> dict[str, Any]:
    """Recall and precision of each method on each library."""
    found: dict[str, Any] = {name: {} for name in methods}
    for change, copies in part.changed.items():
        rows = [looked.rows[path] for path in (*part.photos, *copies, *part.others)]
        for name, method in methods.items():
            groups = method(looked.visual[rows], looked.views[rows])
            found[name][change] = scored(groups, len(part.photos))
            print(f"{name:>24} {change:>10}: {found[name][change]}", flush=True)
    return found


def method(radius: int, views: int | None, most: int = 0) -> Callable[[Packed, Any], Groups]:
    """Groups by a visual radius and so many views; None for all, 0 for the visual code alone."""
    return lambda visual, pixels: complete_link_groups(
        visual, np.ascontiguousarray(pixels if views is None else pixels[:, :views]), radius, most
    )


def clustered(count: int, generator: np.random.Generator) -> Packed:
    """Codes (count, 16) around 1,000 centers, up to 16 bits of each flipped."""
    codes = generator.integers(0, 256, (1_000, 16), dtype=np.uint8)[generator.integers(0, 1_000, count)]
    for _ in range(16):
        places = generator.integers(0, 128, count)
        codes[np.arange(count), places // 8] ^= np.left_shift(1, places % 8).astype(np.uint8)
    return codes


def joined() -> dict[str, Any]:
    """Seconds to find all pairs among codes at random and in clusters, after one call that compiles."""
    found = {}
    generator = np.random.default_rng(1)
    views = generator.integers(0, 2**63, (JOINED, 11), dtype=np.uint64)
    libraries = {
        "random": generator.integers(0, 256, (JOINED, 16), dtype=np.uint8),
        "clustered": clustered(JOINED, generator),
    }
    for own, radius in ((views, NEAR), (views[:, :0], SIMILAR)):
        linked_pairs(libraries["random"][:100], np.ascontiguousarray(own[:100]), radius, PIXELS)
    for name, codes in libraries.items():
        for kind, own, radius in (("near", views, NEAR), ("similar", views[:, :0], SIMILAR)):
            started, used = time.perf_counter(), time.process_time()
            linked_pairs(codes, np.ascontiguousarray(own), radius, PIXELS)
            found[f"{name}, {kind}"] = {
                "seconds": round(time.perf_counter() - started, 2),
                "processor_seconds": round(time.process_time() - used, 2),
            }
            print(name, kind, found[f"{name}, {kind}"], flush=True)
    return found


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder with images/")
    parser.add_argument("--made", type=Path, default=Path("duplicates-made"), help="for changed photos")
    parser.add_argument("--choose", action="store_true", help="several thresholds on other photos")
    parser.add_argument("--join", action="store_true", help="only the join")
    given: argparse.Namespace = parser.parse_args()
    if given.join:
        store(given.out, {"join": joined()})
        return
    choosing, reported = make_parts(given.photos / "images", given.made)
    part = choosing if given.choose else reported
    looked = look(part.paths)
    methods = {"near": method(NEAR, None, PIXELS), "similar": method(SIMILAR, 0)}
    if given.choose:
        pairs = [(radius, most) for radius in (24, 32, 40, 48) for most in (8, 10, 12, 14)]
        methods = {f"near {radius} {most}": method(radius, None, most) for radius, most in pairs}
        methods |= {f"similar {radius}": method(radius, 0) for radius in (4, 8, 12, 16, 24)}
    methods["imagehash"] = method(128, 1, PHASH)
    found = measure(part, looked, methods)
    settings = {"near": NEAR, "pixels": PIXELS, "similar": SIMILAR, "phash": PHASH}
    store(given.out, {"settings": settings, "found": found, **({} if given.choose else {"join": joined()})})


if __name__ == "__main__":
    main()
