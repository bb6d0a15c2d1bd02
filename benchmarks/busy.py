"""How much slower is work beside other programs? `python -m benchmarks.busy [--out busy.json]`

A training of a head, an encoding of images and questions to a server, each in a process of its own: alone, and beside one
and two processes that keep a core busy each. Figures are ratios to the same work alone; on two cores, two such processes
leave half of the machine, so 2 is what a fair share gives. `--spinning` measures the same with OpenMP's own default of
waiting threads that spin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.reporting import arguments_of, show, store

HOGS, TURNS = (0, 1, 2), 3

TRAIN = """
import numpy as np, time, centerhash as ch
rng = np.random.default_rng(0)
features, labels = rng.standard_normal((4_000, 1_280), np.float32), rng.random((4_000, 20)) < 0.1
labels[:, 0] |= ~labels.any(axis=1)
data = ch.Dataset.from_arrays(features, labels)
ch.train(data, bits=64, epochs=1, progress=False)
started = time.perf_counter()
ch.train(data, bits=64, epochs=4, progress=False)
print(time.perf_counter() - started)
"""

ENCODE = """
import numpy as np, time, centerhash as ch
from PIL import Image
rng = np.random.default_rng(0)
images = [Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8)) for _ in range(64)]
model = ch.load("coco")
model.encode(images[:8])
started = time.perf_counter()
model.encode(images)
print(time.perf_counter() - started)
"""

INDEX = """
import numpy as np, sys, centerhash as ch
codes = np.random.default_rng(0).integers(0, 256, (1_000_000, 8), np.uint8)
with ch.Index.create(sys.argv[1], ch.load("coco")) as index:
    index.store.add(codes, [f"{row:08d}" for row in range(len(codes))])
"""

SERVE = """
import sys, time, centerhash as ch
from fastapi.testclient import TestClient
from centerhash.serve import create_app
index = ch.Index.open(sys.argv[1], read_only=True)
with TestClient(create_app(index), base_url="http://localhost") as client:
    ask = lambda row: client.get("/search", params={"id": f"{row:08d}"}).raise_for_status()
    for row in range(10): ask(row)
    started = time.perf_counter()
    for row in range(200): ask(row)
    print(time.perf_counter() - started)
"""

WORK = {"training": TRAIN, "encoding": ENCODE, "serving": SERVE}


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Keep this many cores busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def printed(code: str, index: str, environment: Mapping[str, str]) -> str:
    """What a process of its own prints that may use this index."""
    words = [sys.executable, "-c", code, index]
    return subprocess.run(words, env=dict(environment), check=True, stdout=subprocess.PIPE, text=True).stdout


def in_turns(code: str, index: str, environment: Mapping[str, str]) -> dict[str, float]:
    """How long the work says that it took alone, and how many times as long beside others: medians of some turns."""
    taken: dict[int, list[float]] = {count: [] for count in HOGS}
    for _ in range(TURNS):
        for count in HOGS:
            with hogs(count):
                taken[count].append(float(printed(code, index, environment)))
    alone = median(taken[0])
    ratios = {f"ratio beside {count}": median(taken[count]) / alone for count in HOGS if count}
    return {"seconds alone": alone, **ratios}


def main() -> None:
    """Measure in turns, print and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--spinning", action="store_true", help="with OpenMP's default of waiting")
    options = parser.parse_args()
    environment = dict(os.environ)
    environment.pop("OMP_WAIT_POLICY", None)
    if options.spinning:
        environment["OMP_WAIT_POLICY"] = "ACTIVE"
    measured: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        index = f"{folder}/index"
        printed(INDEX, index, environment)
        for name, code in WORK.items():
            measured[name] = in_turns(code, index, environment)
            show(name, measured[name])
    store(options.out, measured)


if __name__ == "__main__":
    main()
