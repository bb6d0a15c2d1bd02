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
    WAIT_VARIABLES,
    batches_ahead,
    compiled,
    in_threads,
    one_numpy_thread,
    split,
)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_in_threads(threads: int, count: int) -> None:
    done, names, parts = np.zeros(count, int), set(), split(count, threads)

    def work(part: int) -> None:
        done[parts[part]] += 1
        names.add(threading.current_thread().name)

    in_threads(work, threads)
    assert (done == 1).all()
    assert threading.current_thread().name in names


def test_in_threads_error() -> None:
    def work(part: int) -> None:
        if part:
            raise ValueError("second part")

    with pytest.raises(ValueError, match="second part"):
        in_threads(work, 2)


def test_batches_ahead() -> None:
    batches = [[1, 2, 3], [], [4], [5, 6]]
    results = [[future.result() for future in futures] for futures in batches_ahead(lambda n: n * n, batches)]
    assert results == [[1, 4, 9], [], [16], [25, 36]]
    assert list(batches_ahead(str, [])) == []


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_ahead_depth(depth: int) -> None:
    begun: list[int] = []

    def batches() -> Iterator[list[int]]:
        for number in range(10):
            begun.append(number)
            yield [number]

    for number, _ in enumerate(batches_ahead(str, batches(), depth)):
        assert len(begun) == min(number + depth + 1, 10)


def test_batches_ahead_error() -> None:
    ((failed, successful),) = batches_ahead(lambda number: 1 / number, [[0, 1]])
    assert successful.result() == 1
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_batches_ahead_stopped() -> None:
    done: list[int] = []
    gate = threading.Event()

    def work(number: int) -> None:
        gate.wait(60)
        time.sleep(0.02)  # twenty seconds for all
        done.append(number)

    running = batches_ahead(work, [[0], list(range(1, 1001))], depth=1, most_threads=1)
    next(running)
    threading.Timer(0.05, gate.set).start()
    running.close()
    assert len(done) < 1001


def wait_variables(code: str, **variables: str) -> str:
    """Run code in a process with these wait variables only, and return the variables that it prints then."""
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_VARIABLES}
    code += f"; import os; print([os.environ.get(name) for name in {WAIT_VARIABLES!r}])"
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, check=True, capture_output=True, text=True
    )
    return process.stdout.strip()


@pytest.mark.slow
def test_use_passive_omp_wait() -> None:
    assert wait_variables("import centerhash") == "['PASSIVE', None, None]"
    late = "import sys; sys.modules['torch'] = sys; import centerhash"
    assert wait_variables(late) == "[None, None, None]"


@pytest.mark.slow
@pytest.mark.parametrize("name", WAIT_VARIABLES)
def test_wait_policy_of_user(name: str) -> None:
    expected = str(["100" if name == variable else None for variable in WAIT_VARIABLES])
    assert wait_variables("import centerhash", **{name: "100"}) == expected


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_one_numpy_thread() -> None:
    before = blas_threads()
    assert before
    with one_numpy_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_compiled_without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**options: Any) -> Callable[[Any], Any]:
        def refuse(_function: Any) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if options.get("cache") else numba.njit(**options)

    monkeypatch.setattr("centerhash.core.parallel.require", lambda name: SimpleNamespace(njit=refusing))

    @compiled
    def double(value: int) -> int:
        return 2 * value

    assert double(21) == 42
