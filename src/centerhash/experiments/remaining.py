"""How long the tasks of an experiment still take, from those that have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from centerhash.experiments.bench import Task

# Training, encoding and scoring one cell at COCO's size, as parts of what a deep method takes in 30 epochs: for methods
# of which nothing has ended yet. From the first seed in benchmarks/results/coco117k, where a deep method takes 45 s.
_SHALLOW = {"lsh": 0.1, "sh": 0.12, "itq": 0.11, "bre": 0.4, "ksh": 0.4, "sdh": 0.3}

Config = Mapping[str, Any]
Taken = Sequence[tuple[Config, float]]  # what was asked for, and the seconds that it took


def usual_cost(config: Config) -> float:
    """What a training costs beside others, before any of its kind has ended."""
    return _SHALLOW.get(config["method"]) or float(config["epochs"]) / 30


def seconds_of(config: Config, taken: Taken) -> float:
    """Seconds that a task will take: as others of its method, of its length where there are some, else by its cost."""
    same = [(other, seconds) for other, seconds in taken if _like(other, config, "method", "epochs")]
    if same:
        as_long = [seconds for other, seconds in same if _like(other, config, "bits")]
        return mean(as_long or [seconds for _, seconds in same])
    return usual_cost(config) * sum(seconds for _, seconds in taken) / sum(usual_cost(c) for c, _ in taken)


def _like(first: Config, second: Config, *names: str) -> bool:
    return all(first[name] == second[name] for name in names)


def seconds_left(waiting: Sequence[Config], running: Taken, taken: Taken, jobs: int) -> float:
    """Seconds until all are done: those that wait, and those that have been `running` for so many seconds.

    `jobs` of them run at a time, and the longest one is waited for. Nothing is known before one has ended: nan.
    """
    if not taken:
        return float("nan")
    rest = [max(0.0, seconds_of(config, taken) - since) for config, since in running]
    rest += [seconds_of(config, taken) for config in waiting]
    return max(sum(rest) / jobs, max(rest, default=0.0))


def time_text(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Clock:
    """Keeps the times of an experiment's tasks while they run."""

    def __init__(self, tasks: Sequence[Task], jobs: int) -> None:
        self._waiting, self._jobs = list(tasks), jobs
        self._running: list[tuple[Task, float]] = []  # with the moment at which each began
        self._taken: list[tuple[Config, float]] = []

    def begun(self, task: Task) -> None:
        """A task begins."""
        self._waiting.remove(task)
        self._running.append((task, time.monotonic()))

    def ended(self, task: Task, failed: bool) -> None:
        """A task has ended; one that failed says nothing of the time of others."""
        [found] = [item for item in self._running if item[0] is task]
        self._running.remove(found)
        if not failed:
            self._taken.append((task.resolved, time.monotonic() - found[1]))

    def left(self) -> float:
        """Seconds that all others still take; nan before the first one has ended."""
        now = time.monotonic()
        running = [(task.resolved, now - since) for task, since in self._running]
        return seconds_left([task.resolved for task in self._waiting], running, self._taken, self._jobs)

    def note(self) -> str:
        """What is running, and how long all of it still takes."""
        names = ", ".join(task.name for task, _ in self._running)
        left = self.left()
        return names if math.isnan(left) or not names else f"{names}; {time_text(left)} left"
