"""Ideas for our own method, each measured once: what helps codes, and what does not.

    python -m benchmarks.ideas --data coco117k [--seeds 3] [--jobs 2] [--out benchmarks/results/ideas]

On the validation split alone: three quarters of the training list are trained on, the rest asks itself. Rows are stored
as `centerhash compare` stores them, finished ones are kept, and table.md is written from them. Every idea stands beside
the training without it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from benchmarks.reporting import arguments_of
from centerhash.codes import binarize, pack, unpack
from centerhash.core.progress import silent
from centerhash.experiments.compare import train_and_evaluate
from centerhash.experiments.runner import rounded, run_tasks, select_rows
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task, make_task
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.softmax import IcsSoftmax, IcsSoftmaxOptions, step_loss
from centerhash.methods.registry import register_method

ROTATED = {"rotate": True}
TRAINING = {"learning_rate": 1e-3}  # as the grid chose it for our method
CODES_ALONE = {"evidence": False, "presence": False}  # neither changes a code
LONG = 64  # bits of the codes that are cut
SAMPLE = 2_000  # training images that say which bits to keep


class ScheduledOptions(IcsSoftmaxOptions):
    """Options of Scheduled."""


@register_method("scheduled", head=ROTATED, training=TRAINING)
class Scheduled(IcsSoftmax):
    """Lambda falls from 16 times its value, nearly equal weights, to a quarter of it, sharp ones."""

    options: ScheduledOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of the code with the lambda of this moment."""
        entropy = self.entropy * 16 * (1 / 64) ** batch.progress
        return {"center": step_loss(self.distances(batch.logits), batch.labels, entropy)}


class TurnedOptions(IcsSoftmaxOptions):
    """Options of Turned."""


@register_method("turned", head=ROTATED, training=TRAINING)
class Turned(IcsSoftmax):
    """The centers are turned by a matrix (K, K) that learns with the head, from the identity."""

    options: TurnedOptions

    def __init__(self, centers: Tensor | NDArray[Any], **values: Any) -> None:
        super().__init__(centers, **values)
        self.turn = nn.Parameter(torch.eye(self.centers.shape[1]))

    def distances(self, logits: Tensor) -> Tensor:
        """Negative log-likelihood (B, C) of each turned center."""
        cosines = normalize(logits, dim=1) @ normalize(self.centers @ self.turn, dim=1).T
        return -log_softmax(self.scale * cosines, dim=1)


class PrecisionOptions(IcsSoftmaxOptions):
    """Options of Precision."""

    coefficient: float = 4.0


@register_method("precision", head=ROTATED, training=TRAINING)
class Precision(IcsSoftmax):
    """Beside our loss, the average precision of the batch itself, ranked by relaxed codes (as FastAP, Cakir 2019)."""

    options: PrecisionOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Our loss, and one minus the average precision of each image."""
        own = step_loss(self.distances(batch.logits), batch.labels, self.entropy)
        return {"center": own, "ap": self.options.coefficient * (1 - soft_precision(batch))}


def soft_precision(batch: Batch, bins: int = 16) -> Tensor:
    """Average precision (B,) of every image's ranking of its batch, distances counted in soft bins."""
    bits = batch.logits.shape[1]
    codes = torch.tanh(normalize(batch.logits, dim=1) * math.sqrt(bits))
    places = (1 - codes @ codes.T / bits) / 2 * bins
    labels = batch.labels.float()
    others = 1 - torch.eye(len(labels))
    relevant = ((labels @ labels.T) > 0) * others
    share = (1 - (places[..., None] - torch.arange(bins + 1.0)).abs()).clamp_min(0)  # (B, B, bins + 1)
    hits, all_of_them = ((share * chosen[..., None]).sum(dim=1) for chosen in (relevant, others))
    precision = hits.cumsum(dim=1) / all_of_them.cumsum(dim=1).clamp_min(1e-6)
    return (hits * precision).sum(dim=1) / relevant.sum(dim=1).clamp_min(1)


def best_bits(codes: NDArray[np.int8], labels: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """The `count` bits of codes (n, K) whose agreement best tells images that share a label, found one by one."""
    relevant = (labels.astype(np.float32) @ labels.T.astype(np.float32)) > 0
    upper = np.triu_indices(len(codes), 1)
    target = relevant[upper].astype(np.float32)
    target -= target.mean()
    agreements = [np.outer(bit, bit)[upper] for bit in codes.T.astype(np.float32)]
    total, chosen = np.zeros_like(target), list[int]()
    for _ in range(count):
        left = [bit for bit in range(codes.shape[1]) if bit not in chosen]
        sums = {bit: total + agreements[bit] for bit in left}
        chosen.append(max(left, key=lambda bit: float(target @ sums[bit]) / float(sums[bit].std())))
        total = sums[chosen[-1]]
    return np.sort(np.array(chosen))


def cut(setup: EvaluationSetup, task: Task) -> Row:
    """Train codes of `LONG` bits, keep the best of them, and score these."""
    model = setup.train(task)
    splits, bits = setup.dataset.splits, int(task.about["bits"])
    sample = np.sort(splits.train)[:: max(1, len(splits.train) // SAMPLE)]
    kept = best_bits(binarize(model.logits(setup.features[sample])), setup.dataset.labels[sample], bits)
    codes = [
        pack(np.ascontiguousarray(unpack(setup.encode(model, rows), LONG)[:, kept]))
        for rows in (splits.query, splits.database)
    ]
    found = setup.evaluate(bits, *codes)
    return {"config": dict(task.resolved), "evaluation": rounded(found.to_dict())}


def work(setup: EvaluationSetup, task: Task) -> Row:
    row = cut(setup, task) if task.about["idea"] == "cut" else train_and_evaluate(setup, task)
    return {**row, "about": dict(task.about)}


# idea: what it is beside, what is trained, at which bits; centers are random where there are no Hadamard ones
IDEAS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "ours": ("ours", "as it is", {}, (16, 32, 64)),
    "mdsh": ("ours", "centers with the largest minimum distance found", {"centers": "mdsh"}, (16, 32)),
    "scheduled": ("ours", Scheduled.__doc__ or "", {"method": "benchmarks.ideas:Scheduled"}, (16, 64)),
    "turned": ("ours", Turned.__doc__ or "", {"method": "benchmarks.ideas:Turned"}, (16, 64)),
    "precision": ("ours", Precision.__doc__ or "", {"method": "benchmarks.ideas:Precision"}, (16, 64)),
    "cut": ("ours", f"{LONG} bits cut to the best ones", {"bits": LONG}, (16, 32)),
    "wide": ("ours", "2,048 hidden units instead of 1,024", {"head": {"hidden": (2048,)}}, (64,)),
    "long": ("ours", "60 epochs instead of 30", {"epochs": 60}, (64,)),
}

for _rival in ("csq", "ics", "orthohash"):
    IDEAS |= {
        _rival: (_rival, f"{_rival} as it is", {"method": _rival}, (16,)),
        f"{_rival}-mdsh": (
            _rival,
            f"{_rival}: the same centers",
            {"method": _rival, "centers": "mdsh"},
            (16,),
        ),
    }


def _centers(bits: int) -> dict[str, str]:
    return {} if bits == LONG else {"centers": "random"}


def tasks_of(idea: str, seeds: int) -> list[Task]:
    _, _, options, lengths = IDEAS[idea]
    given = {"method": "ics-softmax", **options}
    head = {**(CODES_ALONE if given["method"] == "ics-softmax" else {}), **given.get("head", {})}
    return [
        make_task(
            {"bits": bits, **_centers(given.get("bits", bits)), **given, "head": head, "seed": seed},
            idea=idea,
            bits=bits,
        )
        for seed in range(seeds)
        for bits in lengths
    ]


def scores_of(rows: list[Row], idea: str, bits: int, seeds: int) -> dict[int, NDArray[np.float64]]:
    """Both mAPs by seed."""
    wanted = [task for task in tasks_of(idea, seeds) if task.about["bits"] == bits]
    return {
        row["config"]["seed"]: np.array([row["evaluation"][name] for name in ("map_peers", "map_textbook")])
        for row in select_rows(rows, wanted)
    }


def table(rows: list[Row], seeds: int) -> str:
    """Means and deviations over seeds; what changed, over the seeds that an idea shares with what it stands beside."""
    lines = []
    for idea, (beside, about, _, lengths) in IDEAS.items():
        for bits in lengths:
            own, other = (scores_of(rows, name, bits, seeds) for name in (idea, beside))
            shared = sorted(own.keys() & other.keys())
            if not shared:
                continue
            mean, changes = np.mean(list(own.values()), axis=0), np.array([own[s] - other[s] for s in shared])
            spread = np.std(list(own.values()), axis=0, ddof=1) if len(own) > 1 else np.zeros(2)
            cells = [f"{value:.3f} ± {by:.3f}" for value, by in zip(mean, spread, strict=True)]
            change = "" if idea == beside else " / ".join(f"{value:+.3f}" for value in changes.mean(axis=0))
            what = " ".join(about.split()).rstrip(".")
            lines.append([idea, what, str(bits), *cells, change, str(len(own))])
    return markdown_table(["idea", "what", "bits", "mAP peers", "textbook", "change", "seeds"], lines)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(IDEAS), choices=list(IDEAS))
    chosen = parser.parse_args()
    out = chosen.out or Path("benchmarks/results/ideas")
    tasks = [replace(task, note=idea) for idea in chosen.only for task in tasks_of(idea, chosen.seeds)]
    tasks.sort(key=lambda task: task.config.seed)

    def tell(done: int, total: int, task: Task, row: Row) -> None:
        score = row.get("evaluation", {}).get("map_peers", row.get("error"))
        print(f"{done}/{total} {task.name}: {score}", flush=True)

    source = Source(chosen.data, validation=True)
    rows, failures = run_tasks(source, tasks, out, work, jobs=chosen.jobs, progress=silent, on_done=tell)
    text = table(rows, chosen.seeds)
    (out / "table.md").write_text(f"# Ideas, on the validation split\n\n{text}\n")
    print(text)
    if failures:
        raise SystemExit(f"{len(failures)} trainings failed: {failures[0]}")


if __name__ == "__main__":
    main()
