"""Milvus beside the flat index: one question at a time by each consistency, and batches, in one run.

    python -m benchmarks.milvus [--codes 100000] [--address http://host:19530] [--out benchmarks/results/milvus.json]

Without an address, the server of the package `milvus` is started for the time of the run, on this machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, show, store
from benchmarks.search import random_codes
from centerhash.search.engines.base import HammingIndex
from centerhash.search.engines.milvus_rows import CONSISTENCIES
from centerhash.search.engines.table import create_store, open_store

BITS, K, SINGLES, BATCH, AT_ONCE = 64, 10, 30, 100, 10_000


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


def questions(index: HammingIndex, queries: np.ndarray) -> dict[str, float]:
    """Milliseconds of one question, alone and in a batch."""
    single = median_ms(lambda number: index.search(queries[number : number + 1], K), SINGLES)
    return {
        "one_ms": single,
        "in_a_batch_ms": median_ms(lambda _: index.search(queries, K), 3) / len(queries),
    }


def filled(index: HammingIndex, packed: np.ndarray) -> float:
    """Add codes; how many a second."""
    started = time.perf_counter()
    for at in range(0, len(packed), AT_ONCE):
        index.add(
            packed[at : at + AT_ONCE], [f"{row:016x}" for row in range(at, min(at + AT_ONCE, len(packed)))]
        )
    return len(packed) / (time.perf_counter() - started)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--codes", type=int, default=100_000)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    packed, queries = random_codes(arguments.codes, BITS, 0), random_codes(BATCH, BITS, 1)
    measured: dict[str, Any] = {"setting": {"codes": arguments.codes, "bits": BITS, "k": K, "batch": BATCH}}
    with tempfile.TemporaryDirectory() as folder, server(arguments.address) as address:
        with create_store("flat", Path(folder) / "flat", BITS) as flat:
            measured["flat"] = {"added_per_second": filled(flat, packed), **questions(flat, queries)}
            expected = flat.search(queries, K)
        show("flat", measured["flat"])
        with create_store(f"milvus:{address}#benchmark", Path(folder), BITS) as index:
            measured["milvus"] = {"added_per_second": filled(index, packed)}
        show("milvus", measured["milvus"])
        for level in CONSISTENCIES:
            with open_store(f"milvus:{address}?consistency={level}#benchmark", Path(folder)) as index:
                figures = questions(index, queries)
                same = [a.ids == b.ids for a, b in zip(index.search(queries, K), expected, strict=True)]
                measured[level] = {**figures, "same_answers": float(np.mean(same))}
            show(level, measured[level])
    store(arguments.out, measured)


if __name__ == "__main__":
    main()
