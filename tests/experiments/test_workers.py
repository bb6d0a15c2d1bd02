"""Real processes: what they return, what they are given, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from centerhash.experiments.workers import Job, run_in_processes

pytestmark = pytest.mark.slow


def prepare(folder: Path) -> int:
    """Note that a process has prepared itself."""
    (folder / str(os.getpid())).touch()
    return 100


def work(state: int, task: int) -> tuple[int, int, str]:
    """Tasks that return, raise, die, or wait to be ended."""
    import torch

    if task == 13:
        raise ValueError("thirteen")
    if task == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 60:
        time.sleep(60)
    return state + task, torch.get_num_threads(), os.environ["OPENBLAS_NUM_THREADS"]


def failed(task: int, error: Exception) -> str:
    return f"{task}: {error}"


def make(folder: Path) -> Job[int, int, object]:
    return Job(partial(prepare, folder), work, failed, threads=1)


def test_results_errors_and_deaths_of_two_processes(tmp_path: Path) -> None:
    begun: list[int] = []
    variables = dict(os.environ)
    found = dict(run_in_processes(make(tmp_path), [1, 13, 9, 2, 3], 2, begun.append))
    assert found[1] == (101, 1, "1")
    assert found[3] == (103, 1, "1")
    assert found[13] == "13: thirteen"
    assert str(found[9]).startswith("9: its process was killed; is there too little memory")
    assert found[2] == (102, 1, "1")
    assert begun == [1, 13, 9, 2, 3]
    # two, each prepared once, and one in place of the dead unless the other was quick enough to take its tasks
    assert len(list(tmp_path.iterdir())) in (2, 3)
    assert dict(os.environ) == variables
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_processes_end_with_the_loop_that_uses_them(tmp_path: Path) -> None:
    results = run_in_processes(make(tmp_path), [60, 1], 2, lambda task: None)
    assert next(results) == (1, (101, 1, "1"))
    results.close()
    for pid in (int(path.name) for path in tmp_path.iterdir()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
