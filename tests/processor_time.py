"""Processor seconds of every test, its own and those of processes it waited for, dearest first.

`python -m pytest -n auto -p tests.processor_time`: a busy machine changes how long tests take, but hardly what they cost.
What a fixture costs counts for the test that asks for it first, what a server costs for the test that ends it.
`--processor-times FILE` writes a line of json for every test there, as soon as it is over.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Fork

SHOWN = 60


def spent() -> float:
    """What this process and all that it waited for have used until now."""
    return sum(os.times()[:4]) + Fork.seconds


class Meter:
    """Stamps every report with what has been used since the one before it, and sums them where all reports arrive."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.before: float | None = None
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.starting = 0.0 if self.before is not None else spent()  # imports and collection, in this process
        self.before = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        report = yield
        now = spent()
        report.processor_seconds, self.before = now - (self.before or now), now
        report.starting_seconds, self.starting = self.starting, 0.0
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tests[report.nodeid] += report.processor_seconds
        if report.starting_seconds:
            self.tests["(start of a process)"] += report.starting_seconds
        if self.out is not None and report.when == "teardown":
            with self.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([self.tests[report.nodeid], report.nodeid]) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(
            f"{self.tests.total():.0f} processor seconds, {spent():.0f} with the controller"
        )
        for name, counted in (("files", files), ("tests", self.tests)):
            terminalreporter.write_line(f"the dearest {name}:")
            for item, seconds in counted.most_common(SHOWN):
                terminalreporter.write_line(f"{seconds:8.2f}  {item}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-times", metavar="FILE", type=Path, help="write the processor seconds of tests to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    here = not hasattr(config, "workerinput")  # not one of the processes of xdist, whose reports come here
    config.pluginmanager.register(Meter(config.getoption("--processor-times") if here else None))
