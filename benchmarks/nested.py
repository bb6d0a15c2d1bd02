"""Nested codes compared with codes of one length each: mAP@5000 of one training run for 16, 32 and 64 bits.

    python -m benchmarks.nested --data coco117k --work FOLDER [--methods ics-softmax,ics,csq]
        [--out benchmarks/results/nested.json]

DATA is the dataset of benchmarks/results/coco117k, whose rows of seed 0 are the single runs. Runs in WORK are kept, and
resumed after a stop.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.reporting import ROOT, arguments_of, show, store
from centerhash.training.run import evaluate, train

LENGTHS, SEED = (16, 32, 64), 0


def single_runs() -> dict[tuple[str, int], float]:
    """Return the stored mAP of single runs, by method and bits."""
    lines = (ROOT / "benchmarks" / "results" / "coco117k" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        (row["config"]["method"], row["config"]["bits"]): row["evaluation"]["map_peers"]
        for row in rows
        if row["config"]["seed"] == SEED
    }


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--methods", default="ics-softmax,ics,csq")
    arguments = parser.parse_args()
    single, found = single_runs(), {}
    for method in arguments.methods.split(","):
        run = arguments.work / method
        model = train(arguments.data, method=method, bits=list(LENGTHS), seed=SEED, out=run)
        for bits in LENGTHS:
            nested = evaluate(model if bits == LENGTHS[-1] else model.at(bits), arguments.data).map_peers
            figures = {"single": single[method, bits], "nested": nested}
            found[f"{method}, {bits} bits"] = figures | {"difference": nested - single[method, bits]}
            show(f"{method}, {bits} bits", found[f"{method}, {bits} bits"])
    store(arguments.out, {"seed": SEED, "found": found})


if __name__ == "__main__":
    main()
