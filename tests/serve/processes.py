"""A real server in a process of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.serve.toys import TOKEN
from tests.toys import PATIENCE, command, process_environment


@dataclass(frozen=True)
class Served:
    """A running server."""

    address: str
    folder: Path
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=PATIENCE, trust_env=False)


@contextmanager
def serving(folder: Path, log: Path, *options: str) -> Iterator[Served]:
    """Start `centerhash serve` on any free port, wait until it listens, and see to it that it is gone afterwards."""
    words = command(["serve", folder, "--port", "0", *options])
    environment = process_environment(CENTERHASH_TOKEN=TOKEN)
    with log.open("w") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, log.read_text()
            yield Served(found.group(), folder, process)
        finally:
            process.kill()
            process.communicate()
