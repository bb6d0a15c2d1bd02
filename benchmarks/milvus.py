"""Milvus beside the flat index and faiss: one question at a time by each consistency, and batches, in one run.

    python -m benchmarks.milvus [--codes 200000] [--features FEATURES.npy] [--address http://host:19530]
        [--out benchmarks/results/milvus.json]

Codes and questions are drawn as by `benchmarks.multi_index`. Without an address, the server of the package
`milvus` is started for the time of the run, on this machine; where there is no such package, nothing is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawn_codes import drawn_codes, logits_of, queries_of
from benchmarks.reporting import arguments_of, show, store
from benchmarks.search import faiss_search
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


def questions(search: Callable[[np.ndarray], Any], queries: np.ndarray) -> dict[str, float]:
    """Milliseconds of one question, alone and in a batch."""
    return {
        "one_ms": median_ms(lambda number: search(queries[number : number + 1]), SINGLES),
        "in_a_batch_ms": median_ms(lambda _: search(queries), 3) / len(queries),
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
    parser.add_argument("--features", type=Path, help="features (N, D) of images to draw codes from")
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.address is None and find_spec("milvus") is None:
        print("Milvus is not measured: no --address, and no package `milvus`.")
        return
    logits = logits_of("coco", arguments.features)
    packed, queries = drawn_codes(logits, arguments.codes, 1), queries_of(logits)[:BATCH]
    measured: dict[str, Any] = {"setting": {"codes": arguments.codes, "bits": BITS, "k": K, "batch": BATCH}}

    def note(name: str, figures: dict[str, float]) -> None:
        measured[name] = figures
        show(name, figures)

    with tempfile.TemporaryDirectory() as folder, server(arguments.address) as address:
        note("faiss", questions(faiss_search(packed), queries))
        with create_store("flat", Path(folder) / "flat", BITS) as flat:
            rate = filled(flat, packed)
            flat.compact()
            note("flat", {"added_per_second": rate, **questions(partial(flat.search, k=K), queries)})
            expected = flat.search(queries, K)
        with create_store(f"milvus:{address}#benchmark", Path(folder), BITS) as index:
            note("milvus", {"added_per_second": filled(index, packed)})
        for level in CONSISTENCIES:
            with open_store(f"milvus:{address}?consistency={level}#benchmark", Path(folder)) as index:
                figures = questions(partial(index.search, k=K), queries)
                same = [a.ids == b.ids for a, b in zip(index.search(queries, K), expected, strict=True)]
            note(level, {**figures, "same_answers": float(np.mean(same))})
    store(arguments.out, measured)


if __name__ == "__main__":
    main()
