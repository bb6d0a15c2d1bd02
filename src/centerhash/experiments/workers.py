"""Several tasks at once, in processes of their own: a task that takes its process down harms no other."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

State = TypeVar("State")
Task = TypeVar("Task")
Result = TypeVar("Result")

# what the libraries below numpy and torch read when they are loaded
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job(Generic[State, Task, Result]):
    """What a process does: `prepare` once, then `work` per task. Pickled, so made of plain functions and values.

    `failed` makes the result of a task that raised, or, in the parent, of one whose process ended.
    """

    prepare: Callable[[], State]
    work: Callable[[State, Task], Result]
    failed: Callable[[Task, Exception], Result]
    threads: int


class ProcessEndedError(Exception):
    """The process of a task was killed, or crashed."""


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    link: connection.Connection[Any, Any]

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.link.close()

    def end(self) -> ProcessEndedError:
        """Wait for a process that has closed its link, and say how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        if code == -9:
            return ProcessEndedError("its process was killed; is there too little memory for so many --jobs?")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return ProcessEndedError(f"its process ended {how}")


def run_in_processes(
    job: Job[State, Task, Result], tasks: Sequence[Task], jobs: int, on_start: Callable[[Task], None]
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result as they finish, `jobs` of them at a time; `on_start` hears of each."""
    waiting = deque(tasks)
    workers: list[_Worker] = []
    idle: list[_Worker] = []
    busy: dict[_Worker, Task] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                if not idle:
                    workers.append(_start(job))
                    idle.append(workers[-1])
                worker, task = idle.pop(), waiting.popleft()
                with suppress(OSError):  # a process that has ended: found out below, where its link is read
                    worker.link.send(task)
                busy[worker] = task
                on_start(task)
            ready = connection.wait([worker.link for worker in busy])
            for worker in [worker for worker in busy if worker.link in ready]:
                task = busy.pop(worker)
                try:
                    result: Result = worker.link.recv()
                    idle.append(worker)
                except (EOFError, OSError):
                    result = job.failed(task, worker.end())
                yield task, result
    finally:
        for worker in workers:
            worker.stop()


def _start(job: Job[Any, Any, Any]) -> _Worker:
    context = get_context("spawn")  # a fork would inherit torch's thread pools in an unknown state
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, job), daemon=True)
    with _inherited(job.threads):
        process.start()
    theirs.close()  # so that our end hears when theirs is gone
    return _Worker(process, ours)


@contextmanager
def _inherited(threads: int) -> Iterator[None]:
    """What a process started in this block gets: few threads, and no ear for an interrupt, which is the parent's."""
    variables = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    main = threading.current_thread() is threading.main_thread()  # only there may handlers be set
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in variables.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGINT, handler)


def _serve(link: connection.Connection[Any, Any], job: Job[Any, Any, Any]) -> None:
    """The life of a process: take tasks, send results, end with the parent."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    state = None
    while True:
        try:
            task = link.recv()
        except EOFError:
            return
        try:
            state = job.prepare() if state is None else state
            result = job.work(state, task)
        except Exception as error:  # whatever it is, it belongs to this task alone
            result = job.failed(task, error)
        link.send(result)


def _end_with_parent() -> None:
    """End at once when the parent is gone: nobody is left to store the result."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
