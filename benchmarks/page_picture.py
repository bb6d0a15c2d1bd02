"""The README's picture of the page, as a browser shows it: a picture is dropped on a running server.

centerhash serve photos.index &
python -m benchmarks.page_picture http://127.0.0.1:8000 photos/images/000280.jpg docs/images/page.png
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("query", type=Path, help="image to search by")
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        parser.error("no Chromium on the PATH")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = opened.new_page(viewport={"width": 1240, "height": 760})
        page.goto(arguments.address)
        page.set_input_files("input[type=file]", str(arguments.query))
        page.locator(".result img").nth(11).wait_for()
        page.wait_for_load_state(
            "networkidle"
        )  # all thumbnails; the page's policy forbids to ask it by a script
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(arguments.picture))
        opened.close()
    with Image.open(arguments.picture) as shot:  # a palette keeps the file small
        shot.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(arguments.picture, optimize=True)
    print(f"{arguments.picture}: {arguments.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
