"""The README's picture, from the demo's report: search results and weights, as a browser shows them.

make demo && python -m benchmarks.picture demo/report.html docs/images/demo.png
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROWS, CARDS = 3, 6  # what fits a README: the first queries and the first weighted images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        parser.error("no Chromium on the PATH")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = opened.new_page(viewport={"width": 1080, "height": 900})
        page.goto(arguments.report.resolve().as_uri())
        page.add_style_tag(
            content="main > :not(#search-results, #what-the-weights-say), section p { display: none }"
            "main { padding: 1rem } section { margin-top: .6rem }"
            f".results:nth-of-type(n+{ROWS + 1}), .example:nth-child(n+{CARDS + 1}) {{ display: none }}"
        )
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        page.locator("main").screenshot(path=str(arguments.picture))
        opened.close()
    print(f"{arguments.picture}: {arguments.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
