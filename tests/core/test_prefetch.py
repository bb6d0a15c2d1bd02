from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from centerhash.core.parallel import batches_ahead


def test_results_come_batch_by_batch_in_order() -> None:
    batches = [[1, 2, 3], [], [4], [5, 6]]
    found = [[future.result() for future in futures] for futures in batches_ahead(lambda n: n * n, batches)]
    assert found == [[1, 4, 9], [], [16], [25, 36]]
    assert list(batches_ahead(str, [])) == []


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_no_more_batches_are_begun_than_the_depth_allows(depth: int) -> None:
    begun: list[int] = []

    def batches() -> Iterator[list[int]]:
        for number in range(10):
            begun.append(number)
            yield [number]

    for number, _ in enumerate(batches_ahead(str, batches(), depth)):
        assert len(begun) == min(number + depth + 1, 10)


def test_an_error_belongs_to_its_item() -> None:
    def inverse(number: int) -> float:
        return 1 / number

    ((zero, one),) = batches_ahead(inverse, [[0, 1]])
    assert one.result() == 1
    with pytest.raises(ZeroDivisionError):
        zero.result()


def test_who_stops_does_not_wait_for_what_has_not_begun() -> None:
    done: list[int] = []
    gate = threading.Event()

    def work(number: int) -> None:
        gate.wait(60)
        time.sleep(0.02)  # all of them would take twenty seconds
        done.append(number)

    running = batches_ahead(work, [[0], list(range(1, 1001))], depth=1, most_threads=1)
    next(running)
    threading.Timer(0.05, gate.set).start()
    running.close()
    assert len(done) < 1001
