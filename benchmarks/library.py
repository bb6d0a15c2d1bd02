"""Keep an index in step with folders: the first add, the second one, a moved folder, and how soon a change is noticed.

    python -m benchmarks.library PHOTOS [--count 3240] [--out benchmarks/results/library.json]

Copies of the JPEG files in the folder PHOTOS, with a date and a camera in their EXIF data, are laid into folders by year
and month. The ratios of the times matter; seconds differ by machine.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import ExifTags, Image

from benchmarks.reporting import arguments_of, show, store
from centerhash.search import Index

CAMERAS = (("Canon", "Canon EOS R5"), ("Apple", "iPhone 12"), ("NIKON CORPORATION", "NIKON D750"))
CHANGES = 9
_PATIENCE = 60.0  # seconds


def write_photos(files: list[Path], home: Path) -> None:
    """Copy photos into folders by year and month, with EXIF data."""
    for number, file in enumerate(files):
        year, month, day = 2018 + number % 7, 1 + number // 7 % 12, 1 + number // 84 % 28
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = (
            f"{year}:{month:02}:{day:02} 12:00:00"
        )
        exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = CAMERAS[number % len(CAMERAS)]
        place = home / f"{year}" / f"{month:02}"
        place.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as image:
            image.save(place / f"{number:05}.jpg", exif=exif, quality="keep")


def timed_add(folder: Path, photos: Path) -> float:
    """Return the seconds of adding a folder to an index that has just been opened."""
    with Index.open(folder) as index:
        started = time.perf_counter()
        index.add(photos, progress=False)
        return time.perf_counter() - started


def notice_seconds(folder: Path, photos: Path) -> dict[str, float]:
    """Return how long `index watch` takes until a new photo is in the index, and until a vanished one is hidden."""
    times: dict[str, list[float]] = {"new": [], "gone": []}
    words = [sys.executable, "-m", "centerhash", "index", "watch", str(folder), str(photos)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # that it watches
        process.stdout.readline()  # the first scan
        with Index.open(folder, read_only=True) as reader:
            before = len(reader)
            for number in range(CHANGES):
                made = photos / f"new {number}.jpg"
                Image.new("RGB", (256, 256), (number, 2 * number, 255 - number)).save(made)
                times["new"].append(_seconds_until(reader, before + 1))
                made.unlink()
                times["gone"].append(_seconds_until(reader, before))
        process.send_signal(signal.SIGINT)
    return {f"{name}_noticed_s": statistics.median(found) for name, found in times.items()}


def _seconds_until(reader: Index, count: int) -> float:
    started = time.perf_counter()
    while len(reader) != count:
        if time.perf_counter() > started + _PATIENCE:
            raise TimeoutError(f"{len(reader):,} items instead of {count:,}")
        time.sleep(0.01)
    return time.perf_counter() - started


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=3240)
    options = parser.parse_args()
    files = sorted(options.photos.rglob("*.jpg"))[: options.count]
    with tempfile.TemporaryDirectory() as place:
        photos, moved, folder = (Path(place) / name for name in ("photos", "moved", "index"))
        write_photos(files, photos)
        Index.create(folder).close()
        figures = {
            "photos": float(len(files)),
            "first_add_s": timed_add(folder, photos),
            "second_add_s": timed_add(folder, photos),
        }
        shutil.move(photos, moved)
        figures["add_of_the_moved_folder_s"] = timed_add(folder, moved)
        figures |= notice_seconds(folder, moved)
    show("folders", figures)
    store(options.out, figures)


if __name__ == "__main__":
    main()
