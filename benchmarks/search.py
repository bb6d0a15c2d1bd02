"""Exact search as ratios measured in one run on one machine: part of `make bench`.

    python -m benchmarks.search [--out benchmarks/results/search.json] [--quick]

The ten nearest of 64-bit codes, one query at a time: the scan, and a store that scans its codes and reads the items it
finds, compared with Faiss' IndexBinaryFlat, numpy, and merely reading the codes from memory. All take turns. Times and
ratios are medians; a ratio named `best` compares the quickest turns, which is less affected by other work on the
machine. The whole run needs up to 3 GB and some minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, show, store
from centerhash.codes import Packed
from centerhash.core.parallel import compiled, cpu_count, in_threads
from centerhash.search import scan
from centerhash.search.rankings import BySemantic
from centerhash.search.store import Store

K, AT_ONCE = 10, 10**6
SIZES, LENGTHS = (10**5, 10**6, 10**7), (16, 32, 48, 128, 256)

Work = Callable[[Packed], Any]  # searches by one code (W,)


def random_codes(count: int, bits: int, seed: int) -> Packed:
    """Packed codes (count, bits / 8) without any structure: the hardest case for approximate search."""
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), dtype=np.uint8)


def clustered_codes(count: int, bits: int, seed: int) -> Packed:
    """Packed codes (count, bits / 8) around 1,000 centers, an eighth of their bits chosen at random and flipped."""
    generator = np.random.default_rng(seed)
    centers = random_codes(1_000, bits, 99)
    codes = np.empty((count, bits // 8), np.uint8)
    for top in range(0, count, AT_ONCE):
        part = codes[top : top + AT_ONCE]
        part[:] = centers[generator.integers(0, len(centers), len(part))]
        for _ in range(bits // 8):
            places = generator.integers(0, bits, len(part))
            part[np.arange(len(part)), places // 8] ^= np.left_shift(1, places % 8).astype(np.uint8)
    return codes


def side_by_side(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work, several times; they take turns.

    In each turn a call that does not count comes first, as a server that is in use has its codes in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            work()
            for _ in range(3):
                started = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - started)
    return times


def ratios(times: Mapping[str, list[float]], name: str, other: str) -> dict[str, float]:
    """How many times as long one takes as the other."""
    return {
        f"{name}_to_{other}": statistics.median(times[name]) / statistics.median(times[other]),
        f"{name}_to_{other}_best": min(times[name]) / min(times[other]),
    }


@compiled
def _xor(values: Any) -> Any:
    """Read all values and do next to nothing with them."""
    total = values[0]
    for place in range(1, values.size):
        total ^= values[place]
    return total


def words(packed: Packed) -> Any:
    """Codes of whole words, read-only as those of a store."""
    view = packed.view(f"u{next(size for size in (8, 4, 2) if packed.shape[1] % size == 0)}")
    view.flags.writeable = False
    return view


def reader(packed: Packed) -> Callable[[], Any]:
    """Read the codes once, in as many threads as the scan has."""
    values = packed.reshape(-1).view(np.uint64)
    parts = [part for part in np.array_split(values, cpu_count()) if part.size]
    return lambda: in_threads(lambda number: _xor(parts[number]), len(parts))


def numpy_search(packed: Packed) -> Work:
    """The obvious way: all distances of a query, then a partition."""
    database = words(packed)

    def nearest(query: Packed) -> None:
        different = np.bitwise_count(database ^ words(query[None])[0])
        distances = different[:, 0] if different.shape[1] == 1 else different.sum(axis=1, dtype=np.uint16)
        np.argpartition(distances, K)[:K]

    return nearest


def faiss_search(packed: Packed) -> Work:
    import faiss

    faiss.omp_set_num_threads(cpu_count())
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(packed)
    return lambda query: index.search(query[None], K)


def scan_search(packed: Packed) -> Work:
    bits, database = 8 * packed.shape[1], words(packed)
    return lambda query: scan.nearest(words(query[None])[0], database, K, within=bits)


@contextmanager
def store_search(packed: Packed) -> Iterator[Work]:
    """A store on disk, which also reads the items that it finds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.create(Path(folder) / "index", 8 * packed.shape[1]) as made,
    ):
        with made.transaction():
            for top in range(0, len(packed), AT_ONCE):
                some = packed[top : top + AT_ONCE]
                made.add(some, [f"{top + row:016x}" for row in range(len(some))])
        yield lambda query: made.search(BySemantic(query), K)


def exact(packed: Packed, queries: Packed, repeats: int, **more: Work) -> dict[str, float]:
    """Milliseconds of a query, and the ratios that count."""
    works = {
        "scan": scan_search(packed),
        "faiss": faiss_search(packed),
        "numpy": numpy_search(packed),
        **more,
    }
    asked = {name: partial(work, queries[0]) for name, work in works.items()}
    times = side_by_side({"read": reader(packed), **asked}, repeats)
    found = {f"{name}_ms": 1000 * statistics.median(spent) for name, spent in times.items()}
    for name, other in [("scan", "read"), ("scan", "numpy"), *((name, "faiss") for name in ("scan", *more))]:
        found |= ratios(times, name, other)
    return found


def measurements(quick: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """Every measurement with its name."""
    repeats = 3 if quick else 9
    for size in SIZES[:1] if quick else SIZES:
        codes, queries = random_codes(size, 64, 0), random_codes(1, 64, 1)
        with store_search(codes) as work:
            yield f"{size:,} random codes of 64 bits", exact(codes, queries, repeats, store=work)
        codes, queries = clustered_codes(size, 64, 0), clustered_codes(1, 64, 1)
        yield f"{size:,} clustered codes of 64 bits", exact(codes, queries, repeats)
    for bits in LENGTHS[:1] if quick else LENGTHS:
        size = 10**5 if quick else 10**6
        codes, queries = random_codes(size, bits, 0), random_codes(1, bits, 1)
        yield f"{size:,} random codes of {bits} bits", exact(codes, queries, repeats)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest sizes, in seconds")
    arguments = parser.parse_args()
    measured: dict[str, Any] = {}
    for name, figures in measurements(arguments.quick):
        measured[name] = figures
        show(name, figures)
    store(arguments.out, measured, threads=cpu_count())


if __name__ == "__main__":
    main()
