"""Exact multi-index search against the scan, faiss and usearch, as ratios measured in one run: part of `make bench`.

    python -m benchmarks.multi_index [--out benchmarks/results/multi_index.json] [--sizes 1000000]
        [--run RUN --features FEATURES.npy] [--quick]

Codes of 64 bits drawn as a model makes them (see `drawn_codes`), with more noise than that, and without any structure;
queries one at a time, in one thread, by processor time, which other work on the machine changes least. All take turns
query by query in random order, after a call that does not count; codes and tables are mapped from files, as in an index.
`whole` is the scan of all codes for a query that nothing is near to: the scan itself stops when k codes equal the query.
`recall` is how many of the k answers are as near as the k nearest; structures that take many minutes to build are left
out at larger sizes. 100 million codes need 8 GB of memory and are left out on a machine with less than 16, unless they
are asked for.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.drawn_codes import drawn_codes, logits_of, queries_of
from benchmarks.reporting import arguments_of, in_one_thread, show, store
from benchmarks.search import random_codes
from centerhash.codes import Packed
from centerhash.core.parallel import cpu_count
from centerhash.search.engines import multi_index, scan
from centerhash.search.engines.mapped import map_arrays, write_arrays
from centerhash.search.engines.tables import Tables, TablesFile
from centerhash.search.engines.tabling import build

BITS = 64
SIZES, KS = (10**6, 10**7, 10**8), (10, 100)
ROOMY = 16 * 10**9  # bytes of memory that a machine has for the largest size
MOST = {
    "noisy": 10**7,
    "multihash": 10**7,
    "ivf": 10**7,
    "hnsw": 10**6,
    "usearch": 10**6,
}  # codes, done in minutes
SECONDS = 3.0  # that each may take in a comparison: slow ones are asked less often
MANY_NOISE = 0.5

Distances = NDArray[np.int64]
Work = Callable[[Packed], Distances]  # distances (k,) of the answer to one query (1, 8)


def exact_works(codes: Packed, tables: Tables | None, k: int) -> dict[str, Work]:
    """The search by tables, if they pay, which scans what these give up, the scan, and the scan that finds nothing."""
    words = scan.words(codes, BITS)

    def scanned(query: Packed) -> Distances:
        [(_, distances)] = list(scan.nearest(scan.words(query, BITS), words, BITS, k))
        return distances

    def by_tables(query: Packed) -> Distances:
        [answer] = [None] if tables is None else multi_index.nearest(tables, query, words, BITS, k, [BITS])
        return scanned(query) if answer is None else answer[1]

    def whole(query: Packed) -> Distances:
        [(_, distances)] = list(scan.within(scan.words(~query, BITS), words, BITS, 0))
        return distances

    return {"tables": by_tables, "scan": scanned, "whole": whole}


def structures(packed: Packed) -> Iterator[tuple[str, Any]]:
    """The structures of others that can be built in minutes, one at a time."""
    import faiss
    from usearch.index import Index

    faiss.omp_set_num_threads(cpu_count())
    cells = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(BITS), BITS, max(16, int(len(packed) ** 0.5)))
    hashes, graph = faiss.IndexBinaryMultiHash(BITS, 3, 21), faiss.IndexBinaryHNSW(BITS, 32)
    cells.nprobe, hashes.nflip, graph.hnsw.efSearch = 16, 1, 64
    made = {"faiss_flat": faiss.IndexBinaryFlat(BITS), "multihash": hashes, "ivf": cells, "hnsw": graph}
    for name, structure in made.items():
        if len(packed) <= MOST.get(name, len(packed)):
            if name == "ivf":
                structure.train(packed[:: max(1, len(packed) // 10**5)])
            structure.add(packed)
            yield name, structure
    if len(packed) <= MOST["usearch"]:
        other = Index(ndim=BITS, metric="hamming", dtype="b1")
        other.add(np.arange(len(packed)), packed, threads=cpu_count())
        yield "usearch", other


def other_works(k: int, built: Mapping[str, Any]) -> dict[str, Work]:
    """How the structures of others are asked."""

    def asking(made: Any) -> Work:
        return lambda query: made.search(query, k)[0][0]

    works = {name: asking(made) for name, made in built.items() if name != "usearch"}
    if "usearch" in built:
        works["usearch"] = lambda query: built["usearch"].search(query[0], k).distances
    return works


def compared(works: Mapping[str, Work], queries: Packed) -> dict[str, float]:
    """Medians and 99th percentiles in ms, ratios to the scan, and recall; each is asked until its time is over."""
    times: dict[str, list[float]] = {name: [] for name in works}
    good: dict[str, list[float]] = {name: [] for name in works}
    shuffle = np.random.default_rng(0)
    for work in works.values():
        work(queries[:1])
    for row in range(1, len(queries)):
        found = dict[str, Distances]()
        names = [name for name, spent in times.items() if sum(spent) < SECONDS]
        for name in shuffle.permutation(names).tolist():  # who comes first finds the codes in no cache
            began = time.process_time()
            found[name] = np.asarray(works[name](queries[row : row + 1]))
            times[name].append(time.process_time() - began)
        if not {"scan", "tables"} <= found.keys():
            break
        if found["tables"].tolist() != found["scan"].tolist():
            raise AssertionError(f"query {row} is answered otherwise than by the scan")
        found.pop("whole", None)
        for name, distances in found.items():
            near = distances[distances >= 0] <= found["scan"][-1]
            good[name].append(float(near.sum()) / len(found["scan"]))
    figures: dict[str, float] = {"queries": len(good["scan"]), "load": os.getloadavg()[0]}
    for name, spent in times.items():
        figures[f"{name}_ms"] = 1000 * statistics.median(spent)
        figures[f"{name}_p99_ms"] = 1000 * float(np.quantile(spent, 0.99))
        if name != "scan":
            figures[f"{name}_to_scan"] = figures[f"{name}_ms"] / (1000 * statistics.median(times["scan"]))
        if name not in ("tables", "scan", "whole", "faiss_flat"):
            figures[f"{name}_recall"] = statistics.mean(good[name])
    figures["tables_p99_to_scan_p99"] = figures["tables_p99_ms"] / figures["scan_p99_ms"]
    figures["tables_to_whole"] = figures["tables_ms"] / figures["whole_ms"]
    return figures


def measured(packed: Packed, queries: Packed, others: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """Building, storing and opening the tables, and the comparisons."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segment-000001.seg"
        write_arrays(path, {"codes": packed})
        codes = map_arrays(path).arrays["codes"].whole
        began = time.process_time()
        tables = build(codes, BITS)
        figures = {"build_seconds": time.process_time() - began}
        size = sum(array.nbytes for array in tables.arrays().values())
        figures |= {
            "tables_to_codes": size / packed.nbytes,
            "different": tables.orders.shape[1] / len(packed),
        }
        began = time.process_time()
        figures["pays"] = float(multi_index.pays(tables, scan.words(codes, BITS), BITS))
        figures["pays_seconds"] = time.process_time() - began
        TablesFile(path, 1, len(packed), BITS).write(tables)
        began = time.process_time()
        mapped = TablesFile(path, 1, len(packed), BITS).tables()
        figures["open_seconds"] = time.process_time() - began
        if mapped is None:
            raise AssertionError("tables that were just written are not sound")
        del tables
        yield "tables", figures
        works = {k: exact_works(codes, mapped if figures["pays"] else None, k) for k in KS}
        for k in KS:
            yield f"k {k}", compared(works[k], queries)
        if not others:
            return
        built, seconds, began = dict[str, Any](), dict[str, float](), time.process_time()
        for name, made in structures(packed):
            built[name], seconds[f"{name}_build_seconds"] = made, time.process_time() - began
            began = time.process_time()
        for k in KS:
            yield f"k {k}, with others", seconds | compared({**works[k], **other_works(k, built)}, queries)


def sizes() -> list[int]:
    """The numbers of codes that this machine has the memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return [size for size in SIZES if size < max(SIZES) or memory >= ROOMY]


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes(), help="numbers of codes")
    parser.add_argument(
        "--run", default="coco", help="the run whose logits are drawn from, or a built-in model"
    )
    parser.add_argument(
        "--features", type=Path, help="features (N, D) of images; without any, a mixture of centers"
    )
    parser.add_argument("--kinds", nargs="+", default=["drawn", "noisy", "random"], help="of codes")
    parser.add_argument("--exact", action="store_true", help="leave out the structures of others")
    parser.add_argument("--quick", action="store_true", help="10,000 codes, in seconds")
    arguments = parser.parse_args()
    logits = logits_of(arguments.run, arguments.features)
    sources: dict[str, Callable[[int], tuple[Packed, Packed]]] = {
        "drawn": lambda count: (drawn_codes(logits, count, 1), queries_of(logits)),
        "noisy": lambda count: (drawn_codes(logits, count, 1, MANY_NOISE), queries_of(logits)),
        "random": lambda count: (random_codes(count, BITS, 0), random_codes(1000, BITS, 1)),
    }
    results: dict[str, Any] = {"drawn from": "a mixture" if arguments.features is None else "features"}
    in_one_thread()
    for size in [10**4] if arguments.quick else arguments.sizes:
        for name in arguments.kinds:
            if size > MOST.get(name, size):
                continue
            packed, queries = sources[name](size)
            for what, figures in measured(packed, queries, not arguments.exact and name != "noisy"):
                results[f"{size:,} {name} codes, {what}"] = figures
                show(f"{size:,} {name} codes, {what}", figures)
                store(arguments.out, results, threads=cpu_count())


if __name__ == "__main__":
    main()
