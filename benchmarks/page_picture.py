"""The README's picture of the page, as a browser shows it: a picture is dropped on a running server.

centerhash serve photos.index &
python -m benchmarks.page_picture http://127.0.0.1:8000 photos/images/000280.jpg docs/images/page.png
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from benchmarks.browser import browser_page, picture_arguments, show_size


def main() -> None:
    parser = picture_arguments(__doc__)
    parser.add_argument("address")
    parser.add_argument("query", type=Path, help="image to search by")
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    with browser_page(1240, 760) as page:
        page.goto(arguments.address)
        page.set_input_files("input[type=file]", str(arguments.query))
        page.locator(".result img").nth(11).wait_for()
        page.wait_for_load_state(
            "networkidle"
        )  # all thumbnails; the page's policy forbids to ask it by a script
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(arguments.picture))
    with Image.open(arguments.picture) as shot:  # a palette keeps the file small
        shot.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(arguments.picture, optimize=True)
    show_size(arguments.picture)


if __name__ == "__main__":
    main()
