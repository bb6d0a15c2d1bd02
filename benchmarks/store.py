"""The index at several sizes: disk, memory, and the time of each operation; and the scan beside Faiss and numpy.

    python -m benchmarks.store [--sizes 100000 1000000 10000000] [--quick] [--out benchmarks/results/store.json]

Items have ids, a number, two labels, scores of eight labels, 64-bit semantic and 128-bit general codes.
Each size is filled by one process, then measured by another, whose memory is reported. The scan takes turns with Faiss'
IndexBinaryFlat and numpy. Times are medians in milliseconds. Part of `make bench`.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, show, store
from centerhash.codes import Packed
from centerhash.index import Index, scan
from centerhash.index.index import ITEMS
from centerhash.index.items import Facts
from centerhash.index.query import ModelInfo
from centerhash.index.store import Store

SIZES = (100_000, 1_000_000, 10_000_000)  # the last takes 3 GB of disk
PAGE, BITS, GENERAL_BITS, CLASSES, REPEATS = 1 << 16, 64, 128, 80, 21
NAMES = tuple(f"class {number}" for number in range(CLASSES))
ATTRIBUTES = ("taken",)


def item_id(row: int) -> str:
    return hashlib.sha256(b"%d" % row).hexdigest()[:16]


def columns(start: int, end: int, count: int) -> dict[str, Any]:
    """The arguments of `Index.add` for some rows."""
    generator, rows = np.random.default_rng(start), range(start, end)
    labels = generator.random((len(rows), CLASSES), np.float32).argsort(axis=1)[:, :8].tolist()
    levels = generator.integers(0, 256, (len(rows), 8, 2)).tolist()
    return {
        "codes": generator.integers(0, 256, (len(rows), BITS // 8), np.uint8),
        "general": generator.integers(0, 256, (len(rows), GENERAL_BITS // 8), np.uint8),
        "ids": [item_id(row) for row in rows],
        "labels": [[NAMES[number] for number in row[:2]] for row in labels],
        "scores": [
            {NAMES[j]: (p, s) for j, (p, s) in zip(*row, strict=True)}
            for row in zip(labels, levels, strict=True)
        ],
        "attributes": {"taken": 1e9 + 300.0 * (np.array(rows) * 7919 % count)},
    }


def fill(folder: Path, count: int) -> dict[str, float]:
    """Add items, with commits that grow as those of an import; return the time per item."""
    centers = np.random.default_rng(1).choice([-1, 1], (CLASSES, BITS)).astype(np.int8)
    info = ModelInfo(BITS, GENERAL_BITS, "none", None, NAMES, 0.0, centers, centers.astype(np.float32))
    facts = Facts(BITS, GENERAL_BITS, dict.fromkeys(ATTRIBUTES, "number"), info.to_json())
    folder.mkdir()
    Store.create(folder / ITEMS, facts, NAMES).close()
    spent, done = 0.0, 0
    with Index.open(folder) as index:
        while done < count:
            least, started, ready = done + max(PAGE, done // 4), time.perf_counter(), 0.0
            with index.transaction():
                while done < min(least, count):
                    made = time.perf_counter()
                    added = columns(done, min(done + PAGE, count), count)
                    ready += time.perf_counter() - made
                    done += index.add(**added).added
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


def memory_mb() -> float:
    """Memory of this process without shared libraries."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(folder: Path, count: int) -> dict[str, float]:
    """Times and memory of a process that reads, then of one that adds."""
    started = time.perf_counter()
    index = Index.open(folder, read_only=True)
    figures = {"open_ms": 1000 * (time.perf_counter() - started)}
    started = time.perf_counter()
    index.search(code=np.zeros(BITS // 8, np.uint8), by="semantic")
    figures["first_search_ms"] = 1000 * (time.perf_counter() - started)
    label, ids = NAMES.__getitem__, [item_id(row * 37 % count) for row in range(REPEATS + 2)]

    def two_labels(n: int) -> Any:
        return index.search(labels={label(n % CLASSES): 0.7, label((n + 7) % CLASSES): 0.3})

    figures |= {
        "by_id_semantic_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic")),
        "by_id_ms": median_ms(lambda n: index.search(id=ids[n])),
        "by_labels_ms": median_ms(two_labels),
        "having_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic", having=label(n))),
        "where_ms": median_ms(lambda n: index.search(id=ids[n], by="semantic", where={"taken": (1.001e9, None)})),
        "like_ms": median_ms(lambda n: index.search(like=ids[:3], unlike=ids[3:5])),
        "newest_100_ms": median_ms(lambda n: index.list(0, 100, order="taken")),
        "newest_100_of_a_label_ms": median_ms(lambda n: index.list(0, 100, order="taken", having=label(n))),
        "get_100_ms": median_ms(lambda n: index.get([item_id((row * 991 + n) % count) for row in range(100)])),
        "count_ms": median_ms(lambda n: index.count()),
        "memory_mb": memory_mb(),
        "bytes_per_item": sum(file.stat().st_size for file in folder.glob("items.db*")) / count,
    }  # fmt: skip
    with Index.open(folder) as writer:
        one = {"codes": np.zeros((1, BITS // 8), np.uint8), "labels": [[NAMES[0]]]}
        figures["one_add_ms"] = median_ms(lambda n: writer.add(ids=[f"new {n}"], **one))
        index.search(id=ids[0])
        figures["search_after_add_ms"] = median_ms(
            lambda n: (writer.add(ids=[f"more {n}"], **one), index.search(id=ids[0], by="semantic"))
        )
        figures["one_remove_ms"] = median_ms(lambda n: writer.remove([f"new {n}"]))
        figures["hide_ms"] = median_ms(lambda n: writer.hide(ids[n]))
    index.close()
    return figures


def scans(count: int, bits: int, repeats: int) -> dict[str, float]:
    """The ten nearest of random codes, the hardest case for approximate search: milliseconds of a query."""
    codes = np.random.default_rng(0).integers(0, 256, (count, bits // 8), np.uint8)
    words = codes.view("u8" if bits % 64 == 0 else "u2")
    words.flags.writeable = False

    def by_numpy(query: Packed) -> None:
        np.argpartition(np.bitwise_count(words ^ query.view(words.dtype)).sum(axis=1, dtype=np.uint16), 10)

    works: Mapping[str, Callable[[Packed], Any]] = {
        "scan": lambda query: scan.nearest(query.view(words.dtype), words, 10, within=bits),
        "numpy": by_numpy,
        **faiss_search(codes),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work(codes[turn])
            times[name].append(time.perf_counter() - started)
    return {f"{name}_ms": 1000 * statistics.median(spent[1:]) for name, spent in times.items()}


def faiss_search(codes: Packed) -> dict[str, Callable[[Packed], Any]]:
    """Exact search by Faiss, if it is installed."""
    try:
        import faiss
    except ImportError:
        return {}
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    return {"faiss": lambda query: index.search(query[None], 10)}


def in_process(work: str, folder: Path, count: int) -> dict[str, float]:
    """Run `fill` or `measure` in a process of its own."""
    words = ["-m", "benchmarks.store", "--work", work, "--folder", str(folder), "--sizes", str(count)]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--quick", action="store_true", help="only the smallest size, in seconds")
    parser.add_argument("--work", choices=("fill", "measure"))
    parser.add_argument("--folder", type=Path, help="where the indexes are made, several gigabytes")
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps((fill if options.work == "fill" else measure)(options.folder, *options.sizes)))
        return
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        for count in options.sizes[:1] if options.quick else options.sizes:
            folder = Path(place) / str(count)
            measured[f"{count:,}"] = in_process("fill", folder, count) | in_process("measure", folder, count)
            show(f"{count:,} items", measured[f"{count:,}"])
            store(options.out, measured)
    for bits in (64,) if options.quick else (16, 48, 64, 128, 256):
        name = f"scan of 1,000,000 codes of {bits} bits"
        measured[name] = scans(10**6, bits, 3 if options.quick else 15)
        show(name, measured[name])
    store(options.out, measured)


if __name__ == "__main__":
    main()
