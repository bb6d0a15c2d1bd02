"""The README's picture of the page, as a browser shows it: a running server is asked for labels.

python -m benchmarks.page_picture --draw photos      # emoji scenes, cut to the shapes of photos
centerhash train photos --bits 64 --out run && centerhash index create photos.index --model run
centerhash index add photos.index photos && centerhash serve photos.index &
python -m benchmarks.page_picture http://127.0.0.1:8000 "person:0.6, car:0.4" docs/images/page.png
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from benchmarks.browser import browser_page, picture_arguments, show_size
from reproduction.scenes import write_scenes

SCENES, SIDE, SHAPES = 600, 400, ((400, 300), (400, 266), (300, 400), (400, 300), (400, 400), (400, 225))


def draw(folder: Path) -> None:
    """Emoji scenes, each with a part at its edges cut off."""
    write_scenes(folder, SCENES, size=SIDE)
    for file, (width, height) in zip(sorted((folder / "images").iterdir()), cycle(SHAPES), strict=False):
        left, top = (SIDE - width) // 2, (SIDE - height) // 2
        with Image.open(file) as image:
            image.crop((left, top, left + width, top + height)).save(file, quality=90)


def main() -> None:
    parser = picture_arguments(__doc__)
    parser.add_argument("--draw", type=Path, help="folder to write emoji scenes into")
    parser.add_argument("address", nargs="?")
    parser.add_argument("labels", nargs="?", help="labels to search by, with weights")
    parser.add_argument("picture", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.draw is not None:
        draw(arguments.draw)
        return
    if arguments.picture is None:
        parser.error("address, labels and picture are needed, or --draw")
    with browser_page(1240, 760) as page:
        page.goto(f"{arguments.address}/#labels={quote(arguments.labels.replace(' ', ''))}")
        page.locator(".results img").nth(11).wait_for()
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
