"""Measure the index at several sizes: disk, memory, and times, compared with Faiss and numpy. Part of `make bench`.

    python -m benchmarks.store [--items 100000 1000000 10000000] [--out benchmarks/results/store.json]

Items have ids, a number, two labels, scores of eight labels, and 64-bit semantic and 128-bit general codes in an index of
the built-in model. Each size is filled by one process, then measured by another, whose memory is reported. The search by
a semantic code takes turns with Faiss' IndexBinaryFlat and numpy. Times are medians in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, megabytes, show, store
from centerhash.index import Index

# The largest index needs 3 GB of disk.
ITEMS = (100_000, 1_000_000, 10_000_000)
ITEMS_PER_ADD, CODE_BYTES, GENERAL_BYTES, CLASSES, REPEATS = 1 << 16, 8, 16, 80, 21


def item_id(row: int) -> str:
    return hashlib.sha256(b"%d" % row).hexdigest()[:16]


def columns(names: tuple[str, ...], start: int, end: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Index.add` for a range of rows."""
    generator, rows = np.random.default_rng(start), range(start, end)
    labels = generator.random((len(rows), CLASSES), np.float32).argsort(axis=1)[:, :8].tolist()
    levels = generator.integers(0, 256, (len(rows), 8, 2)).tolist()
    return {
        "codes": generator.integers(0, 256, (len(rows), CODE_BYTES), np.uint8),
        "general": generator.integers(0, 256, (len(rows), GENERAL_BYTES), np.uint8),
        "ids": [item_id(row) for row in rows],
        "labels": [[names[number] for number in row[:2]] for row in labels],
        "scores": [
            {names[number]: (p, s) for number, (p, s) in zip(*row, strict=True)}
            for row in zip(labels, levels, strict=True)
        ],
        "attributes": {"taken": 1e9 + 300.0 * (np.array(rows) * 7919 % count)},
    }


def fill(folder: Path, count: int) -> dict[str, float]:
    """Add items in commits that grow as those of an import; return the time per item."""
    seconds, added = 0.0, 0
    with Index.create(folder, attributes={"taken": float}) as index:
        while added < count:
            end, started, creation = added + max(ITEMS_PER_ADD, added // 4), time.perf_counter(), 0.0
            with index.transaction():
                while added < min(end, count):
                    creation_started = time.perf_counter()
                    rows = columns(index.classes, added, min(added + ITEMS_PER_ADD, count), count)
                    creation += time.perf_counter() - creation_started
                    added += index.add(**rows).added
            seconds += time.perf_counter() - started - creation
    return {"import_us_per_item": 1e6 * seconds / count}


def median_ms(work: Callable[[int], Any]) -> float:
    """Return the median milliseconds of `work`, after two calls to warm up."""
    times = []
    for number in range(REPEATS + 2):
        started = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[2:])


def measure(folder: Path, count: int) -> dict[str, float]:
    """Return times and memory of a process that reads, then times of one that adds."""
    started = time.perf_counter()
    index = Index.open(folder, read_only=True)
    results = {"open_ms": 1000 * (time.perf_counter() - started)}
    started = time.perf_counter()
    index.search(code=bytes(CODE_BYTES).hex(), by="semantic")
    results["first_search_ms"] = 1000 * (time.perf_counter() - started)
    ids = [item_id(row * 37 % count) for row in range(REPEATS + 2)]

    def label(number: int) -> str:
        return index.classes[number % CLASSES]

    results |= {
        "by_id_semantic_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic")),
        "by_id_ms": median_ms(lambda n: index.search(id=ids[n])),
        "by_labels_ms": median_ms(lambda n: index.search(labels={label(n): 0.7, label(n + 7): 0.3})),
        "having_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic", having=label(n))),
        "where_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic", where={"taken": (1.001e9, None)})),
        "like_ms": median_ms(lambda n: index.search(like=ids[:3], unlike=ids[3:5])),
        "newest_100_ms": median_ms(lambda n: index.list(0, 100, order="taken")),
        "newest_100_of_a_label_ms": median_ms(lambda n: index.list(0, 100, order="taken", having=label(n))),
        "get_100_ms": median_ms(lambda n: index.get([item_id((row * 991 + n) % count) for row in range(100)])),
        "count_ms": median_ms(lambda n: index.count()),
        "memory_mb": megabytes(os.getpid())["own"],
        "bytes_per_item": sum(file.stat().st_size for file in folder.glob("items.db*")) / count,
        **compare_scans(index, count),
    }  # fmt: skip
    with Index.open(folder) as writer:
        row = {"codes": np.zeros((1, CODE_BYTES), np.uint8), "labels": [[label(0)]]}
        results["one_add_ms"] = median_ms(lambda n: writer.add(ids=[f"new {n}"], **row))
        index.search(id=ids[0])
        results["search_after_add_ms"] = median_ms(
            lambda n: (writer.add(ids=[f"more {n}"], **row), index.search(id=ids[0], by="semantic"))
        )
        results["one_remove_ms"] = median_ms(lambda n: writer.remove([f"new {n}"]))
        results["hide_ms"] = median_ms(lambda n: writer.hide(ids[n]))
    index.close()
    return results


def compare_scans(index: Index, count: int) -> dict[str, float]:
    """Return the times of the ten nearest of `count` random codes, the hardest case for approximate search."""
    # An earlier import would increase the memory that is reported for the index.
    import faiss

    codes = np.random.default_rng(0).integers(0, 256, (count, CODE_BYTES), np.uint8)
    words = codes.view("u8")[:, 0]
    flat = faiss.IndexBinaryFlat(8 * CODE_BYTES)
    flat.add(codes)
    searches: dict[str, Callable[[Any], Any]] = {
        "by_code": lambda query: index.search(code=query, by="semantic"),
        "numpy": lambda query: np.argpartition(np.bitwise_count(words ^ query.view("u8")), 10),
        "faiss": lambda query: flat.search(query[None], 10),
    }
    times: dict[str, list[float]] = {name: [] for name in searches}
    for query in codes[: REPEATS + 1]:
        for name, search in searches.items():
            started = time.perf_counter()
            search(query)
            times[name].append(time.perf_counter() - started)
    return {f"{name}_ms": 1000 * statistics.median(seconds[1:]) for name, seconds in times.items()}


def in_process(work: str, folder: Path, count: int) -> dict[str, float]:
    """Run `fill` or `measure` in a new process."""
    words = ["-m", "benchmarks.store", "--work", work, "--folder", str(folder), "--items", str(count)]
    finished = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True)
    results: dict[str, float] = json.loads(finished.stdout)
    return results


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=ITEMS)
    parser.add_argument("--folder", type=Path, help="folder for the indexes, several gigabytes")
    parser.add_argument(
        "--work", choices=("fill", "measure"), help="run this step on --folder in this process"
    )
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps((fill if options.work == "fill" else measure)(options.folder, *options.items)))
        return
    results: dict[str, Any] = {}
    for count in options.items:
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            folder = Path(temporary) / "index"
            results[f"{count:,}"] = in_process("fill", folder, count) | in_process("measure", folder, count)
        show(f"{count:,} items", results[f"{count:,}"])
        store(options.out, results)


if __name__ == "__main__":
    main()
