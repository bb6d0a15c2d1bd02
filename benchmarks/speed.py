"""Speed as ratios measured in one run on one machine: `make bench`.

    python -m benchmarks.speed [--out benchmarks/results/speed.json]

Seconds differ from machine to machine and from hour to hour. A ratio to something measured at the same time holds.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import arguments_of, show, store
from centerhash import Dataset, evaluate_codes, hash_centers, train
from centerhash.losses.functional import center_distances
from centerhash.losses.ics import ICSLoss
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from centerhash.training.config import TrainConfig
from centerhash.weights import exact_weights, label_slots, printed_weights

QUERIES, DATABASE, BITS, CLASSES, DEPTH = 4_807, 112_459, 64, 80, 5_000


def seconds(
    work: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median time of `work`, after one call that does not count."""
    work()
    times = []
    for _ in range(repeats):
        started = clock()
        work()
        times.append(clock() - started)
    return statistics.median(times)


def calc_top_map(
    query: np.ndarray, database: np.ndarray, query_labels: np.ndarray, database_labels: np.ndarray
) -> float:
    """Compute mAP as the most used public code (CalcTopMap) does, in float32: a product and an argsort per query."""
    total = 0.0
    for code, labels in zip(query, query_labels, strict=True):
        relevant = (labels @ database_labels.T) > 0
        distance = 0.5 * (database.shape[1] - code @ database.T)
        hits = relevant[np.argsort(distance)][:DEPTH]
        count = int(hits.sum())
        if count:
            ranks = np.flatnonzero(hits) + 1
            total += float((np.arange(1, count + 1) / ranks).mean())
    return total / len(query)


def evaluation() -> dict[str, float]:
    """Compare all metrics at COCO's size with the loop for mAP alone, which is timed on a tenth of the queries."""
    generator = np.random.default_rng(0)
    query = np.where(generator.random((QUERIES, BITS)) < 0.5, 1, -1).astype(np.int8)
    database = np.where(generator.random((DATABASE, BITS)) < 0.5, 1, -1).astype(np.int8)
    query_labels, database_labels = (generator.random((n, CLASSES)) < 0.036 for n in (QUERIES, DATABASE))
    ours = seconds(lambda: evaluate_codes(query, database, query_labels, database_labels, k=DEPTH), repeats=3)
    part = QUERIES // 10
    tenth = query[:part], database, query_labels[:part], database_labels
    loop = partial(calc_top_map, *(array.astype(np.float32) for array in tenth))
    theirs = seconds(loop, repeats=3) * QUERIES / part
    return {
        "evaluate_seconds": ours,
        "field_loop_seconds": theirs,
        "times_faster": theirs / ours,
        "map_difference": abs(evaluate_codes(*tenth, k=DEPTH).map_retrieved - loop()),
    }


def training() -> dict[str, float]:
    """Compare epochs of a training run on frozen features at COCO's size with its matrix products alone.

    Both run on one thread and are measured in CPU time, so that other work on the machine counts for neither.
    """
    images, features, epochs = 9_602, 2_560, 4
    hidden, batch = HeadOptions().hidden[0], TrainConfig().batch_size
    generator = np.random.default_rng(0)
    labels = generator.random((images, CLASSES)) < 0.036
    labels[:, 0] |= ~labels.any(axis=1)
    data = Dataset.from_arrays(generator.standard_normal((images, features), np.float32), labels)
    steps = math.ceil(len(data.splits.train) / batch)
    inputs, units, logits = (torch.randn(batch, width) for width in (features, hidden, BITS))
    first, last = torch.randn(features, hidden), torch.randn(hidden, BITS)

    def products() -> None:
        for _ in range(steps):
            _ = inputs @ first, units @ last  # forward
            _ = inputs.T @ units, units.T @ logits, logits @ last.T  # backward

    def epoch(count: int) -> float:
        started = time.process_time()
        train(data, method="csq", bits=BITS, epochs=count, progress=False)
        return time.process_time() - started

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = [(seconds(products, 3, time.process_time), epoch(1 + epochs) - epoch(1)) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    alone, whole = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "epoch_seconds": whole / epochs,
        "products_seconds": alone,
        "times_products": statistics.median(long / epochs / short for short, long in pairs),
    }


def solver() -> dict[str, float]:
    """Compare the weight solvers at batch 64 with a training step on frozen features with the default head, in turns."""
    batch, features = 64, 1280
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(batch, CLASSES, generator=generator) < 0.036
    labels[:, 0] |= ~labels.any(dim=1)
    inputs = torch.randn(batch, features, generator=generator)
    head = build_head(features, BITS, HeadOptions())
    objective = ICSLoss(hash_centers(CLASSES, BITS))
    optimizer = torch.optim.AdamW(head.parameters())

    def step() -> None:
        optimizer.zero_grad()
        objective(head(inputs), labels).backward()
        optimizer.step()

    slots = label_slots(labels)
    logits = head(inputs).logits.detach()
    distances = center_distances(logits, objective.centers).gather(1, slots.classes) / BITS
    works: dict[str, Callable[[], Any]] = {
        "training_step": step,
        "exact_solver": lambda: exact_weights(distances, slots.mask, objective.beta, objective.entropy),
        "printed_solver": lambda: printed_weights(distances, slots.mask),
    }
    turns = [{name: seconds(work, repeats=1) for name, work in works.items()} for _ in range(50)]
    return {f"{name}_ms": 1000 * statistics.median(turn[name] for turn in turns) for name in works}


def start_up() -> dict[str, float]:
    """Compare `centerhash --help` with starting Python for nothing but `pass`."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> Callable[[], Any]:
        return lambda: subprocess.run(
            [sys.executable, *arguments], check=True, capture_output=True, env=environment
        )

    bare, help_text = seconds(run("-c", "pass")), seconds(run("-m", "centerhash", "--help"))
    return {"help_seconds": help_text, "bare_python_seconds": bare, "times_bare_python": help_text / bare}


def main() -> None:
    """Measure, print and store."""
    out = arguments_of(__doc__).parse_args().out
    measured: dict[str, Any] = {}
    for work in (evaluation, training, solver, start_up):
        measured[work.__name__] = work()
        show(work.__name__, measured[work.__name__])
    store(out, measured, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
