"""Are questions answered? Labels, pairs and triples of them, and examples, on a data set of features with labels.

    python -m benchmarks.questions --data coco117k [--run run] [--out benchmarks/results/questions.json]

The model is trained on the data set's training list (or read from the folder of a run); all other photos are put into
an index. Over all ordered pairs of labels that enough of these carry together: how many of the first 20 answers carry
both, at equal weights and at .7 / .3, and how much larger the share of the first label is, among those that do, when it
is asked with .7 than with .3; likewise for triples at equal weights; and how well presence ranks photos, class by class.
The factors of the visual distance and of the shares, and the units of presence, are chosen on a split of the training
list alone: a model that is trained on five sixths of it answers the rest.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import centerhash as ch
from benchmarks.reporting import arguments_of, show, store
from centerhash.core.progress import silent
from centerhash.model.model import HashModel
from centerhash.search import Index, Results, rankings
from centerhash.search.query import label_scores, visual_codes
from centerhash.search.rankings import code_distances

ASKED, HEAVY, LIGHT = 20, 0.7, 0.3
FACTORS, DEPTH = (0.0, 0.05, 0.1, 0.2), 5_000
SHARES = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0)
LABEL_UNITS = (256, 512, 1024)
BATCH = 8_192


def fill(index: Index, model: HashModel, features: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Put these rows of the features into the index, with predicted labels, under their row numbers."""
    for start in range(0, len(rows), BATCH):
        chosen = rows[start : start + BATCH]
        batch = np.asarray(features[chosen], np.float32)
        labels = model.label_names(batch)
        looks, scores = visual_codes(model, batch), label_scores(model, batch, labels)
        packed = ch.pack(model.encode_features(batch))
        index.add_codes(
            packed,
            [f"{row:08d}" for row in chosen],
            labels,
            visual=looks,
            scores=scores,
        )


def together(labels: NDArray[np.bool_], size: int, least: int) -> list[tuple[int, ...]]:
    """All sets of `size` classes that at least `least` images carry together."""
    counts = labels.astype(np.float32).T @ labels.astype(np.float32)
    pairs = [pair for pair in combinations(range(labels.shape[1]), 2) if counts[pair] >= least]
    if size == 2:
        return list(pairs)
    known = set(pairs)
    return [
        (a, b, c)
        for a, b in pairs
        for c in range(b + 1, labels.shape[1])
        if {(a, c), (b, c)} <= known and (labels[:, a] & labels[:, b] & labels[:, c]).sum() >= least
    ]


def right(results: Results, labels: NDArray[np.bool_], asked: Sequence[int]) -> NDArray[np.bool_]:
    """Which of the answers carry all the labels asked for."""
    found: NDArray[np.bool_] = labels[[int(row.id) for row in results]][:, list(asked)].all(axis=1)
    return found


def shares(results: Results, right_ones: NDArray[np.bool_], name: str) -> float:
    """The mean share of a label, among those asked for, of the right answers; NaN without any."""
    rows = [row.share or {} for row, fits in zip(results, right_ones, strict=True) if fits]
    own = [row[name] / sum(row.values()) for row in rows if sum(row.values()) > 0 and name in row]
    return float(np.mean(own)) if own else float("nan")


def by_labels(
    index: Index, labels: NDArray[np.bool_], rows: NDArray[np.int64], least: int, *, triples: bool = True
) -> dict[str, Any]:
    """Precision of the first answers to pairs and triples, and what weights do to shares."""
    classes, seconds = index.model_info.classes, list[float]()

    def ask(asked: Sequence[int], weights: Sequence[float]) -> Results:
        started = time.perf_counter()
        weighed = {classes[j]: weight for j, weight in zip(asked, weights, strict=True)}
        results = index.search(labels=weighed, k=ASKED)
        seconds.append(time.perf_counter() - started)
        return results

    pairs = together(labels[rows], 2, least)
    equal = [right(ask(pair, (1, 1)), labels, pair).mean() for pair in pairs]
    weighed: list[float] = []
    first: dict[
        tuple[int, int], tuple[float, float]
    ] = {}  # share of the first label where it is heavy, and light
    for a, b in pairs:
        for one, other in ((a, b), (b, a)):
            results = ask((one, other), (HEAVY, LIGHT))
            fits = right(results, labels, (one, other))
            weighed.append(float(fits.mean()))
            first[one, other] = shares(results, fits, classes[one]), shares(results, fits, classes[other])
    heavy = np.array([first[a, b][0] for a, b in first])
    light = np.array([first[b, a][1] for a, b in first])
    known = np.isfinite(heavy) & np.isfinite(light)
    figures = {
        "photos": len(rows),
        "ordered_pairs": 2 * len(pairs),
        "both_at_equal_weights": float(np.mean(equal)),
        "both_at_.7_and_.3": float(np.mean(weighed)),
        "share_of_first_asked_with_.7": float(heavy[known].mean()),
        "share_of_first_asked_with_.3": float(light[known].mean()),
        "pairs_with_a_larger_share": float((heavy > light)[known].mean()),
        "median_seconds": float(np.median(seconds)),
    }
    if triples:
        known_triples = together(labels[rows], 3, least)
        three = [right(ask(triple, (1, 1, 1)), labels, triple).mean() for triple in known_triples]
        figures |= {"triples": len(three), "all_three_at_equal_weights": float(np.mean(three))}
    return figures


def class_precision(
    model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], rows: NDArray[np.int64]
) -> dict[str, float]:
    """Average precision of every class when these photos are ranked by its presence; their mean over the classes."""
    starts = range(0, len(rows), BATCH)
    presence = np.concatenate([model.label_probabilities(features[rows[at : at + BATCH]]) for at in starts])
    hits = np.take_along_axis(labels[rows], np.argsort(-presence, axis=0, kind="stable"), axis=0)
    precision = np.cumsum(hits, axis=0) / np.arange(1, len(rows) + 1)[:, None]
    there = hits.any(axis=0)
    own = (precision * hits).sum(axis=0)[there] / hits.sum(axis=0)[there]
    return {"classes": int(there.sum()), "class_ap": float(own.mean()), "worst_class_ap": float(own.min())}


def mean_average_precision(
    model: HashModel,
    features: NDArray[Any],
    labels: NDArray[np.bool_],
    query: NDArray[np.int64],
    database: NDArray[np.int64],
    factor: float,
) -> dict[str, float]:
    """mAP@5000, peers and textbook, of semantic + factor * visual distance; ties in the order of the database."""
    parts = {
        name: (ch.pack(model.encode_features(rows)), visual_codes(model, rows))
        for name, rows in (("query", features[query]), ("database", features[database]))
    }
    codes, looks = parts["database"]
    peers, textbook = [], []
    for code, look, own in zip(*parts["query"], labels[query], strict=True):
        distances = code_distances(codes, code) + factor * code_distances(looks, look)
        relevant = (labels[database] & own).any(axis=1)
        hits = relevant[np.argsort(distances.round(9), kind="stable")][:DEPTH]
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        total = float((precision * hits).sum())
        peers.append(total / max(1, int(hits.sum())))
        textbook.append(total / max(1, min(int(relevant.sum()), DEPTH)))
    return {"map_peers": float(np.mean(peers)), "map_textbook": float(np.mean(textbook))}


class Held(NamedTuple):
    """A model of five sixths of the training list, and the rest, on which settings are chosen."""

    model: HashModel
    features: NDArray[np.float32]
    labels: NDArray[np.bool_]
    known: NDArray[np.int64]
    asked: NDArray[np.int64]


def held_out(
    features: NDArray[Any], labels: NDArray[np.bool_], train: NDArray[np.int64], **settings: Any
) -> Held:
    """Train on five sixths of the training list."""
    order = np.random.default_rng(0).permutation(np.sort(train))
    query, rest = np.sort(order[: len(order) // 6]), np.sort(order[len(order) // 6 :])
    used = np.concatenate([rest, query])
    own = np.asarray(features[used], np.float32)
    known, asked = np.arange(len(rest)), np.arange(len(rest), len(used))
    data = ch.Dataset.from_arrays(own, labels[used], train=known, query=asked, database=known)
    return Held(ch.train(data, bits=64, progress=False, **settings), own, labels[used], known, asked)


def by_units(
    features: NDArray[Any], labels: NDArray[np.bool_], train: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """What the number of units that presence has for itself does to its class AP."""
    found = {}
    for units in LABEL_UNITS:
        held = held_out(features, labels, train, head={"presence_hidden": units})
        found[f"units {units}"] = class_precision(held.model, held.features, held.labels, held.asked)
    return found


def by_example(held: Held) -> dict[str, Any]:
    """mAP for every factor of the visual distance."""
    model, features, labels, known, asked = held
    return {
        f"factor {factor}": mean_average_precision(model, features, labels, asked, known, factor)
        for factor in FACTORS
    }


def by_shares(held: Held) -> dict[str, Any]:
    """What the factor of the shares does to questions of two labels."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", held.model) as index:
        fill(index, held.model, held.features, held.asked)
        for factor in SHARES:
            with patch.object(rankings, "SHARES", factor):
                found[f"lambda {factor}"] = by_labels(index, held.labels, held.asked, 15, triples=False)
    return found


def main() -> None:
    """Measure, print and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with features.npy, labels.npy ...")
    parser.add_argument("--run", type=Path, help="folder of a run on it; trained there if it is none yet")
    parser.add_argument("--least", type=int, default=200, help="photos that carry all labels of a question")
    options = parser.parse_args()
    data = ch.open_dataset(options.data)
    features, labels = np.load(options.data / "features.npy", mmap_mode="r"), data.labels
    train = np.load(options.data / "train.npy")
    model = ch.train(data, bits=64, out=options.run, progress=silent)
    others = np.setdiff1d(np.arange(len(labels)), train)
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", model) as index:
        fill(index, model, features, others)
        size = index.info()["details"]["bytes"] / len(others)
        asked = {**by_labels(index, labels, others, options.least), "bytes_per_item": size}
    show("by labels", asked)
    presence = class_precision(model, features, labels, others)
    show("presence", presence)
    held = held_out(features, labels, train)
    chosen = {
        "by_units": by_units(features, labels, train),
        "by_example": by_example(held),
        "by_shares": by_shares(held),
    }
    for rows in chosen.values():
        for name, figures in rows.items():
            show(name, figures)
    store(options.out, {"by_labels": asked, "presence": presence, **chosen})


if __name__ == "__main__":
    main()
