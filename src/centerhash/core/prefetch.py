"""Work that runs ahead: threads decode the next batches of images while the network is busy with one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from centerhash.core.errors import ImageError
from centerhash.core.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")
_BATCH = 64  # images that are read together


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


def read_all(
    read: Callable[[Item], Result], images: Mapping[int, Item], stage: str, progress: Progress
) -> tuple[dict[int, Result], dict[int, ImageError]]:
    """What threads `read` of each image by its row, and why others cannot be read."""
    found: dict[int, Result] = {}
    broken: dict[int, ImageError] = {}
    rows = list(images)
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    for batch, futures in zip(batches, batches_ahead(lambda row: read(images[row]), batches), strict=True):
        for row, future in zip(batch, futures, strict=True):
            try:
                found[row] = future.result()
            except ImageError as error:
                broken[row] = error
            progress(stage, len(found) + len(broken), len(rows))
    return found, broken
