"""Measure whether searches return what people look for: by labels, pairs and triples, filters, and copies of photos.

    python -m benchmarks.quality --data coco117k --photos train2017 [--out benchmarks/results/quality.json]

`--data` is the folder that `python -m reproduction coco117k` builds, `--photos` the folder of these photos. The built-in
model was not trained on the queries of the data, so they form the index. Measured are:

- over all ordered pairs of labels that enough photos have together: how many of the first 20 results have both, at equal
  weights and at .7 / .3, and how often the estimated share of the first label is larger with .7 than with .3; triples
- average precision of each class when photos are ranked by its probability
- filters by a label: precision and recall by the predicted labels and by the stored probabilities; right ones among
  the first 48 results to each label
- how often the original is first when an altered copy is searched for
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import centerhash as ch
from benchmarks.duplicates import CHANGES
from benchmarks.reporting import arguments_of, show, store
from centerhash.index import Index, Results
from centerhash.model.base import Model
from centerhash.photos import PhotoIndex

FIRST, LEAST_TOGETHER, PAGE_SIZE, COPIES, BATCH = 20, 20, 48, 100, 8_192
WEIGHTS = (0.7, 0.3)
Labels = NDArray[np.bool_]


def fill(index: Index, features: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Add these rows of the features to the index, with predicted labels and their row numbers as ids."""
    index.add(np.asarray(features[rows]), ids=rows.tolist())


# Searches by labels


def together(labels: Labels, size: int) -> list[tuple[int, ...]]:
    """Return all sets of `size` classes that at least LEAST_TOGETHER images have together."""
    frequent = np.flatnonzero(labels.sum(axis=0) >= LEAST_TOGETHER).tolist()
    groups = combinations(frequent, size)
    return [group for group in groups if labels[:, group].all(axis=1).sum() >= LEAST_TOGETHER]


def right(results: Results, labels: Labels, group: Sequence[int]) -> Labels:
    """Return which of the results have all labels of a query."""
    return np.asarray(labels[[int(row.id) for row in results]][:, list(group)].all(axis=1))


def share(results: Results, is_right: Labels, name: str) -> float:
    """Return the mean estimated share of a label, among those of the query, of the right results; NaN without any."""
    rows = [row.share or {} for row, counts in zip(results, is_right, strict=True) if counts]
    shares = [row[name] / sum(row.values()) for row in rows if name in row and any(row.values())]
    return float(np.mean(shares)) if shares else float("nan")


def by_labels(index: Index, labels: Labels, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Measure the precision of the first results to pairs and triples, and what weights do to shares."""
    classes = index.classes

    def search(group: Sequence[int], weights: Sequence[float]) -> tuple[Results, Labels]:
        named = {classes[j]: weight for j, weight in zip(group, weights, strict=True)}
        results = index.search(labels=named, k=FIRST)
        return results, right(results, labels, group)

    pairs = together(labels[rows], 2)
    equal = [search(pair, (1, 1))[1].mean() for pair in pairs]
    weighted, larger = [], []
    for a, b in pairs:
        (first, right_first), (second, right_second) = search((a, b), WEIGHTS), search((b, a), WEIGHTS)
        weighted += [right_first.mean(), right_second.mean()]
        for name, sign in ((classes[a], 1), (classes[b], -1)):
            gained = sign * (share(first, right_first, name) - share(second, right_second, name))
            larger += [gained > 0] if np.isfinite(gained) else []
    triples = [search(group, (1, 1, 1))[1].mean() for group in together(labels[rows], 3)]
    return {
        "photos": len(rows),
        "pairs": len(pairs),
        "both_at_equal_weights": float(np.mean(equal)),
        "both_at_.7_and_.3": float(np.mean(weighted)),
        "pairs_with_a_larger_share": float(np.mean(larger)),
        "triples": len(triples),
        "all_three": float(np.mean(triples)),
    }


def class_precision(
    model: Model, features: NDArray[Any], labels: Labels, rows: NDArray[np.int64]
) -> dict[str, float]:
    """Compute the average precision of every class when these photos are ranked by its probability."""
    starts = range(0, len(rows), BATCH)
    scores = np.concatenate([model.label_probabilities(features[rows[at : at + BATCH]]) for at in starts])
    hits = np.take_along_axis(labels[rows], np.argsort(-scores, axis=0, kind="stable"), axis=0)
    precision = np.cumsum(hits, axis=0) / np.arange(1, len(rows) + 1)[:, None]
    known = hits.any(axis=0)
    average = (precision * hits).sum(axis=0)[known] / hits.sum(axis=0)[known]
    means = {"class_ap": float(average.mean()), "worst_class_ap": float(average.min())}
    return {"classes": int(known.sum()), **means}


# Filters


def filter_quality(passing: Labels, truth: Labels) -> dict[str, float]:
    """Return precision and recall of a filter (N, C) over all labels."""
    hits = (passing & truth).sum()
    return {"precision": float(hits / max(1, passing.sum())), "recall": float(hits / truth.sum())}


def filters(index: Index, truth: Labels) -> dict[str, Any]:
    """Measure filters by predicted labels, and by these or their probabilities; truth (N, C) by row number."""
    predicted, passing = np.zeros_like(truth), np.zeros_like(truth)
    column = {name: j for j, name in enumerate(index.classes)}
    for item in index.items():
        predicted[int(item.id), [column[name] for name in item.labels]] = True
    for name, j in column.items():
        passing[[int(id) for id in index.ids(index.count(having=name).keys)], j] = True
    return {
        "by_labels": filter_quality(predicted, truth),
        "by_probability": filter_quality(passing, truth),
    }


def first_results(index: Index, truth: Labels) -> dict[str, float]:
    """Return how many of the first results to each label are right."""
    count = hits = 0
    for j, name in enumerate(index.classes):
        results = index.search(labels=[name], k=PAGE_SIZE)
        count, hits = count + len(results), hits + int(right(results, truth, [j]).sum())
    return {"shown": count, "right": hits, "precision": hits / max(1, count)}


# Altered copies


CHANGED = ("cropped to 80 %", "cropped to 60 %", "screenshot", "rotated by 90°", "mirrored", "grey")


def originals_first(photos: PhotoIndex, files: Sequence[Path]) -> dict[str, Any]:
    """Return how often the original is the first result to an altered copy, by code."""
    generator = np.random.default_rng(0)
    rows = generator.choice(len(files), COPIES, replace=False).tolist()
    shares: dict[str, Any] = {}
    for name in CHANGED:
        hits = Counter[str]()
        for row in rows:
            with Image.open(files[row]) as image:
                copy = CHANGES[name][1](image.convert("RGB"), generator).convert("RGB")
            for by in ("both", "general", "semantic"):
                [first] = photos.search(copy, k=1, by=by)
                hits[by] += Path(first.path or "").name == files[row].name
        shares[name] = {by: count / COPIES for by, count in hits.items()}
        show(name, shares[name])
    return shares


def main() -> None:
    """Measure, print and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with features.npy, query.npy ...")
    parser.add_argument("--photos", type=Path, required=True, help="folder of the photos, named by image id")
    options = parser.parse_args()
    rows, model = np.load(options.data / "query.npy"), ch.load("coco")
    labels = np.load(options.data / "labels.npy")[rows]
    files = [options.photos / f"{id:012d}.jpg" for id in np.load(options.data / "image_ids.npy")[rows]]
    numbers = np.arange(len(rows))
    with tempfile.TemporaryDirectory() as folder:
        features = model.features_of(files, cache=Path(folder) / "cache")
        with Index.create(Path(folder) / "rows") as index:
            fill(index, features, numbers)
            measured: dict[str, Any] = {
                "by_labels": by_labels(index, labels, numbers),
                "probabilities": class_precision(model, features, labels, numbers),
                "filters": filters(index, labels),
                "first_results": first_results(index, labels),
            }
        for name, figures in measured.items():
            print(name, figures, flush=True)
        with PhotoIndex.create(Path(folder) / "photos") as photos:
            photos.add(files)
            measured["originals_first"] = originals_first(photos, files)
    store(options.out, measured)


if __name__ == "__main__":
    main()
