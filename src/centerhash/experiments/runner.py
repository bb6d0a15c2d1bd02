"""Run experiments: tasks in this process or in several, one stored row each, none computed twice.

results.jsonl      one line per finished task: data, split, images, evaluation, configuration, results, versions
failures.jsonl     one line per task whose last attempt failed; a rerun tries it again
"""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from centerhash.core.errors import CenterhashError, ConfigError, DataError
from centerhash.core.files import append_line, make_folder, parse_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task, row_key, task_name
from centerhash.training.config import backbone_of
from centerhash.training.run_folder import versions

RESULTS, FAILURES = "results.jsonl", "failures.jsonl"
_REQUIRED_ENTRIES = ("data", "fingerprint", "split", "images", "evaluation")

# Computes the row of a task. Worker processes import it by name: a function of a module, or a partial of one.
Work: TypeAlias = Callable[[EvaluationSetup, Task], Row]
# Called after every task with the number of ended tasks, the number of all, the task, and its row or failure.
TaskDone: TypeAlias = Callable[[int, int, Task, Row], None]


# Holds a task and None when it starts, and its row or failure when it ends.
Event: TypeAlias = tuple[Task, Row | None]

_dump = partial(json.dumps, separators=(",", ":"))


def run_tasks(
    source: Source,
    tasks: Sequence[Task],
    out: str | Path,
    work: Work,
    *,
    stage: str = "tasks",
    jobs: int = 1,
    progress: Progress = silent,
    on_done: TaskDone | None = None,
    warn: Callable[[Sequence[str]], None] | None = None,
    needs: str = "config",
) -> tuple[list[Row], list[Row]]:
    """Run the tasks that `out` has no rows of; return all its rows, and the failures of this attempt.

    With several jobs, each task runs in a worker process with its share of the threads. `warn` receives the warnings
    of the dataset. A task runs again if its row has no entry of the name `needs`.
    """
    _check_tasks(source, tasks, jobs)
    setup = source.open(progress, frozen=not all(task.trains_backbone for task in tasks))
    if any(task.trains_backbone for task in tasks) and setup.dataset.kind == "features":
        raise ConfigError(f"`finetune=` needs images, and '{setup.dataset.root}' holds features: omit it.")
    folder = make_folder(out)
    rows, failures = open_results(folder, setup.facts()), list[Row]()
    if warn is not None:
        warn(setup.dataset.warnings)
    waiting, running = unfinished(tasks, rows, needs), list[Task]()
    keys = {task.key for task in tasks}
    _write_rows(folder / FAILURES, [row for row in read_failures(folder) if row_key(row) not in keys])
    done, jobs = len(tasks) - len(waiting), min(jobs, len(waiting))
    progress(stage, done, len(tasks))
    events = (
        _run_in_processes(source, waiting, work, jobs) if jobs > 1 else _run_serially(setup, waiting, work)
    )
    for task, row in events:
        if row is None:
            running.append(task)
        else:
            done += 1
            running.remove(task)
            target, name = (failures, FAILURES) if "error" in row else (rows, RESULTS)
            target.append(row)
            append_line(folder / name, _dump(row))
        progress(stage, done, len(tasks), ", ".join(task.name for task in running))
        if row is not None and on_done is not None:
            on_done(done, len(tasks), task, row)
    return rows, failures


def _check_tasks(source: Source, tasks: Sequence[Task], jobs: int) -> None:
    """Reject tasks of several networks: all rows of an experiment share its features."""
    if jobs > 1 and any(task.trains_backbone for task in tasks):
        raise ConfigError(
            f"runs with `finetune=` use all CPUs and run one after the other: omit `jobs={jobs}`."
        )
    for task in tasks:
        if not task.trains_backbone and backbone_of(task.config) != source.backbone:
            raise ConfigError(
                f"all training runs share the features of one network, and {task.name} needs another: set "
                "`backbone=`, `weights=`, `crop=` and `pool=` for all. With `pretrained=False` only one seed is possible."
            )


def unfinished(tasks: Sequence[Task], rows: Sequence[Row], needs: str = "config") -> list[Task]:
    """Return the tasks that have no row yet, or only one without the entry `needs`."""
    finished = {row_key(row) for row in rows if needs in row}
    return [task for task in tasks if task.key not in finished]


def select_rows(rows: Sequence[Row], tasks: Sequence[Task]) -> list[Row]:
    """Return the rows of these tasks, in their order; of a task stored twice, the later one."""
    by_key = {row_key(row): row for row in rows}
    return [by_key[task.key] for task in tasks if task.key in by_key]


def read_rows(path: str | Path, keys: Sequence[str] = _REQUIRED_ENTRIES) -> list[Row]:
    """Read a file of json lines, none if there is no such file; a last line torn by a crash is skipped.

    Every row must have a config and the `keys`.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.decode())
            if not isinstance(row, dict) or not {*keys, "config"} <= row.keys():
                raise ValueError(f"it needs config, {', '.join(keys)}")
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(f"'{path}', line {number} is damaged ({error}): remove that line.") from None
        rows.append(row)
    return rows


def read_failures(folder: str | Path) -> list[Row]:
    """Read the failures of the tasks in `folder` whose last attempt failed."""
    return read_rows(Path(folder) / FAILURES, ("error",))


def rounded(value: Any, digits: int = 6) -> Any:
    """Round every fraction in plain values, so that a row with its curves needs only a few kB."""
    return json.loads(json.dumps(value), parse_float=lambda number: round(float(number), digits))


def differences(row: Row, facts: Row) -> list[str]:
    """List what distinguishes the data and evaluation of a row from `facts`; empty within one comparison."""
    same = " with other labels or splits" if row["data"] == facts["data"] else ""
    changed = row["fingerprint"] != facts["fingerprint"]
    texts = [f"data was {row['data']}, now {facts['data']}{same}"] if changed else []
    pairs = [(name, row[name], facts[name]) for name in ("split", "images")]
    pairs += [(name, row["evaluation"][name], facts["evaluation"][name]) for name in ("k", "exclude_self")]
    # Features have no backbone.
    pairs.append(("backbone", *(values.get("backbone", {}).get("key") for values in (row, facts))))
    return texts + [f"{name} was {stored}, now {new}" for name, stored, new in pairs if stored != new]


def open_results(folder: Path, facts: Row) -> list[Row]:
    """Read the rows in `folder`, which must be of the same data; a line torn by a crash is removed."""
    path = folder / RESULTS
    rows = read_rows(path)
    for row in rows:
        if texts := differences(row, facts):
            raise ConfigError(
                f"'{folder}' holds results of another comparison: {'; '.join(texts)}. Choose another folder."
            )
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        _write_rows(path, rows)
    return rows


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace the rows of a file; without rows there is no file."""
    if rows:
        write_text(path, "".join(f"{_dump(row)}\n" for row in rows))
    else:
        path.unlink(missing_ok=True)


def failure(task: Task, error: BaseException) -> Row:
    """Return the stored row of a task that failed; only errors that are no CenterhashError have a trace."""
    if isinstance(error, CenterhashError):
        return {**task.identity, "error": str(error)}
    trace = "".join(traceback.format_exception(error))
    return {**task.identity, "error": f"{type(error).__name__}: {error}", "trace": trace}


def failure_text(row: Row) -> str:
    """Describe a failed task in one line."""
    return f"{task_name(row)}: {' '.join(row['error'].split())}"


def _run_serially(setup: EvaluationSetup, tasks: Sequence[Task], work: Work) -> Iterator[Event]:
    for task in tasks:
        yield task, None
        yield task, _attempt(setup, task, work)


def _attempt(setup: EvaluationSetup | Source, task: Task, work: Work) -> Row:
    """Return the row of a task, or its failure: other tasks still run."""
    try:
        setup = _open_once(setup) if isinstance(setup, Source) else setup
        return {**setup.facts(), **work(setup, task), "versions": versions()}
    except Exception as error:
        return failure(task, error)


def _run_in_processes(source: Source, tasks: Sequence[Task], work: Work, jobs: int) -> Iterator[Event]:
    """Run `jobs` tasks at a time.

    Every job is a pool of one process: if the process dies, the task it was running is known and the other pools are
    intact. A new pool replaces the broken one.
    """
    # A fork would inherit torch's thread pools in an unknown state.
    context = get_context("spawn")
    # All workers end when the writer is closed, also by the death of this process.
    reader, writer = context.Pipe(duplex=False)
    start = reader, max(1, torch.get_num_threads() // jobs)
    waiting, pools, idle = deque(tasks), list[ProcessPoolExecutor](), list[ProcessPoolExecutor]()
    running: dict[Future[Row], tuple[Task, ProcessPoolExecutor]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                if not idle:
                    pools.append(ProcessPoolExecutor(1, context, _start_worker, start))
                    idle.append(pools[-1])
                task, pool = waiting.popleft(), idle.pop()
                running[pool.submit(_attempt, source, task, work)] = task, pool
                yield task, None
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, pool = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    error = CenterhashError(
                        "its process was killed or crashed: is there too little memory for so many jobs?"
                    )
                else:
                    idle.append(pool)
                yield task, failure(task, error) if error else future.result()
    finally:
        writer.close()
        for pool in pools:
            pool.shutdown()
        reader.close()


def _start_worker(reader: Connection[Any, Any], threads: int) -> None:
    """Prepare a worker process, which has few threads and exits as soon as the parent closes its pipe or dies."""
    # The parent handles interrupts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    threadpool_limits(threads)

    def exit_with_parent() -> None:
        with suppress(EOFError, OSError):
            reader.recv()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


@cache
def _open_once(source: Source) -> EvaluationSetup:
    """Open a source, once per worker."""
    return source.open()
