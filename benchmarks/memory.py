"""Memory at its peak, at two sizes each: does it grow with the collection? `make bench`

    python -m benchmarks.memory [--out benchmarks/results/memory.json]

Every job runs in a process of its own, once small and once large. What counts is the process's own memory; features are
mapped from their files, which the system keeps in memory as long as nothing else needs it. The growth per item stands
beside the bytes of one code.
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
_LOOK = 0.02  # seconds between two looks at a process

MAKE = """
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
        some = min(500_000, count - at)
        codes, ids = rng.integers(0, 256, (some, 8), np.uint8), [f"{at + row:016x}" for row in range(some)]
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
    """The most memory of its own, in megabytes, that a Python process of these arguments had."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    most = 0.0
    while process.poll() is None:
        try:
            most = max(most, megabytes(process.pid).get("own", 0.0))
        except FileNotFoundError:  # it has just ended
            break
        time.sleep(_LOOK)
    if process.wait():
        raise SystemExit(f"{' '.join(words)[:80]} failed; what it says stands above.")
    return most


def made(code: str, folder: Path, count: int) -> Path:
    """Run the code that fills a folder, and return the folder."""
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", MAKE + code, str(folder), str(count)], check=True)
    return folder


def indexing(folder: Path, count: int) -> float:
    """`photos add` of so many small photos, with the built-in model."""
    place = made(PHOTOS, folder, count)
    return peak([*_CENTERHASH, "photos", "add", str(place / "index"), str(place / "photos")])


def encoding(folder: Path, count: int) -> float:
    """`encode` of so many rows of features, into shards."""
    place = made(FEATURES, folder, count)
    words = ["encode", *map(str, (place / "run", place / "features.npy")), "--out", str(place / "codes")]
    return peak([*_CENTERHASH, *words])


def evaluation(folder: Path, count: int) -> float:
    """All measures of COCO's 4,807 queries against a database of this size, whose codes are in memory."""
    return peak(["-c", EVALUATE, str(count)])


def serving(folder: Path, count: int) -> float:
    """A server that has answered twenty questions by id."""
    return peak(["-c", SERVE, str(made(CODES, folder, count) / "index")])


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
            work(Path(folder) / "first", sizes[0])  # compiles loops, and does not count
            small, large = (work(Path(folder) / str(size), size) for size in sizes)
        growth = 1e6 * (large - small) / (sizes[1] - sizes[0])
        figures = {f"peak MB at {sizes[0]}": small, f"peak MB at {sizes[1]}": large, "bytes per item": growth}
        measured[work.__name__] = {"about": work.__doc__, **figures}
        show(work.__name__, figures)
        store(out, measured)


if __name__ == "__main__":
    main()
