"""Milvus compared with the local store and Faiss: one query at a time by each consistency level, in one run.

    python -m benchmarks.milvus [--codes 100000] [--features FEATURES.npy] [--address http://host:19530]
        [--out benchmarks/results/milvus.json]

Codes and queries are sampled as by `benchmarks.drawn_codes`. Without an address, the server of the package `milvus` is
started for the time of the run, on this machine; without that package, nothing is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawn_codes import drawn_codes, logits_of, queries_of
from benchmarks.reporting import arguments_of, show, store
from benchmarks.search import faiss_search
from centerhash.search.items import ItemStore
from centerhash.search.milvus import CONSISTENCIES, MilvusStore
from centerhash.search.rankings import BySemantic
from centerhash.search.store import Store

BITS, K, QUERIES, AT_ONCE = 64, 10, 30, 10_000


@contextmanager
def server(address: str | None) -> Iterator[str]:
    """The address of a Milvus server."""
    if address is not None:
        yield address
        return
    from milvus import default_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        default_server.set_base_dir(folder)
        default_server.start()
        try:
            yield f"http://{default_server.server_address}:{default_server.listen_port}"
        finally:
            default_server.stop()


def median_ms(work: Callable[[int], Any], repeats: int) -> float:
    """Milliseconds of `work`, after one call that does not count."""
    work(0)
    times = []
    for number in range(repeats):
        started = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def filled(made: ItemStore, packed: np.ndarray) -> float:
    """Add codes; return how many a second."""
    started = time.perf_counter()
    for at in range(0, len(packed), AT_ONCE):
        some = packed[at : at + AT_ONCE]
        made.add(some, [f"{at + row:016x}" for row in range(len(some))])
    return len(packed) / (time.perf_counter() - started)


def distances(made: ItemStore, queries: np.ndarray) -> list[list[int]]:
    return [[far for _, far in made.search(BySemantic(query), K)] for query in queries]


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--codes", type=int, default=100_000)
    parser.add_argument("--features", type=Path, help="features (N, D) of images to sample codes from")
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.address is None and find_spec("milvus") is None:
        print("Milvus is not measured: no --address, and no package `milvus`.")
        return
    logits = logits_of("coco", arguments.features)
    packed, queries = drawn_codes(logits, arguments.codes, 1), queries_of(logits)[:QUERIES]
    measured: dict[str, Any] = {"setting": {"codes": arguments.codes, "bits": BITS, "k": K}}

    def note(name: str, figures: dict[str, float]) -> None:
        measured[name] = figures
        show(name, figures)

    def query_ms(search: Callable[[np.ndarray], Any]) -> dict[str, float]:
        return {"query_ms": median_ms(lambda number: search(queries[number]), QUERIES)}

    with tempfile.TemporaryDirectory() as folder, server(arguments.address) as address:
        note("faiss", query_ms(faiss_search(packed)))
        with Store.create(Path(folder) / "local", BITS) as local:
            rate = filled(local, packed)
            figures = query_ms(lambda query: local.search(BySemantic(query), K))
            note("sqlite", {"added_per_second": rate, **figures})
            expected = distances(local, queries)
        with MilvusStore.create(f"milvus:{address}#benchmark", BITS) as made:
            note("milvus", {"added_per_second": filled(made, packed)})
        for level in CONSISTENCIES:
            with MilvusStore.open(f"milvus:{address}?consistency={level}#benchmark") as made:
                figures = query_ms(lambda query, made=made: made.search(BySemantic(query), K))  # type: ignore[misc]
                same = float(distances(made, queries) == expected)
            note(level, {**figures, "same_distances": same})
    store(arguments.out, measured)


if __name__ == "__main__":
    main()
