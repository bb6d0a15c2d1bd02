"""A browser for the pictures of the README."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright


def picture_arguments(about: str | None) -> argparse.ArgumentParser:
    """A parser for commands that end with the picture to write."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


@contextmanager
def browser_page(width: int, height: int) -> Iterator[Page]:
    """An empty page of this size in Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium on the PATH")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        yield opened.new_page(viewport={"width": width, "height": height})
        opened.close()


def show_size(picture: Path) -> None:
    """Print what was written."""
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
