"""A real browser for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, opened; without one the test is skipped, and fails where tests count."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        missing = (
            "no Chromium found: `make test` installs Debian's as root; elsewhere put `chromium` on the PATH."
        )
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()
