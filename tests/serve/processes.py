"""A real server in a process, and its page in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from tests.toys import PATIENCE, process_environment, wait_until

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass(frozen=True)
class Served:
    """A running server."""

    address: str
    process: subprocess.Popen[str]

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=PATIENCE, trust_env=False, **options)


@contextmanager
def started(words: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process of Python whose messages go to `log`; end it after the block."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env=process_environment(PYTHONUNBUFFERED="1", **environment),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(folder: Path, log: Path, *options: str, **environment: str) -> Iterator[Served]:
    """Run `centerhash serve` on any free port; the block begins when it listens."""
    words = ["-m", "centerhash", "serve", str(folder), "--port", "0", *options]
    with started(words, log, **environment) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None, log.read_text()
        yield Served(address.group(), process)


class Watched:
    """A page, with all its requests and the errors of its scripts."""

    def __init__(self, browser: Any, address: str, viewport: dict[str, int]) -> None:
        self.page = browser.new_page(viewport=viewport)
        self.page.set_default_timeout(1000 * PATIENCE)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.goto(address)

    def _listen(self, message: Any) -> None:
        # The tests send requests that are rejected.
        if message.type == "error" and "status of 4" not in message.text:
            self.complaints.append(message.text)

    def answered(self, title: str) -> None:
        """Wait until the results under this title are shown."""
        self.page.locator("#found-title", has_text=title).wait_for()
        self.until("!document.body.classList.contains('waiting')")

    def until(self, condition: str) -> None:
        """Wait for a condition; the page's policy forbids playwright's own way, which evaluates text in the page."""
        self.until_here(lambda: self.page.evaluate(condition), condition)

    def until_here(self, condition: Callable[[], object], words: str) -> None:
        """Wait for a condition of this process, while events of the page arrive."""
        wait_until(condition, words, pause=lambda: self.page.wait_for_timeout(20))

    def ids(self) -> list[str]:
        return list(
            self.page.locator("#grid > li[data-id]").evaluate_all("all => all.map(row => row.dataset.id)")
        )

    def ready(self) -> None:
        """Wait for the collection, which the page opens on."""
        self.page.locator("#popular button").first.wait_for()
        self.page.locator(".wall > li[data-id]").first.wait_for()
        self.until("!document.body.classList.contains('waiting')")

    def photo(self) -> str:
        """The id of the photo that is shown large."""
        return str(self.page.locator("#photo").evaluate("dialog => dialog.dataset.id ?? ''"))

    def fragment(self) -> str:
        return unquote(self.page.url.partition("#")[2])

    def close(self) -> None:
        """Close the page, which reported no error."""
        self.page.close()
        assert self.complaints == []
