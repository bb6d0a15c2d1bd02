"""Work that runs ahead: threads decode the next batches of images while the network is busy with one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def batches_ahead(
    work: Callable[[Item], Result], batches: Iterable[Sequence[Item]], depth: int = 2, most_threads: int = 8
) -> Generator[list[Future[Result]], None, None]:
    """Yield the futures of `work` on every item, batch by batch; `depth` batches are in work while one is in use.

    Memory holds the results of depth + 1 batches, however many there are.
    """
    with ThreadPoolExecutor(max_workers=min(most_threads, (os.cpu_count() or 1) + 1)) as pool:
        waiting: deque[list[Future[Result]]] = deque()
        try:
            for batch in batches:
                waiting.append([pool.submit(work, item) for item in batch])
                if len(waiting) > depth:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        except BaseException:  # also a caller that stops half-way: it need not wait for what lies ahead
            pool.shutdown(cancel_futures=True)
            raise
