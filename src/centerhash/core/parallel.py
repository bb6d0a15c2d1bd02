"""Threads: compiled loops and a shared pool for them, prefetching, and limits on the threads of torch and numpy."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast

from centerhash.core.errors import ImageError
from centerhash.core.extras import require
from centerhash.core.progress import Progress


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cpu_count(), thread_name_prefix="parts")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_pool.cache_clear)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(function: FunctionT) -> FunctionT:
    """Compile a loop to machine code, kept on disk between processes if numba has a writable folder.

    It releases the interpreter lock, so plain threads run it side by side. numba's own parallel loops would change the
    number of threads of torch.
    """
    njit = require("numba").njit
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(FunctionT, njit(cache=True, **options)(function))
    except RuntimeError:
        # There is no such folder, for example in a read-only container.
        return cast(FunctionT, njit(**options)(function))


def split(total: int, parts: int) -> list[slice]:
    """Return slices of nearly equal length that cover `total`."""
    edges = [total * part // parts for part in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def in_threads(work: Callable[[int], object], parts: int) -> None:
    """Call `work` with each number below `parts`, the first one in this thread."""
    futures = [_pool().submit(work, part) for part in range(1, parts)]
    try:
        work(0)
    finally:
        for future in futures:
            future.result()


T = TypeVar("T")
R = TypeVar("R")
_IMAGES_AT_ONCE = 64


def batches_ahead(
    work: Callable[[T], R], batches: Iterable[Sequence[T]], depth: int = 2, most_threads: int = 8
) -> Generator[list[Future[R]], None, None]:
    """Yield the futures of `work` on every item, batch by batch; `depth` batches are computed while one is in use.

    Memory holds the results of depth + 1 batches, however many there are.
    """
    with ThreadPoolExecutor(max_workers=min(most_threads, (os.cpu_count() or 1) + 1)) as pool:
        waiting: deque[list[Future[R]]] = deque()
        try:
            for batch in batches:
                waiting.append([pool.submit(work, item) for item in batch])
                if len(waiting) > depth:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        except BaseException:
            # A caller that stops early does not wait for the batches ahead.
            pool.shutdown(cancel_futures=True)
            raise


def read_all(
    read: Callable[[T], R], images: Mapping[int, T], stage: str, progress: Progress
) -> tuple[dict[int, R], dict[int, ImageError]]:
    """Read images in threads; return the results by row, and the errors of those that cannot be read."""
    results: dict[int, R] = {}
    broken: dict[int, ImageError] = {}
    rows = list(images)
    batches = [rows[at : at + _IMAGES_AT_ONCE] for at in range(0, len(rows), _IMAGES_AT_ONCE)]
    for batch, futures in zip(batches, batches_ahead(lambda row: read(images[row]), batches), strict=True):
        for row, future in zip(batch, futures, strict=True):
            try:
                results[row] = future.result()
            except ImageError as error:
                broken[row] = error
            progress(stage, len(results) + len(broken), len(rows))
    return results, broken


# The OpenMP library of torch reads these variables once, when it is loaded.
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def use_passive_omp_wait() -> None:
    """Let threads of torch sleep while they wait, unless the user has set a wait policy or torch is already imported.

    On a busy machine, a spinning thread occupies the CPU of the very thread that it waits for.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def one_numpy_thread() -> AbstractContextManager[Any]:
    """Limit numpy to one thread for the block: its threads spin, which is many times slower next to other programs."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    return cast(AbstractContextManager[Any], threadpool_limits(1, "blas"))
