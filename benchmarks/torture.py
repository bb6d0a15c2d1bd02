"""What is promised of stored data, tried in full: damages, cuts, kills and full disks. A broken promise ends it.

    python -m benchmarks.torture [--out benchmarks/results/torture.json]

Results are stored only if every promise was kept. The tests do the same in short. Takes about 25 minutes.
"""

from __future__ import annotations

import os

# processes are forked, and a fork loses all threads but one: read by libraries that are imported below
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.reporting import arguments_of, store
from centerhash.training.run import train
from tests.search.damages import counted, cuts, make_index, torture
from tests.search.test_store_processes import full_disk, kills
from tests.toys import feature_dataset, toy_config
from tests.training.test_run_interrupted import killed_training

DAMAGES, CUTS, KILLS, TRAININGS = 630, 200, 300, 5


def measured(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each part, by its name."""
    train(feature_dataset(), config=toy_config(), out=place / "run", progress=False)
    sound = make_index(place / "index", place / "run")
    results, bad = counted(torture(sound, place, DAMAGES))
    assert not bad, "\n".join(bad)
    yield "damages", {"cases": sum(results.values()), **results, "not noticed": len(bad)}
    found = list(cuts(sound, place, CUTS))
    assert all(found)
    yield "write-ahead logs cut after a kill", {"cases": len(found), "noticed": sum(found)}
    yield "kills of a writer", _killed(place)
    yield "full disk", {"items": full_disk(place / "full")}
    (place / "training").mkdir()
    reached = killed_training(place / "training", TRAININGS)
    yield "kills of a training", {"kills": TRAININGS, "epochs at the last kill": reached}


def _killed(place: Path) -> dict[str, Any]:
    """Kill the writers of two indexes side by side."""

    def half(seed: int) -> list[int]:
        return list(kills(place / f"killed-{seed}", KILLS // 2, seed))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(half, (1, 2)))
    return {"kills": sum(map(len, found)), "batches": sum(batches[-1] for batches in found)}


def main() -> None:
    """Try everything, print the figures and store them."""
    parser = arguments_of(__doc__)
    options = parser.parse_args()
    figures = dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="centerhash-torture-") as place:
        begun = time.monotonic()
        for name, found in measured(Path(place)):
            figures[name] = {**found, "seconds": round(time.monotonic() - begun, 1)}
            begun = time.monotonic()
            print(
                f"{name}: {', '.join(f'{key} {value}' for key, value in figures[name].items())}", flush=True
            )
    store(options.out, figures)


if __name__ == "__main__":
    main()
