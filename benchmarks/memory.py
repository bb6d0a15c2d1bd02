"""Measure peak memory at two sizes of a collection, and its growth per item: `make bench`.

    python -m benchmarks.memory [--out benchmarks/results/memory.json]

Every job runs in a separate process, once small and once large. Memory of mapped files, such as features, does not count:
the system frees it when another process needs it. Compare the growth per item with the bytes of a code.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting import arguments_of, megabytes, show, store

BITS = 64
_CENTERHASH = ("-m", "centerhash")
_POLL_SECONDS = 0.02

PROLOGUE = """
import numpy as np, sys, centerhash as ch
from pathlib import Path
from PIL import Image
folder, count = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
"""
FEATURES = """
features, labels = rng.standard_normal((2_000, 256), np.float32), rng.random((2_000, 20)) < 0.1
labels[:, 0] |= ~labels.any(axis=1)
ch.train(ch.Dataset.from_arrays(features, labels), bits=64, epochs=1, out=folder / "run", progress=False)
out = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float16, (count, 256))
for at in range(0, count, 50_000):
    out[at : at + 50_000] = rng.standard_normal((min(50_000, count - at), 256), np.float32)
"""
PHOTOS = """
(folder / "photos").mkdir()
for number in range(count):
    Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)).save(folder / f"photos/{number:06d}.jpg")
"""
CODES = """
with ch.Index.create(folder / "index") as index:
    for at in range(0, count, 500_000):
        size = min(500_000, count - at)
        codes, ids = rng.integers(0, 256, (size, 8), np.uint8), [f"{at + row:016x}" for row in range(size)]
        index.add(codes=codes, ids=ids)
"""
EVALUATE = """
import numpy as np, sys, centerhash as ch
rng = np.random.default_rng(0)
queries, database = 4_807, int(sys.argv[1])
codes = [np.where(rng.random((n, 64), np.float32) < 0.5, 1, -1).astype(np.int8) for n in (queries, database)]
labels = [rng.random((n, 80), np.float32) < 0.036 for n in (queries, database)]
ch.evaluate_codes(*codes, *labels, k=5_000)
"""
SERVE = """
import sys, centerhash as ch
from fastapi.testclient import TestClient
from centerhash.serve import create_app
with ch.Index.open(sys.argv[1], read_only=True) as index:
    with TestClient(create_app(index), base_url="http://localhost") as client:
        for row in range(20):
            client.get("/search", params={"id": f"{row:016x}"}).raise_for_status()
"""


def peak(words: Sequence[str]) -> float:
    """Return the peak memory in megabytes, without mapped files, of a Python process with these arguments."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    most = 0.0
    while process.poll() is None:
        try:
            most = max(most, megabytes(process.pid).get("own", 0.0))
        except FileNotFoundError:  # the process has just ended
            break
        time.sleep(_POLL_SECONDS)
    if process.wait():
        raise SystemExit(f"{' '.join(words)[:80]} failed: see the error above.")
    return most


def create(code: str, folder: Path, count: int) -> None:
    """Create a folder, and run the code that fills it."""
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", PROLOGUE + code, str(folder), str(count)], check=True)


def indexing(folder: Path, count: int) -> float:
    """Run `photos add` of so many small photos, with the built-in model."""
    create(PHOTOS, folder, count)
    return peak([*_CENTERHASH, "photos", "add", str(folder / "index"), str(folder / "photos")])


def encoding(folder: Path, count: int) -> float:
    """Run `encode` of so many rows of features, into shards."""
    create(FEATURES, folder, count)
    paths = [str(folder / name) for name in ("run", "features.npy", "codes")]
    return peak([*_CENTERHASH, "encode", *paths[:2], "--out", paths[2]])


def evaluation(folder: Path, count: int) -> float:
    """Evaluate all metrics of COCO's 4,807 queries on a database of this size, whose codes are in memory."""
    return peak(["-c", EVALUATE, str(count)])


def serving(folder: Path, count: int) -> float:
    """Serve twenty queries by id."""
    create(CODES, folder, count)
    return peak(["-c", SERVE, str(folder / "index")])


WORK = {
    indexing: (2_000, 100_000),
    encoding: (200_000, 1_000_000),
    evaluation: (56_230, 112_459),
    serving: (1_000_000, 10_000_000),
}


def main() -> None:
    """Measure, print and store."""
    out = arguments_of(__doc__).parse_args().out
    measured: dict[str, Any] = {"bytes of a code": BITS // 8}
    for work, sizes in WORK.items():
        with tempfile.TemporaryDirectory() as folder:
            work(Path(folder) / "first", sizes[0])  # compiles loops, does not count
            small, large = (work(Path(folder) / str(size), size) for size in sizes)
        growth = 1e6 * (large - small) / (sizes[1] - sizes[0])
        figures = {f"peak MB at {sizes[0]}": small, f"peak MB at {sizes[1]}": large, "bytes per item": growth}
        measured[work.__name__] = {"about": work.__doc__, **figures}
        show(work.__name__, figures)
        store(out, measured)


if __name__ == "__main__":
    main()
