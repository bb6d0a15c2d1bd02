"""mAP of the central methods on a data set: raw results as json lines, and the table made from them.

    python -m benchmarks.table DATA --out benchmarks/results/coco117k.jsonl --bits 16,32,64 --seeds 3
    python -m benchmarks.table DATA --validation --out validation.jsonl -o ics:lambda=0.2

DATA is a folder as for `centerhash train`. Finished rows are skipped, so a killed run goes on. With
`--validation` a quarter of the training list is held out and asks itself, each query without its own item,
at a depth scaled to its size: the only split on which settings may be chosen.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.data import Dataset, Splits, open_dataset
from centerhash.methods import METHODS
from centerhash.runs import evaluate_model, fit, resolve, versions
from centerhash.train import TrainConfig


def validation_split(dataset: Dataset, seed: int = 0) -> Dataset:
    """Keep three quarters of the training list to train on; the rest is both query and database."""
    order = np.random.default_rng(seed).permutation(dataset.splits.train)
    held_out = np.sort(order[: len(order) // 4])
    return dataset.with_splits(Splits(np.sort(order[len(order) // 4 :]), held_out, held_out, "validation"))


def run_cell(dataset: Dataset, config: TrainConfig, validation: bool) -> dict[str, Any]:
    """Train and evaluate one cell of the table."""
    started = time.perf_counter()
    model = fit(dataset, config)
    trained = time.perf_counter()
    splits = dataset.splits
    found = evaluate_model(
        model,
        dataset,
        k=max(1, round(5000 / 112_459 * len(splits.database))) if validation else 5000,
        exclude_self=validation,
    )
    evaluated = time.perf_counter()
    return {
        "data": dataset.name,
        "split": splits.made,
        "images": {name: len(getattr(splits, name)) for name in ("train", "query", "database")},
        "config": resolve(config).model_dump(mode="json"),
        "evaluation": {k: v for k, v in found.to_dict().items() if k != "curve"},
        "train_seconds": trained - started,
        "evaluate_seconds": evaluated - trained,
        "versions": versions(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: per method and number of bits, mean and deviation over the seeds, peers' / textbook mAP."""
    cells: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        key = (row["config"]["method"], row["config"]["bits"])
        cells.setdefault(key, []).append((row["evaluation"]["map_peers"], row["evaluation"]["map_textbook"]))
    lengths = sorted({bits for _, bits in cells})
    lines = [
        "| method | " + " | ".join(f"{bits} bits" for bits in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for name in [name for name in METHODS if any(name == method for method, _ in cells)]:
        texts = []
        for bits in lengths:
            values = np.array(cells.get((name, bits), []))
            if not len(values):
                texts.append("")
                continue
            (peers, textbook), deviation = values.mean(axis=0), values.std(axis=0)[0]
            texts.append(f"{peers:.3f} ± {deviation:.3f} / {textbook:.3f}")
        lines.append(f"| {METHODS[name].title} | " + " | ".join(texts) + " |")
    first = rows[0]["evaluation"]
    chance = f"{first['chance_peers']:.3f} / {first['chance_textbook']:.3f}"
    lines.append("| chance | " + " | ".join([chance] * len(lengths)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="json lines of raw results")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--bits", default="16,32,64")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("-o", "--option", action="append", default=[], help="METHOD:NAME=VALUE")
    parser.add_argument(
        "--set", action="append", default=[], help="training option NAME=JSON, e.g. epochs=20"
    )
    arguments = parser.parse_args()

    dataset = open_dataset(arguments.data)
    if arguments.validation:
        dataset = validation_split(dataset)
    rows = (
        [json.loads(line) for line in arguments.out.read_text().splitlines()]
        if arguments.out.exists()
        else []
    )
    extra = {name: json.loads(value) for name, value in (text.split("=", 1) for text in arguments.set)}
    for bits in map(int, arguments.bits.split(",")):
        for method in arguments.methods.split(","):
            chosen = [text.split(":", 1)[1] for text in arguments.option if text.startswith(method + ":")]
            options = dict(text.split("=", 1) for text in chosen)
            for seed in range(arguments.seeds):
                config = TrainConfig(method=method, bits=bits, seed=seed, options=options, **extra)
                wanted = resolve(config).model_dump(mode="json")
                if any(row["config"] == wanted and row["split"] == dataset.splits.made for row in rows):
                    continue
                row = run_cell(dataset, config, arguments.validation)
                rows.append(row)
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                found = row["evaluation"]
                print(
                    f"{method} {bits} bits seed {seed} {chosen}: {found['map_peers']:.4f} peers, "
                    f"{found['map_textbook']:.4f} textbook, {row['train_seconds']:.0f} s",
                    flush=True,
                )
    print(table(rows))


if __name__ == "__main__":
    main()
