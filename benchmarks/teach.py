"""Labels taught by a few examples: how well codes alone find classes that the model was not trained on.

    python -m benchmarks.teach --data coco117k --work FOLDER [--out benchmarks/results/teach.json]

DATA holds features.npy, labels.npy, classes.txt and train.npy. A model is trained once into WORK without the labels of 20
classes, drawn with a seed; images stay. Each of these classes is taught by 5, 10 and 50 random examples, several times,
among images that no training saw. Average precision is of all other images; the limit is the same regression on the
real-valued features, reduced to their first 512 principal components. `update` is the time of one
`Index.teach` and of a search by labels in an index of 100,000 items.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import arguments_of, store
from centerhash.codes import binarize, pack, unpack
from centerhash.core.progress import resolve_progress
from centerhash.data import Dataset
from centerhash.methods.shallow.projections import Itq, ItqOptions
from centerhash.search import Index, teaching
from centerhash.search.items import VISUAL_BITS
from centerhash.search.teaching import Example, PackedCodes
from centerhash.training.run import train

SEED = 2  # STRENGTH and RIDGE of `teaching` were chosen with seed 0, of whose classes 3 are the same
HELD_OUT, SAMPLE, BITS = 20, 29_602, 64
EXAMPLES, DRAWS = (5, 10, 50), 3
ROUNDS, ANSWERS = 3, 10  # of suggestions, from the fewest examples
WIDE = 256  # bits of the longer visual code that is compared
COMPONENTS = 512  # of the 2,560 features: more change little
INDEXED = 100_000


def average_precision(scores: NDArray[Any], relevant: NDArray[np.bool_]) -> float:
    """Return the mean of the precisions at the ranks of all relevant items."""
    hits = relevant[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(hits)[hits] / (np.flatnonzero(hits) + 1)).mean())


def calibration_error(likely: NDArray[Any], relevant: NDArray[np.bool_], bins: int = 10) -> float:
    """Return the mean distance of probabilities in equal bins to the share of relevant items there."""
    place = np.minimum((likely * bins).astype(int), bins - 1)
    return sum(
        float(abs(likely[place == one].sum() - relevant[place == one].sum())) for one in np.unique(place)
    ) / len(likely)


def encoded(data: Path, work: Path) -> tuple[Any, NDArray[np.int64], Any]:
    """Train without some classes, or load that model; return codes of all images, these classes, and the model."""
    features, labels = np.load(data / "features.npy", mmap_mode="r"), np.load(data / "labels.npy")
    names = (data / "classes.txt").read_text().splitlines()
    held = np.sort(np.random.default_rng(SEED).choice(len(names), HELD_OUT, replace=False))
    kept = np.setdiff1d(np.arange(len(names)), held)
    rows = np.load(data / "train.npy")
    rows = rows[labels[rows][:, kept].any(axis=1)]
    count = np.arange(len(rows))
    dataset = Dataset.from_arrays(
        features[rows],
        labels[rows][:, kept],
        [names[one] for one in kept],
        train=count,
        query=count[:1],
        database=count[1:],
    )
    model = train(
        dataset, method="ics-softmax", bits=BITS, seed=SEED, out=work / "run", cache=None, progress=True
    )
    file = work / f"codes-{model.digest[:12]}.npz"
    if not file.exists():
        with resolve_progress(True) as report:
            semantic, visual = [], []
            for start in range(0, len(features), 4096):
                some = np.asarray(features[start : start + 4096], np.float32)
                semantic.append(pack(model.encode_features(some)))
                visual.append(pack(model.visual_codes(some)))
                report("codes", start, len(features))
        np.savez(file, semantic=np.concatenate(semantic), visual=np.concatenate(visual))
    stored = np.load(file)
    return PackedCodes(stored["semantic"], stored["visual"], np.ones(len(labels), np.uint8)), held, model


def regression(
    inputs: NDArray[Any], like: Sequence[int], others: NDArray[np.int64], *, plain: bool = False
) -> NDArray[np.float64]:
    """Return the scores (n,) of inputs (n, d) after the regression of `teaching.learn`, without its calibration.

    `plain` replaces the covariance in its penalty by the identity.
    """
    rest = np.asarray(inputs[others], np.float64)
    shown = np.concatenate([np.asarray(inputs[like], np.float64), rest[: teaching.COMPARED]])
    weights = np.ones(len(shown))
    weights[len(like) :] = len(like) / (len(shown) - len(like))
    targets = np.where(np.arange(len(shown)) < len(like), 1.0, -1.0)
    penalty = teaching.covariance_penalty(rest)
    if plain:
        penalty = np.diag([teaching.STRENGTH] * (len(penalty) - 1) + [penalty[-1, -1]])
    found = teaching.minimize(shown, targets, weights, penalty)
    scores: NDArray[np.float64] = inputs @ found
    return scores


def with_one(values: NDArray[Any]) -> NDArray[np.float32]:
    """Append the input of the offset."""
    return np.hstack([values, np.ones((len(values), 1))]).astype(np.float32)


def components(features: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return the first principal components of features, scaled together to a mean square of 1."""
    centered = features - features.mean(axis=0)
    _, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
    found = centered @ vectors[:, -count:]
    return np.asarray(found / np.sqrt((found**2).mean()), np.float32)


def wide_code(features: NDArray[np.float32], sample: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return codes (n, WIDE) of features, by ITQ of a sample as the visual code is made."""
    labels = np.zeros((len(sample), 0), bool)
    return binarize(Itq.fit(sample, labels, WIDE, ItqOptions(), SEED).values(features))


class Task:
    """One class, taught by some examples drawn at random, and the other images that it is looked for in."""

    def __init__(self, relevant: NDArray[np.bool_], examples: int, seed: Sequence[int]) -> None:
        self.relevant, self.generator = relevant, np.random.default_rng(seed)
        self.like = self.generator.choice(np.flatnonzero(relevant), examples, replace=False).tolist()
        self.unlike: list[int] = []
        drawn = self.generator.permutation(len(relevant))[: teaching.OTHERS + examples]
        self.others = drawn[~np.isin(drawn, self.like)][: teaching.OTHERS]

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """Return which images are no examples."""
        found = np.ones(len(self.relevant), bool)
        found[self.like + self.unlike] = False
        return found

    def precision(self, scores: NDArray[Any]) -> float:
        """Return the average precision over all images that are no examples."""
        return average_precision(scores[self.unseen], self.relevant[self.unseen])

    def learned(self, codes: PackedCodes) -> NDArray[np.float32]:
        """Return the probabilities (n,) of the label as an index learns it."""

        def example(row: int, like: bool) -> Example:
            return Example(str(row), like, codes.semantic[row].tobytes(), codes.visual[row].tobytes())

        examples = [*(example(row, True) for row in self.like), *(example(row, False) for row in self.unlike)]
        others = self.others[self.unseen[self.others]]
        rest = PackedCodes(codes.semantic[others], codes.visual[others], codes.has_visual[others])
        return teaching.learn(examples, rest, BITS, len(codes)).probabilities(codes)


def measure_classes(
    codes: PackedCodes, labels: NDArray[np.bool_], inputs: dict[str, NDArray[np.float32]]
) -> dict[str, Any]:
    """Return mean average precisions by kind of input, and how good the probabilities are, by number of examples."""
    found: dict[str, Any] = {}
    for examples in EXAMPLES:
        rows = defaultdict[str, list[float]](list)
        for column, relevant in enumerate(labels.T):
            for draw in range(DRAWS):
                task = Task(relevant, examples, (SEED, column, draw, examples))
                for name, values in inputs.items():
                    rows[name].append(task.precision(regression(values, task.like, task.others)))
                scores = regression(inputs["both"], task.like, task.others, plain=True)
                rows["both, plain penalty"].append(task.precision(scores))
                likely = task.learned(codes)
                there, unseen = relevant[task.unseen], likely[task.unseen]
                carried = unseen >= teaching.PRESENT
                hits = np.count_nonzero(carried & there)
                rows["precision at 0.5"].append(hits / max(1, np.count_nonzero(carried)))
                rows["recall at 0.5"].append(hits / np.count_nonzero(there))
                rows["F1 at 0.5"].append(2 * hits / (np.count_nonzero(carried) + np.count_nonzero(there)))
                rows["calibration error"].append(calibration_error(unseen, there))
                rows["items carried / relevant"].append(np.count_nonzero(carried) / np.count_nonzero(there))
        found[str(examples)] = {name: round(float(np.mean(values)), 4) for name, values in rows.items()}
        print(examples, found[str(examples)], flush=True)
    return found


def suggested(likely: NDArray[Any], task: Task, count: int) -> list[int]:
    """Return the rows that `Index.suggest` offers: the likeliest, and the most uncertain of the others."""
    rows = np.flatnonzero(task.unseen)
    best = rows[np.argsort(-likely[rows], kind="stable")][: count - count // 2]
    rest = np.setdiff1d(rows, best)
    unsure = rest[np.argsort(np.abs(likely[rest] - 0.5), kind="stable")][: count // 2]
    return [*best.tolist(), *unsure.tolist()]


def measure_answers(codes: PackedCodes, labels: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Return the mean average precision after each round of answers: to suggestions, and about random images."""

    def random(likely: NDArray[Any], task: Task, count: int) -> list[int]:
        return list(task.generator.choice(np.flatnonzero(task.unseen), count, replace=False).tolist())

    ways: dict[str, Callable[[NDArray[Any], Task, int], list[int]]] = {
        "suggested": suggested,
        "random": random,
    }
    found = {}
    for name, choose in ways.items():
        rows = []
        for column, relevant in enumerate(labels.T):
            task, row = Task(relevant, EXAMPLES[0], (SEED, column, 0, EXAMPLES[0])), list[float]()
            for _ in range(ROUNDS + 1):
                likely = task.learned(codes)
                row.append(task.precision(likely))
                for image in choose(likely, task, ANSWERS):
                    (task.like if relevant[image] else task.unlike).append(image)
            rows.append(row)
        found[name] = np.mean(rows, axis=0).round(4).tolist()
        print(name, found[name], flush=True)
    return found


def measure_update(codes: PackedCodes, model: Any, relevant: NDArray[np.bool_]) -> dict[str, float]:
    """Return the times of teaching and of searching in an index, in one run: the ratio is what other machines share."""
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", model) as index:
        count = min(INDEXED, len(codes))
        ids = [f"{row:08}" for row in range(count)]
        index.add_codes(codes.semantic[:count], ids, visual=list(codes.visual[:count]))
        shown = [ids[row] for row in np.flatnonzero(relevant[:count])]
        index.search(id=ids[0])  # the codes are in memory
        times = defaultdict[str, list[float]](list)

        def timed(name: str, work: Callable[[], Any]) -> None:
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)

        for start in range(0, 50, 10):
            timed("teach", partial(index.teach, "taught", shown[start : start + 10]))
            timed("search by the taught label", lambda: index.search(labels="taught", k=50))
            timed("search by an item", lambda: index.search(id=ids[1], k=50))
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    ratio = seconds["teach"] / seconds["search by an item"]
    return {
        "items": count,
        **{f"{name}, seconds": round(value, 4) for name, value in seconds.items()},
        "teach / search by an item": round(ratio, 1),
    }


def main() -> None:
    """Measure and report."""
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of features and labels")
    parser.add_argument("--work", type=Path, required=True, help="folder for the model and its codes")
    chosen = parser.parse_args()
    every, held, model = encoded(chosen.data, chosen.work)
    labels = np.load(chosen.data / "labels.npy")
    trained = np.load(chosen.data / "train.npy")
    unseen = np.setdiff1d(np.arange(len(labels)), trained)
    rows = np.sort(np.random.default_rng(SEED + 1).choice(unseen, SAMPLE, replace=False))
    codes = PackedCodes(every.semantic[rows], every.visual[rows], every.has_visual[rows])
    relevant = labels[rows][:, held]
    features = np.asarray(np.load(chosen.data / "features.npy", mmap_mode="r")[rows], np.float32)
    sample = np.asarray(np.load(chosen.data / "features.npy", mmap_mode="r")[trained], np.float32)
    semantic, visual = unpack(codes.semantic, BITS), unpack(codes.visual, VISUAL_BITS)
    inputs = {
        "semantic": with_one(semantic),
        "visual": with_one(visual),
        "both": with_one(np.hstack([semantic, visual])),
        f"semantic and {WIDE} visual bits": with_one(np.hstack([semantic, wide_code(features, sample)])),
        "features": with_one(components(features, COMPONENTS)),
    }
    names = (chosen.data / "classes.txt").read_text().splitlines()
    measured = {
        "command": "python -m benchmarks.teach --data coco117k --work FOLDER --out benchmarks/results/teach.json",
        "photos": len(rows),
        "classes left out": [names[one] for one in held],
        "draws": DRAWS,
        "random ranking": round(float(relevant.mean()), 4),
        "examples": measure_classes(codes, relevant, inputs),
        f"after each {ANSWERS} answers, from {EXAMPLES[0]} examples": measure_answers(codes, relevant),
        "update": measure_update(every, model, labels[:, held[0]]),
    }
    print(measured["update"])
    store(chosen.out, measured)


if __name__ == "__main__":
    main()
