"""The runner of all experiments: tasks in this process or in several, one stored row each, none ever computed twice.

results.jsonl      one line per finished task: what was measured on, what was asked, what was found, versions
failures.jsonl     one line per task that failed in its last attempt; a rerun tries it again
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from centerhash.core.errors import CenterhashError, ConfigError
from centerhash.core.files import append_line, make_folder, write_text
from centerhash.core.progress import Progress, silent
from centerhash.experiments.bench import Bench, Source, Task
from centerhash.experiments.remaining import Clock
from centerhash.experiments.rows import Row, completed, other_setting, read_rows, row_key, row_line
from centerhash.training.run_folder import versions

RESULTS, FAILURES = "results.jsonl", "failures.jsonl"
# what the libraries below numpy and torch read when they are loaded
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# What a task gives beside the bench's facts. Processes are sent it by name: a function of a module, or a partial of one
Work: TypeAlias = Callable[[Bench, Task], Row]


class TaskDone(Protocol):
    """Told of every task that ends: how many have, of how many, which one, its row or failure, and the seconds left."""

    def __call__(self, done: int, total: int, task: Task, row: Row, left: float, /) -> None:
        """Take note."""


def run_tasks(
    source: Source,
    tasks: Sequence[Task],
    out: str | Path,
    work: Work,
    *,
    stage: str = "cells",
    jobs: int = 1,
    progress: Progress = silent,
    on_done: TaskDone | None = None,
    warn: Callable[[Sequence[str]], None] | None = None,
) -> tuple[list[Row], list[Row]]:
    """Do the tasks that `out` does not hold yet; return all its rows, and the failures of this attempt.

    With several jobs, each task runs in a process with its share of the threads. `warn` hears of oddities of the
    data, `on_done` of every task that ends.
    """
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}.")
    bench, folder = source.open(progress), make_folder(out)
    rows, failures = claim(folder, bench.facts()), list[Row]()
    if warn is not None:
        warn(bench.dataset.warnings)
    left = left_over(tasks, rows)
    _forget_failures(folder / FAILURES, tasks)
    done, clock = len(tasks) - len(left), Clock(left, jobs)

    def show() -> None:
        progress(stage, done, len(tasks), clock.note())

    def begun(task: Task) -> None:
        clock.begun(task)
        show()

    show()
    for task, row in _results(bench, source, left, work, min(jobs, len(left)), begun):
        done += 1
        failed = "error" in row
        clock.ended(task, failed)
        (failures if failed else rows).append(row)
        append_line(folder / (FAILURES if failed else RESULTS), row_line(row))
        show()
        if on_done is not None:
            on_done(done, len(tasks), task, row, clock.left())
    return rows, failures


def stored_rows(folder: str | Path) -> list[Row]:
    """The rows that a folder holds, none where it is new."""
    return [completed(row) for row in read_rows(Path(folder) / RESULTS)]


def left_over(tasks: Sequence[Task], rows: Sequence[Row]) -> list[Task]:
    """The tasks that have no row yet."""
    known = {row_key(row) for row in rows}
    return [task for task in tasks if task.key not in known]


def answers(rows: Sequence[Row], tasks: Sequence[Task]) -> list[Row]:
    """The rows of these tasks, in their order; of a task stored twice the later one."""
    by_key = {row_key(row): row for row in rows}
    return [by_key[task.key] for task in tasks if task.key in by_key]


def _results(
    bench: Bench, source: Source, tasks: Sequence[Task], work: Work, jobs: int, begun: Callable[[Task], None]
) -> Iterator[tuple[Task, Row]]:
    """Rows and failures as they come, from this process or from several."""
    if jobs > 1:
        job = _Job(source, work, max(1, torch.get_num_threads() // jobs))
        yield from run_in_processes(job, tasks, jobs, begun)
        return
    for task in tasks:
        begun(task)
        yield task, _attempt(lambda: bench, task, work)


def _attempt(opened: Callable[[], Bench], task: Task, work: Work) -> Row:
    """The row of a task, or its failure: whatever it is, the other tasks are still done."""
    try:
        bench = opened()
        return {**bench.facts(), **work(bench, task), "versions": versions()}
    except Exception as error:
        return failure(task, error)


def failure(task: Task, error: Exception) -> Row:
    """What is kept of a task that failed: our own errors explain themselves, others come with a trace."""
    row: Row = {"config": dict(task.resolved)}
    if task.about:
        row["about"] = dict(task.about)
    if isinstance(error, CenterhashError):
        return {**row, "error": str(error)}
    trace = "".join(traceback.format_exception(error))
    return {**row, "error": f"{type(error).__name__}: {error}", "trace": trace}


# Storing


def claim(folder: Path, facts: Row) -> list[Row]:
    """The rows in `folder`, which must be about the same data; a line torn by a kill is taken out."""
    path = folder / RESULTS
    rows = read_rows(path)
    for row in rows:
        differences = other_setting(row, facts)
        if differences:
            raise ConfigError(
                f"'{folder}' holds results of another comparison: {'; '.join(differences)}. Choose another folder."
            )
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        _write_rows(path, rows)
    return [completed(row) for row in rows]


def _forget_failures(path: Path, tasks: Sequence[Task]) -> None:
    """Take out what is about to be tried again."""
    if not path.exists():
        return
    tried = {task.key for task in tasks}
    kept = [row for row in read_failures(path.parent) if row_key(row) not in tried]
    _write_rows(path, kept)
    if not kept:
        path.unlink()


def read_failures(folder: str | Path) -> list[Row]:
    """The tasks of the experiment in `folder` whose last attempt failed."""
    return read_rows(Path(folder) / FAILURES, ("error",))


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    write_text(path, "".join(f"{row_line(row)}\n" for row in rows))


# Several tasks at once, in processes of their own: a task that takes its process down harms no other


class ProcessEndedError(Exception):
    """The process of a task was killed, or crashed."""


@dataclass(frozen=True)
class _Job:
    """What a process does: open the source once, then work per task."""

    source: Source
    work: Work
    threads: int


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
            return ProcessEndedError("its process was killed; is there too little memory for so many jobs?")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return ProcessEndedError(f"its process ended {how}")


def run_in_processes(
    job: _Job, tasks: Sequence[Task], jobs: int, begun: Callable[[Task], None]
) -> Iterator[tuple[Task, Row]]:
    """Yield each task with its row or failure as they finish, `jobs` of them at a time; `begun` hears of each."""
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
                begun(task)
            ready = connection.wait([worker.link for worker in busy])
            for worker in [worker for worker in busy if worker.link in ready]:
                task = busy.pop(worker)
                try:
                    row: Row = worker.link.recv()
                    idle.append(worker)
                except (EOFError, OSError):
                    row = failure(task, worker.end())
                yield task, row
    finally:
        for worker in workers:
            worker.stop()


def _start(job: _Job) -> _Worker:
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
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def _serve(link: connection.Connection[Any, Any], job: _Job) -> None:
    """The life of a process: take tasks, send rows, end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    opened = cache(job.source.open)
    while True:
        try:
            task = link.recv()
        except EOFError:
            return
        link.send(_attempt(opened, task, job.work))


def _end_with_parent() -> None:
    """End at once when the parent is gone: nobody is left to store the row."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
