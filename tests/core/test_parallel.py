"""Threads: each part of a piece of work done once, results read ahead, torch and numpy limited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from centerhash.core.parallel import (
    WAITING,
    batches_ahead,
    compiled,
    in_threads,
    one_numpy_thread,
    split,
)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_parts_are_done_once_each(threads: int, count: int) -> None:
    done, names, parts = np.zeros(count, int), set(), split(count, threads)

    def work(part: int) -> None:
        done[parts[part]] += 1
        names.add(threading.current_thread().name)

    in_threads(work, threads)
    assert (done == 1).all()
    assert threading.current_thread().name in names


def test_an_error_in_any_part_is_raised() -> None:
    def work(part: int) -> None:
        if part:
            raise ValueError("second part")

    with pytest.raises(ValueError, match="second part"):
        in_threads(work, 2)


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
    ((zero, one),) = batches_ahead(lambda number: 1 / number, [[0, 1]])
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


def printed(code: str, without: tuple[str, ...], **chosen: str) -> str:
    """The output of a process that has the `chosen` variables, and none of the others of its kind."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=kept | chosen, check=True, capture_output=True, text=True
    ).stdout.strip()


SHOW = f"; import os; print([os.environ.get(name) for name in {WAITING!r}])"


@pytest.mark.slow
def test_threads_of_torch_sleep_while_they_wait() -> None:
    assert printed("import centerhash" + SHOW, WAITING) == "['PASSIVE', None, None]"
    late = "import sys; sys.modules['torch'] = sys; import centerhash"  # torch has read it already
    assert printed(late + SHOW, WAITING) == "[None, None, None]"


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITING)
def test_how_threads_wait_stays_as_the_user_chose(name: str) -> None:
    expected = str(["100" if name == known else None for known in WAITING])
    assert printed("import centerhash" + SHOW, WAITING, **{name: "100"}) == expected


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_numpy_has_one_thread_meanwhile() -> None:
    before = blas_threads()
    assert before
    with one_numpy_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_kernels_run_where_no_machine_code_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**options: Any) -> Callable[[Any], Any]:
        def refuse(_function: Any) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if options.get("cache") else numba.njit(**options)

    monkeypatch.setattr("centerhash.core.parallel.require", lambda name: SimpleNamespace(njit=refusing))

    @compiled
    def double(value: int) -> int:
        return 2 * value

    assert double(21) == 42
