"""The store of an index at several sizes: disk, memory, and the time of each operation. Part of `make bench`.

    python -m benchmarks.store [--sizes 100000 1000000 10000000] [--out benchmarks/results/store.json]

Items have ids, paths, dates, cameras, two labels, scores of eight labels, 64-bit semantic and 128-bit visual codes. Each
size is filled by one process, then measured by another, whose memory is reported. Times are medians in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import megabytes
from benchmarks.reporting import arguments_of, show, store
from centerhash.search.items import PhotoInfo

SIZES = (100_000, 1_000_000, 10_000_000)  # the last takes 4 GB of disk
PAGE, BITS, CLASSES, REPEATS = 1 << 16, 64, 80, 21
NAMES = [f"class {number}" for number in range(CLASSES)]
CAMERAS = [f"Maker Model {number}" for number in range(12)]


def item_id(row: int) -> str:
    return hashlib.sha256(b"%d" % row).hexdigest()[:16]


def pages(count: int) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of `Store.add`."""
    generator = np.random.default_rng(0)
    for start in range(0, count, PAGE):
        rows = range(start, min(start + PAGE, count))
        chosen = generator.random((len(rows), CLASSES), np.float32).argsort(axis=1)[:, :8].tolist()
        levels = generator.integers(0, 256, (len(rows), 8, 2)).tolist()
        scores = [
            {NAMES[j]: (p, s) for j, (p, s) in zip(*row, strict=True)}
            for row in zip(chosen, levels, strict=True)
        ]
        yield (
            generator.integers(0, 256, (len(rows), BITS // 8), np.uint8),
            [item_id(row) for row in rows],
            [tuple(row)[:2] for row in scores],
            [f"/home/somebody/collection/photos/{row // 1000:05d}/{row:08d}.jpg" for row in rows],
            generator.integers(0, 256, (len(rows), 16), np.uint8),
            scores,
            [
                PhotoInfo(1e9 + 300.0 * (row * 7919 % count), CAMERAS[row % len(CAMERAS)], 4000, 3000)
                for row in rows
            ],
        )


def fill(folder: Path, count: int) -> dict[str, float]:
    """Import items as `index import` does, with commits that grow; return the time per item."""
    from centerhash.search.store import Store

    spent = done = 0.0
    with Store.create(folder, BITS) as made:
        waiting = pages(count)
        while done < count:
            least = done + max(PAGE, done // 4)
            started, ready = time.perf_counter(), 0.0
            with made.transaction():
                while done < min(least, count):
                    made_at = time.perf_counter()
                    columns = next(waiting)
                    ready += time.perf_counter() - made_at
                    made.add(*columns)
                    done += len(columns[1])
            spent += time.perf_counter() - started - ready
    return {"import_us_per_item": 1e6 * spent / count}


def median_ms(work: Callable[[int], Any]) -> float:
    """Milliseconds of `work`, after two calls that do not count."""
    times = []
    for number in range(REPEATS + 2):
        started = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[2:])


def measure(folder: Path, count: int) -> dict[str, float]:
    """Times and memory of a process that reads, then of one that adds."""
    import centerhash.search.scan  # noqa: F401 - a server has compiled its loops
    from centerhash.search.items import Filter
    from centerhash.search.rankings import ByBoth, ByLabels, BySemantic
    from centerhash.search.store import Store

    generator = np.random.default_rng(1)
    centers = generator.choice([-1, 1], (CLASSES, BITS)).astype(np.int8)
    started = time.perf_counter()
    with Store.open(folder, read_only=True) as opened:
        figures = {"open_ms": 1000 * (time.perf_counter() - started)}
        started = time.perf_counter()
        opened.search(BySemantic(np.zeros(BITS // 8, np.uint8)), 10)
        figures["first_search_ms"] = 1000 * (time.perf_counter() - started)

        def query(number: int) -> Any:
            return opened.get([item_id(number * 37 % count)])[0]

        def by_both(number: int) -> Any:
            item = query(number)
            return opened.search(ByBoth(item.code, item.visual[None]), 10)

        def by_labels(number: int) -> Any:
            chosen = {NAMES[number % CLASSES]: 0.7, NAMES[(number + 7) % CLASSES]: 0.3}
            columns = {name: NAMES.index(name) for name in chosen}
            return opened.search(ByLabels(query(number).code, chosen, centers, columns), 10)

        figures |= {
            "by_id_semantic_ms": median_ms(lambda n: opened.search(BySemantic(query(n).code), 10)),
            "by_id_ms": median_ms(by_both),
            "by_labels_ms": median_ms(by_labels),
            "filtered_ms": median_ms(
                lambda n: opened.search(BySemantic(query(n).code), 10, Filter((NAMES[n % CLASSES],)))
            ),
            "newest_100_ms": median_ms(lambda n: opened.newest(0, 100, Filter())),
            "newest_100_of_a_label_ms": median_ms(lambda n: opened.newest(0, 100, Filter((NAMES[n % 80],)))),
            "newest_100_after_ms": median_ms(
                lambda n: opened.newest(
                    0, 100, Filter(after=1e9 + 150.0 * count, before=1e9 + (151.0 + n) * count)
                )
            ),
            "newest_100_of_a_camera_ms": median_ms(
                lambda n: opened.newest(0, 100, Filter(cameras=(CAMERAS[n % len(CAMERAS)],)))
            ),
            "newest_100_under_ms": median_ms(
                lambda n: opened.newest(0, 100, Filter(under=(f"/home/somebody/collection/photos/{n:05d}/",)))
            ),
            "months_ms": median_ms(lambda n: opened.months(Filter())),
        }
        import os

        figures["memory_mb"] = megabytes(os.getpid())["own"]
    figures["bytes_per_item"] = sum(file.stat().st_size for file in folder.glob("items.db*")) / count
    with Store.open(folder) as writer:
        figures["one_add_ms"] = median_ms(
            lambda n: writer.add(
                np.zeros((1, 8), np.uint8), [f"new {n}"], [[NAMES[0]]], [f"/new/photo {n}.jpg"]
            )
        )
        figures["one_remove_ms"] = median_ms(lambda n: writer.remove([f"new {n}"]))
    return figures


def in_process(work: str, folder: Path, count: int) -> dict[str, float]:
    """Run `fill` or `measure` in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.store",
        "--work",
        work,
        "--folder",
        str(folder),
        "--sizes",
        str(count),
    ]
    found: dict[str, float] = json.loads(
        subprocess.run(words, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--work", choices=("fill", "measure"))
    parser.add_argument("--folder", type=Path, help="where the databases are made, several gigabytes")
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps((fill if options.work == "fill" else measure)(options.folder, *options.sizes)))
        return
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        for count in options.sizes:
            folder = Path(place) / str(count)
            measured[f"{count:,}"] = in_process("fill", folder, count) | in_process("measure", folder, count)
            show(f"{count:,} items", measured[f"{count:,}"])
            store(options.out, measured)


if __name__ == "__main__":
    main()
