"""Exact search as ratios measured in one run on one machine: part of `make bench`.

    python -m benchmarks.search [--out benchmarks/results/search.json] [--quick]

The ten nearest of 64-bit codes, one query at a time and in batches of 1,000: our scan and the flat index built on it
against faiss' IndexBinaryFlat, numpy, and merely reading the codes from memory. What is compared takes turns. Times
and ratios are medians; a ratio named `best` compares the quickest turns, which says more while the machine is busy with
other work. Slow ones answer a part of a batch; times are per query, so this changes nothing but their overhead per
call. The whole run needs up to 3 GB and some minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, show, store
from centerhash.codes import Packed
from centerhash.core.compiled import compiled
from centerhash.core.parallel import cpu_count
from centerhash.search.engines import scan
from centerhash.search.engines.flat import FlatIndex

K, BATCH, AT_ONCE = 10, 1_000, 10**6
SIZES, LENGTHS = (10**5, 10**6, 10**7), (16, 32, 48, 128, 256)
SLOW = 10**8  # distances that faiss and numpy compute for one measurement of a batch

Work = Callable[[Packed], Any]


def random_codes(count: int, bits: int, seed: int) -> Packed:
    """Packed codes (count, bits / 8) without any structure: the hardest case for approximate search."""
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), dtype=np.uint8)


def clustered_codes(count: int, bits: int, seed: int) -> Packed:
    """Packed codes (count, bits / 8) around 1,000 centers, an eighth of their bits drawn and flipped."""
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


def reader(packed: Packed) -> Callable[[], Any]:
    """Read the codes once, in as many threads as the scan has."""
    values = packed.reshape(-1).view(np.uint64)
    parts = [part for part in np.array_split(values, cpu_count()) if part.size]
    return lambda: scan.in_threads(lambda number: _xor(parts[number]), len(parts))


def numpy_search(packed: Packed) -> Work:
    """The obvious way: all distances of a query, then a partition."""
    words = scan.words(packed, 8 * packed.shape[1])

    def nearest(queries: Packed) -> None:
        for query in scan.words(queries, 8 * packed.shape[1]):
            different = np.bitwise_count(words ^ query)
            distances = different[:, 0] if different.shape[1] == 1 else different.sum(axis=1, dtype=np.uint16)
            np.argpartition(distances, K)[:K]

    return nearest


def faiss_search(packed: Packed) -> Work:
    import faiss

    faiss.omp_set_num_threads(cpu_count())
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(packed)
    return lambda queries: index.search(queries, K)


def scan_search(packed: Packed) -> Work:
    bits = 8 * packed.shape[1]
    words = scan.words(packed, bits)
    return lambda queries: list(scan.nearest(scan.words(queries, bits), words, bits, K, None))


@contextmanager
def flat_index(packed: Packed) -> Iterator[Work]:
    """An index on disk, filled a million codes at a time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        FlatIndex.create(Path(folder) / "index", 8 * packed.shape[1]) as index,
    ):
        for top, bottom in pairwise([*range(0, len(packed), AT_ONCE), len(packed)]):
            index.add(packed[top:bottom], range(top, bottom))
        yield lambda queries: index.search(queries, K)


def exact(packed: Packed, queries: Packed, repeats: int, **more: Work) -> dict[str, float]:
    """Milliseconds per query, alone and in a batch, and the ratios that count."""
    works = {
        "scan": scan_search(packed),
        "faiss": faiss_search(packed),
        "numpy": numpy_search(packed),
        **more,
    }
    alone = {name: partial(work, queries[:1]) for name, work in works.items()}
    single = side_by_side({"read": reader(packed), **alone}, repeats)
    asked = dict.fromkeys(works, BATCH)
    asked["faiss"] = max(1, min(BATCH, 10 * SLOW // len(packed)))
    asked["numpy"] = max(1, min(BATCH, SLOW // 10 // len(packed)))
    together = {name: partial(work, queries[: asked[name]]) for name, work in works.items()}
    batch = side_by_side(together, max(1, repeats // 3))
    batch = {name: [spent / asked[name] for spent in times] for name, times in batch.items()}
    found = {f"{name}_ms": 1000 * statistics.median(times) for name, times in single.items()}
    found |= {f"batch_{name}_ms": 1000 * statistics.median(times) for name, times in batch.items()}
    for name, other in [("scan", "read"), ("scan", "numpy"), *((name, "faiss") for name in ("scan", *more))]:
        found |= ratios(single, name, other)
    for name in ("scan", *more):
        found |= {f"batch_{key}": value for key, value in ratios(batch, name, "faiss").items()}
    return found


def measurements(quick: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """Every measurement with its name."""
    repeats = 3 if quick else 9
    for size in SIZES[:1] if quick else SIZES:
        codes, queries = random_codes(size, 64, 0), random_codes(BATCH, 64, 1)
        with flat_index(codes) as index:
            yield f"{size:,} random codes of 64 bits", exact(codes, queries, repeats, index=index)
        codes, queries = clustered_codes(size, 64, 0), clustered_codes(BATCH, 64, 1)
        yield f"{size:,} clustered codes of 64 bits", exact(codes, queries, repeats)
    for bits in LENGTHS[:1] if quick else LENGTHS:
        size = 10**5 if quick else 10**6
        codes, queries = random_codes(size, bits, 0), random_codes(BATCH, bits, 1)
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
