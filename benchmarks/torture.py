"""What is promised of stored data, tried in full: damages, crafted files, kills, failing calls. A broken promise ends it.

    python -m benchmarks.torture [--only PART] [--out benchmarks/results/torture.json]

Results are stored only if every promise was kept; those of one part replace that part only, with its commit. The tests
do the same in short. Takes about 35 minutes; needs strace.
"""

from __future__ import annotations

import os

# processes are forked, and a fork loses all threads but one: read by libraries that are imported below
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.search import crafted, system_errors
from tests.search.damages import counted, cuts, make_index, torture
from tests.search.sound_index import sound_index
from tests.search.test_store_processes import full_disk, kills

from benchmarks.reporting import arguments_of, commit, store
from centerhash.training.run import train
from tests.toys import feature_dataset, toy_config
from tests.training.test_run_interrupted import killed_training

DAMAGES, CUTS, KILLS, TRAININGS, MOMENTS = 630, 200, 300, 5, 1


def _sound(place: Path) -> Path:
    """An index with many items."""
    train(feature_dataset(), config=toy_config(), out=place / "run", progress=False)
    return make_index(place / "index", place / "run")


def _damaged(place: Path) -> dict[str, Any]:
    results, bad = counted(torture(_sound(place), place, DAMAGES))
    assert not bad, "\n".join(bad)
    return {"cases": sum(results.values()), **results, "not noticed": len(bad)}


def _cut(place: Path) -> dict[str, Any]:
    found = list(cuts(_sound(place), place, CUTS))
    assert all(found)
    return {"cases": len(found), "noticed": sum(found)}


def _crafted(place: Path) -> dict[str, Any]:
    """Use indexes with right checksums and wrong contents."""
    names = [case.name for case in crafted.cases()]
    results, bad = counted(crafted.tried(names, sound_index(place / "sound"), place))
    assert not bad, "\n".join(bad)
    return {"cases": sum(results.values()), **results}


def _failing(place: Path) -> dict[str, Any]:
    """Let calls of the operating system fail, or kill the process after them."""
    prepared, work = system_errors.prepare(place), place / "work"
    work.mkdir()
    tried = list(system_errors.injections(prepared, work, MOMENTS))
    wrong = {case: words for case in tried if (words := system_errors.failed(prepared, work, *case))}
    assert not wrong, wrong
    return {"cases": len(tried), **Counter(name for name, _ in tried)}


def _filled(place: Path) -> dict[str, Any]:
    return {"items": full_disk(place / "full")}


def _killed_training(place: Path) -> dict[str, Any]:
    return {"kills": TRAININGS, "epochs at the last kill": killed_training(place, TRAININGS)}


def _killed(place: Path) -> dict[str, Any]:
    """Kill the writers of two indexes side by side."""

    def half(seed: int) -> list[int]:
        return list(kills(place / f"killed-{seed}", KILLS // 2, seed))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(half, (1, 2)))
    return {"kills": sum(map(len, found)), "batches": sum(batches[-1] for batches in found)}


PARTS: Mapping[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "damages": ("damages", _damaged),
    "cuts": ("write-ahead logs cut after a kill", _cut),
    "crafted": ("crafted indexes", _crafted),
    "calls": ("calls that fail", _failing),
    "kills": ("kills of a writer", _killed),
    "disk": ("full disk", _filled),
    "training": ("kills of a training", _killed_training),
}


def main() -> None:
    """Try everything, print the figures and store them."""
    parser = arguments_of(__doc__)
    parser.add_argument("--only", choices=PARTS, help="try one part alone")
    options = parser.parse_args()
    if options.only in (None, "calls") and shutil.which("strace") is None:
        parser.error(system_errors.MISSING)
    figures = dict[str, Any]()
    if options.only is not None and options.out is not None and options.out.exists():
        stored = json.loads(options.out.read_text())
        figures = {name: stored[name] for name, _ in PARTS.values() if name in stored}
    for part, (name, run) in PARTS.items():
        if options.only in (None, part):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="centerhash-torture-") as place:
                found = run(Path(place))
            figures[name] = {**found, "seconds": round(time.monotonic() - begun, 1), "commit": commit()}
            print(
                f"{name}: {', '.join(f'{key} {value}' for key, value in figures[name].items())}", flush=True
            )
    store(options.out, figures)


if __name__ == "__main__":
    main()
