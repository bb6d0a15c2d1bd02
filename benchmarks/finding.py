"""Does a search find what people look for? Words, label filters, and photos that are searched by an altered copy.

    python -m benchmarks.finding --data coco117k --photos train2017 [--out benchmarks/results/finding.json]

`--data` has image_ids.npy, labels.npy, classes.txt and query.npy, the photos that the built-in model was not trained on;
`--photos` holds their files. All of them are put into one index. Measured are:

- what people type in ten languages (tests/data/typed.tsv): how much is read right, wrong or not at all;
- filters by a label, on one half of the photos: precision and recall by the labels that photos carry, and by their stored
  probabilities. The threshold is chosen on the other half: the largest one whose F2, over all labels, is within 0.01 of
  the best;
- where lists by labels end: right ones among the first 48, with and without an end. The end is chosen on the other half
  as well: the least probability at which one photo in ten is right;
- the first place for photos that are searched by a crop, a screenshot, a rotated, mirrored, gray or smaller copy.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from benchmarks.reporting import ROOT, arguments_of, show, store
from centerhash.model.base import FILTERED
from centerhash.search import Index, rankings
from centerhash.search.index import is_index
from centerhash.search.items import LEVELS
from centerhash.search.query import Query
from centerhash.search.rankings import Columns
from centerhash.search.typed import read_typed

GRID = tuple(step / 100 for step in range(2, 62, 2))
SLACK, LEAST_RIGHT = 0.01, 0.1
SHOWN = 48
COPIES = 100
WAYS = {"both": "default", "visual": "visual", "semantic": "semantic"}
LARGE = (4000, 3000)  # pixels of a photo of a phone


# --- words


def typed_words(classes: tuple[str, ...]) -> dict[str, Any]:
    """Count what is read right, wrong or not at all, of words for labels and of other words."""
    counts: dict[str, Counter[str]] = {"labels": Counter(), "other words": Counter()}
    for line in (ROOT / "tests" / "data" / "typed.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        _, text, meant = line.split("\t")
        expected = sorted(label.strip() for label in meant.split(",") if label.strip())
        typed = read_typed(text, classes)
        got = sorted([*typed.weights, *(f"-{label}" for label in typed.without)])
        kind = "right" if got == expected else "wrong" if got else "not read"
        counts["labels" if expected else "other words"][kind] += 1
    return {name: dict(count) for name, count in counts.items()}


# --- labels


def stored_scores(opened: Index) -> tuple[list[str], NDArray[np.bool_], NDArray[np.float64]]:
    """Return file names, carried labels (N, C) and stored probabilities (N, C)."""
    column = {name: at for at, name in enumerate(opened.model_info.classes)}
    items = list(opened.items())
    carried, probable = np.zeros((len(items), len(column)), bool), np.zeros((len(items), len(column)))
    for row, item in enumerate(items):
        carried[row, [column[name] for name in item.labels]] = True
        for name, (level, _) in item.scores.items():
            probable[row, column[name]] = level / LEVELS
    return [Path(item.path or "").name for item in items], carried, probable


def filter_figures(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> dict[str, float]:
    """Return precision and recall of a filter (N, C), over all labels and as means of the classes that occur."""
    right, shown, there = (found & truth).sum(axis=0), found.sum(axis=0), truth.sum(axis=0)
    known = there > 0
    return {
        "precision": float(right.sum() / max(1, shown.sum())),
        "recall": float(right.sum() / there.sum()),
        "mean_class_precision": float((right / np.maximum(shown, 1))[known].mean()),
        "mean_class_recall": float((right / np.maximum(there, 1))[known].mean()),
    }


def f2(figures: Mapping[str, float]) -> float:
    """Return F2 of precision and recall: recall counts twice."""
    precision, recall = figures["precision"], figures["recall"]
    return 5 * precision * recall / (4 * precision + recall)


def chosen_threshold(probable: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Return the largest threshold of a filter whose F2 is nearly the best."""
    values = {least: f2(filter_figures(probable >= least, truth)) for least in GRID}
    return max(least for least, value in values.items() if value >= max(values.values()) - SLACK)


def chosen_end(probable: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Return the least probability at which enough photos are right."""
    for least in GRID:
        near = (probable >= least) & (probable < least + 0.05)
        if near.any() and truth[near].mean() >= LEAST_RIGHT:
            return least
    return GRID[-1]


def label_filters(opened: Index, truth_of: Mapping[str, NDArray[np.bool_]]) -> dict[str, Any]:
    """Measure filters by carried labels and by probabilities on one half, with a threshold chosen on the other."""
    names, carried, probable = stored_scores(opened)
    truth = np.stack([truth_of[name] for name in names])
    order = np.random.default_rng(0).permutation(len(names))
    choosing, measured = order[: len(order) // 2], order[len(order) // 2 :]
    passing = probable[measured] >= FILTERED
    classes = opened.model_info.classes
    per_class = {}
    for at, name in enumerate(classes):
        one = [at]
        if truth[measured][:, one].any():
            per_class[name] = {
                "photos": int(truth[measured][:, at].sum()),
                "before": filter_figures(carried[measured][:, one], truth[measured][:, one])["recall"],
                "after": filter_figures(passing[:, one], truth[measured][:, one])["recall"],
                "precision_after": filter_figures(passing[:, one], truth[measured][:, one])["precision"],
            }
    return {
        "chosen_threshold": chosen_threshold(probable[choosing], truth[choosing]),
        "used_threshold": FILTERED,
        "chosen_end": chosen_end(probable[choosing], truth[choosing]),
        "used_end": rankings.FITS,
        "photos_measured": len(measured),
        "by_carried_labels": filter_figures(carried[measured], truth[measured]),
        "by_probability": filter_figures(passing | carried[measured], truth[measured]),
        "classes": per_class,
    }


def list_ends(opened: Index, truth_of: Mapping[str, NDArray[np.bool_]]) -> dict[str, Any]:
    """Measure how many of the first results to each label are right, with and without an end of the list."""

    def first(least: float) -> dict[str, tuple[int, int]]:
        found = {}
        with patch.object(rankings, "FITS", least):
            for at, name in enumerate(opened.model_info.classes):
                rows = opened.search(labels=[name], k=SHOWN)
                found[name] = len(rows), sum(bool(truth_of[Path(row.path or "").name][at]) for row in rows)
        return found

    def summary(rows: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        shown, right = (sum(column) for column in zip(*rows.values(), strict=True))
        empty = [name for name, (count, _) in rows.items() if not count]
        none = [name for name, (count, fits) in rows.items() if count and not fits]
        return {"shown": shown, "right": right, "precision": right / shown, "empty": empty, "all_wrong": none}

    return {"without_end": summary(first(0.0)), "with_end": summary(first(rankings.FITS))}


# --- finding a photo again

Copy = Callable[[Image.Image, np.random.Generator], Image.Image]


def cropped(share: float) -> Copy:
    """Return a crop to a share of the area, anywhere in the photo."""

    def make(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width, height = round(image.width * share**0.5), round(image.height * share**0.5)
        left = int(generator.integers(0, image.width - width + 1))
        top = int(generator.integers(0, image.height - height + 1))
        return image.crop((left, top, left + width, top + height))

    return make


def screenshot(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Return the screen of a phone that shows a photo: a status bar, a title, dark bars, buttons; smaller, as JPEG."""
    side = image.width
    screen = Image.new("RGB", (side, round(side * 1.78)), (18, 18, 18))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, side, side // 20), fill=(240, 240, 240))
    draw.text((6, 1), "12:41", fill=(0, 0, 0))
    draw.text((10, side // 10), "Photos", fill=(250, 250, 250))
    screen.paste(image, (0, round(0.39 * side)))
    for place in (0.12, 0.36, 0.6, 0.84):
        draw.ellipse(
            (side * place, side * 1.65, side * place + 12, side * 1.65 + 12), outline=(220, 220, 220)
        )
    stream = io.BytesIO()
    screen.resize((round(side * 0.8), round(side * 1.42))).save(stream, "JPEG", quality=80)
    return Image.open(stream)


def rotated(degrees: int) -> Copy:
    """Return a rotation."""
    return lambda image, _: image.rotate(degrees, expand=True)


MADE: Mapping[str, Copy] = {
    "crop 90 %": cropped(0.9),
    "crop 80 %": cropped(0.8),
    "crop 60 %": cropped(0.6),
    "crop 36 % (60 % of each side)": cropped(0.36),
    "screenshot": screenshot,
    "rotated by 90": rotated(90),
    "rotated by 180": rotated(180),
    "rotated by 270": rotated(270),
    "mirrored": lambda image, _: ImageOps.mirror(image),
    "gray": lambda image, _: image.convert("L"),
    "half the size": lambda image, _: image.resize((image.width // 2, image.height // 2)),
}


def found_again(opened: Index) -> dict[str, Any]:
    """Return how often the original is first, by each way to search; before: by one view, without copies first."""
    generator = np.random.default_rng(0)
    items = list(opened.items())
    chosen = [items[row] for row in generator.choice(len(items), COPIES, replace=False)]
    figures: dict[str, Any] = {"photos": len(items), "queries": COPIES}

    def first(query: Query, by: str) -> str:
        return opened.store.search(query.ranking(opened.model_info, by, None), 1)[0][0].id

    for name, make in MADE.items():
        count = Counter[str]()
        for item in chosen:
            with Image.open(item.path or "") as image:
                copy = np.asarray(make(image.convert("RGB"), generator).convert("RGB"))
            query = opened._query_by_image(
                copy, rotations=True
            )  # once: the network takes nearly all of the time
            assert query.visual is not None
            for by, way in WAYS.items():
                count[way] += first(query, by) == item.id
            upright = replace(query, visual=query.visual[:-3])
            count["default without rotations"] += first(upright, "both") == item.id
            with patch.object(rankings, "NEAR", -1):
                alone = replace(query, visual=query.visual[:1])
                for by, way in (("both", "default before"), ("visual", "visual before")):
                    count[way] += first(alone, by) == item.id
        figures[name] = {way: number / COPIES for way, number in count.items()}
        show(name, figures[name])
    return figures


def times_as_long(opened: Index, file: Path, repeats: int = 15) -> float:
    """Return how much longer a search by a photo takes with rotations than without, decoding included."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(repeats):
        for rotations in (True, False):
            started = time.perf_counter()
            opened.search(file, rotations=rotations)
            seconds[rotations].append(time.perf_counter() - started)
    return float(np.median(seconds[True]) / np.median(seconds[False]))


def precision_by_example(
    opened: Index, truth_of: Mapping[str, NDArray[np.bool_]], queries: int = 600
) -> dict[str, float]:
    """Return the share of the first ten results to a photo that show a label of it, with and without copies first."""
    items = list(opened.items())
    truth = np.stack([truth_of[Path(item.path or "").name] for item in items])
    codes, visual = (np.stack([getattr(item, name) for item in items]) for name in ("code", "visual"))
    none, every = np.zeros(len(items), np.uint8), np.ones(len(items), np.uint8)
    columns = Columns(codes, visual, every, none, lambda label: (none[:0], none[:0], none[:0]))  # type: ignore[arg-type, return-value]

    def precision() -> float:
        right = []
        for row in np.random.default_rng(1).choice(len(items), queries, replace=False):
            others = every.copy()
            others[row] = 0  # as if the photo were not in the index
            found = rankings.ByBoth(codes[row], visual[row][None]).first(columns, 10, others)
            right.append((truth[found] & truth[row]).any(axis=1).mean())
        return float(np.mean(right))

    after = precision()
    with patch.object(rankings, "NEAR", -1):
        return {"copies_first": after, "before": precision()}


def main() -> None:
    """Measure, print and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with image_ids.npy, query.npy ...")
    parser.add_argument("--photos", type=Path, required=True, help="folder of the photos, named by image id")
    parser.add_argument("--index", type=Path, help="folder of the index; made there if it is none yet")
    options = parser.parse_args()
    rows = np.load(options.data / "query.npy")
    truth = np.load(options.data / "labels.npy", mmap_mode="r")[rows]
    files = [options.photos / f"{id:012d}.jpg" for id in np.load(options.data / "image_ids.npy")[rows]]
    truth_of = {file.name: own for file, own in zip(files, truth, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        place = options.index or Path(folder) / "index"
        with Index.open(place) if is_index(place) else Index.create(place) as opened:
            if list(opened.model_info.classes) != (options.data / "classes.txt").read_text().split("\n")[:80]:
                raise SystemExit("the classes of the data are not those of the built-in model.")
            opened.add(files, labels="predicted")
            measured = {
                "typed": typed_words(opened.model_info.classes),
                "filters": label_filters(opened, truth_of),
                "ends": list_ends(opened, truth_of),
                "by_example": precision_by_example(opened, truth_of),
            }
            for name, figures in measured.items():
                print(name, {key: value for key, value in figures.items() if key != "classes"}, flush=True)
            with Image.open(files[0]) as image:
                image.resize(LARGE).save(Path(folder) / "large.jpg")
            measured["times_as_long"] = {
                "256 x 256 pixels": times_as_long(opened, files[0]),
                "4,000 x 3,000 pixels": times_as_long(opened, Path(folder) / "large.jpg"),
            }
            show("times as long", measured["times_as_long"])
            measured["found_again"] = found_again(opened)
    store(options.out, measured)


if __name__ == "__main__":
    main()
