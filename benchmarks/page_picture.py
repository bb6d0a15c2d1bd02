"""Write the picture of the web page in README and docs: the sample photos, searched by a label with the built-in model.

    python -m benchmarks.page_picture bird docs/images/page.jpg

Creates an index of examples/photos, serves it, and takes a screenshot in Chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from benchmarks.browser import browser_page, picture_arguments, show_size
from benchmarks.reporting import ROOT
from centerhash.search import Index

PHOTOS = ROOT / "examples" / "photos"
SIZE = (1240, 760)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of an index, which runs meanwhile."""
    words = [sys.executable, "-m", "centerhash", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        printed = ""
        for line in server.stdout or ():
            printed += line
            if found := re.search(r"http://[\w.]+:\d+", line):
                try:
                    yield found[0]
                finally:
                    server.terminate()
                return
        raise SystemExit(printed)


def main() -> None:
    parser = picture_arguments(__doc__)
    parser.add_argument("labels", help="labels to search by")
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name) / "photos.index"
        with Index.create(folder) as index:
            index.add(PHOTOS, progress=False)
        with served(folder) as address, browser_page(*SIZE) as page:
            for _ in range(2):  # the first search reads the index
                page.goto(f"{address}/")
                page.goto(f"{address}/#labels={quote(arguments.labels.replace(' ', ''))}")
                page.locator("#grid img").nth(11).wait_for()
                page.wait_for_load_state("networkidle")  # all thumbnails
            arguments.picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(arguments.picture), type="jpeg", quality=85)
    show_size(arguments.picture)


if __name__ == "__main__":
    main()
