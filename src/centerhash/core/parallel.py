"""Parts of one piece of work in plain threads that are kept: starting some each time would take longer than the work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

from centerhash.core.compiled import processors


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(processors(), thread_name_prefix="parts")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def split(total: int, parts: int) -> list[slice]:
    """Slices of nearly equal length that cover `total`."""
    edges = [total * part // parts for part in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def in_threads(work: Callable[[int], None], parts: int) -> None:
    """Call `work` with each number below `parts`, the first one in this thread."""
    if parts == 1:
        work(0)
        return
    others = [_pool().submit(work, part) for part in range(1, parts)]
    try:
        work(0)
    finally:
        for other in others:
            other.result()
