"""Write the picture of the web page in README and docs: the sample photos, searched by a label with the built-in model.

    python -m tools.page_picture bird docs/images/page.jpg

Creates an index of examples/photos, serves it, and takes a screenshot in Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

from benchmarks.reporting import ROOT, serving
from centerhash.photos import PhotoIndex

PHOTOS = ROOT / "examples" / "photos"
SIZE = (1240, 760)


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


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", help="labels to search by")
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name) / "photos.index"
        with PhotoIndex.create(folder) as index:
            index.add(PHOTOS, progress=False)
        words = [sys.executable, "-m", "centerhash", "serve", str(folder)]
        with serving(words) as (address, _), browser_page(*SIZE) as page:
            for _ in range(2):  # the first search reads the index
                page.goto(f"{address}/")
                page.goto(f"{address}/#labels={quote(arguments.labels.replace(' ', ''))}")
                page.locator("#grid img").nth(3).wait_for()
                page.wait_for_load_state("networkidle")  # all thumbnails
            arguments.picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(arguments.picture), type="jpeg", quality=85)
    print(f"{arguments.picture}: {arguments.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
