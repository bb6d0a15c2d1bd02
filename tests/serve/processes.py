"""A real server in a process of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.forks import Fork
from tests.serve.toys import TOKEN
from tests.toys import PATIENCE, process_environment


@dataclass(frozen=True)
class Served:
    """A running server."""

    address: str
    folder: Path
    process: Fork

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=PATIENCE, trust_env=False)


@contextmanager
def serving(folder: Path, log: Path, *options: str) -> Iterator[Served]:
    """Start `centerhash serve` on any free port, wait until it listens, and see to it that it is gone afterwards."""
    words = ["serve", str(folder), "--port", "0", *options]
    environment = process_environment(CENTERHASH_TOKEN=TOKEN)
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, log.open("w") as errors:
        process = Fork(words, writing, errors.fileno(), environment)
        os.close(writing)
        try:
            found = re.search(r"http://\S+", lines.readline())
            assert found is not None, log.read_text()
            yield Served(found.group(), folder, process)
        finally:
            process.kill()
            process.wait()
