"""Write the picture of the web page for README and docs: a search for a label in the sample photos.

    python -m tools.page_picture bird docs/images/page.jpg

Creates an index of examples/photos with the built-in model, serves it, and takes a screenshot in Chromium.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from benchmarks.reporting import ROOT, serving
from centerhash.photos import PhotoIndex
from tests.browser import chromium

PHOTOS = ROOT / "examples" / "photos"
SIZE = {"width": 1240, "height": 760}


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
        with PhotoIndex.create(folder) as photos:
            photos.add(PHOTOS, progress=False)
        words = [sys.executable, "-m", "centerhash", "serve", str(folder)]
        with serving(words) as (address, _), chromium() as browser:
            page = browser.new_page(viewport=SIZE)
            # The first search reads the index, so that the second one shows its usual time.
            for _ in range(2):
                page.goto(f"{address}/")
                page.goto(f"{address}/#labels={quote(arguments.labels.replace(' ', ''))}")
                page.locator("#grid img").nth(3).wait_for()
                page.wait_for_load_state("networkidle")  # thumbnails
            arguments.picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(arguments.picture), type="jpeg", quality=85)
    print(f"{arguments.picture}: {arguments.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
