"""A real server in a process of its own, and a page of it in a browser."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from tests.forks import Fork
from tests.serve.toys import TOKEN
from tests.toys import PATIENCE, process_environment, wait_until

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


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


class Watched:
    """A page, with everything that it asked for and complained about."""

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
        if message.type == "error" and "status of 4" not in message.text:  # refusals are part of the story
            self.complaints.append(message.text)

    def answered(self, title: str) -> None:
        """Wait until the results of a question with this title stand there."""
        self.page.locator("h1", has_text=title).wait_for()
        self.until("!document.body.classList.contains('waiting')")

    def until(self, condition: str) -> None:
        """Wait for a condition; the page's policy forbids playwright's own way, which evaluates text in the page."""
        self.until_here(lambda: self.page.evaluate(condition), condition)

    def until_here(self, condition: Callable[[], object], words: str) -> None:
        """Wait for a condition that is looked at on this side, while events of the page arrive."""
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
