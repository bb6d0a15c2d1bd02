"""`make wheel-check`: the wheel in an empty venv with base dependencies alone: size, speed, the README's commands.

    python -m benchmarks.wheel_check [--out benchmarks/results/wheel.json] [--photos FOLDER] [--only-size]

Builds the wheel, installs it into an empty venv, and runs the first commands of the README there. Then it measures the
time of `--help`, images per second of `index add`, the time of a search by an image in a new process and the memory of
the server, both with an index of 10,000 items, and `index add` once more with the extra `fast`. `--photos` are real
photos to add, otherwise 300 drawn ones of 500 x 375 pixels. Takes minutes and downloads packages, so it is no test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from benchmarks.reporting import ROOT, arguments_of, store

GOAL = 250  # megabytes
ITEMS = 10_000
DRAWN = 300
TIMES = 5


def base_commands(readme: str) -> list[list[str]]:
    """The commands of the README that need the base install only, word by word; `serve`, which does not end, is last."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", readme.split("## Train")[0], flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("centerhash ")]
    if not lines:
        raise SystemExit("README.md has no commands.")
    return sorted((shlex.split(line, comments=True) for line in lines), key=lambda words: words[1] == "serve")


def megabytes(folder: Path) -> float:
    """What the files in a folder take, links not counted twice."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


class Environment:
    """An empty venv into which the wheel is installed, and a folder to work in."""

    def __init__(self, place: Path) -> None:
        self.home, self.desk = place / "venv", place / "desk"
        self.desk.mkdir()
        venv.create(self.home, with_pip=True)
        self.scripts = self.home / ("Scripts" if os.name == "nt" else "bin")

    def install(self, what: str) -> None:
        """Install with the versions of a clone."""
        words = ("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), what)
        run([str(self.scripts / "python"), *words], self.desk)

    def words(self, *arguments: str | Path) -> list[str]:
        """The words of a command line."""
        return [str(self.scripts / "centerhash"), *map(str, arguments)]

    def seconds(self, *arguments: str | Path) -> float:
        """How long a command takes in a process of its own."""
        started = time.perf_counter()
        run(self.words(*arguments), self.desk)
        return time.perf_counter() - started

    def median(self, *arguments: str | Path) -> float:
        """The median of several times."""
        return round(float(np.median([self.seconds(*arguments) for _ in range(TIMES)])), 3)


def clean() -> dict[str, str]:
    """The environment without what this Python would lend."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(words: list[str], folder: Path = ROOT) -> None:
    """Run a command; exit with its output if it fails."""
    done = subprocess.run(words, cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")


@contextmanager
def serving(words: list[str], folder: Path) -> Iterator[tuple[str, int]]:
    """Start a server, and yield its address and process once clients may connect; stop it at the end."""
    with subprocess.Popen(
        words, cwd=folder, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        said = ""
        for line in server.stdout or ():
            said += line
            if found := re.search(r"http://[\w.]+:\d+", line):
                try:
                    yield found[0], server.pid
                finally:
                    server.terminate()
                return
        raise SystemExit(f"{shlex.join(words)}\n{said}")


def draw_photos(folder: Path, count: int) -> None:
    """Write JPEG files of 500 x 375 pixels with structures of several sizes."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = np.zeros((375, 500, 3))
        for side in (4, 16, 64):
            coarse = Image.fromarray(generator.integers(0, 256, (side, side, 3), dtype=np.uint8))
            pixels += np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)) / 3
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:05}.jpg", quality=90)


def fill(environment: Environment, index: str) -> None:
    """Import random codes until the index holds 10,000 items."""
    file = environment.desk / "codes.npz"
    generator = np.random.default_rng(1)
    packed = generator.integers(0, 256, (ITEMS, 8), dtype=np.uint8)
    visual = generator.integers(0, 256, (ITEMS, 16), dtype=np.uint8)
    names = np.array([f"item-{number}" for number in range(ITEMS)])
    np.savez(file, packed=packed, bits=np.array(64), names=names, visual=visual)
    environment.seconds("index", "import", index, file)


def added_per_second(environment: Environment, photos: Path, index: str) -> float:
    """Images per second of `index add`, without the start of the process and of the network: a first add of one."""
    count = sum(1 for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".heic"))
    environment.seconds("index", "create", index)
    first = next(path for path in sorted(photos.rglob("*")) if path.is_file())
    start = environment.seconds("index", "add", index, first)
    every = environment.seconds("index", "add", index, photos)
    return round((count - 1) / max(every - start, 1e-3), 1)


def served_memory(environment: Environment, index: str, photo: Path) -> dict[str, float]:
    """Resident megabytes of the server after its start and the most after ten searches by an image."""

    def resident(process: int, field: str) -> float:
        text = Path(f"/proc/{process}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", text)
        return round(int(found[1]) * 1024 / 1e6, 1) if found else 0.0

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="photo"\r\n\r\n'
    body = head + photo.read_bytes() + b"\r\n--x--\r\n"
    with serving(environment.words("serve", index, "--port", "0"), environment.desk) as (address, process):
        started = resident(process, "VmRSS")
        for _ in range(10):
            with urlopen(Request(f"{address}/search", body, kind), timeout=60) as answer:
                answer.read()
        return {"started": started, "most": resident(process, "VmHWM")}


def run_readme(environment: Environment) -> None:
    """Run the commands of the README on a folder `photos` of the sample photos; the last serves a page."""
    *commands, last = base_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    shutil.copytree(ROOT / "examples" / "photos", environment.desk / "photos")
    for words in commands:
        run(environment.words(*words[1:]), environment.desk)
    with (
        serving(environment.words(last[1], "photos", "--port", "0"), environment.desk) as (address, _),
        urlopen(f"{address}/health", timeout=60) as answer,
    ):
        answer.read()
    print(f"{len(commands) + 1} commands of the README run", flush=True)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of real photos to add")
    parser.add_argument(
        "--only-size", action="store_true", help="install, and measure no more than size and help"
    )
    given = parser.parse_args()
    measured: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        measured[name] = value
        print(f"{name}: {value}", flush=True)

    with TemporaryDirectory() as name:
        place = Path(name)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", name, str(ROOT)])
        (wheel,) = place.glob("*.whl")
        note("wheel_megabytes", round(wheel.stat().st_size / 1e6, 1))
        environment = Environment(place)
        before = megabytes(environment.home)
        environment.install(str(wheel))
        note("base_megabytes", round(megabytes(environment.home) - before, 1))
        note("goal_megabytes", GOAL)
        note("help_seconds", environment.median("--help"))
        note("doctor_seconds", environment.median("doctor"))
        if not given.only_size:
            run_readme(environment)
            source = environment.desk / "drawn" if given.photos is None else given.photos.absolute()
            if given.photos is None:
                draw_photos(source, DRAWN)
            photo = next(path for path in sorted(source.rglob("*")) if path.is_file())
            note("photos", "drawn" if given.photos is None else "real")
            note("added_per_second", added_per_second(environment, source, "base.index"))
            fill(environment, "photos.index")
            note("search_seconds", environment.median("search", "photos.index", photo))
            if Path("/proc/self/status").exists():
                note("served_megabytes", served_memory(environment, "photos.index", photo))
            environment.install(f"{wheel}[fast]")
            note("fast_megabytes", round(megabytes(environment.home) - before, 1))
            note("added_per_second_fast", added_per_second(environment, source, "fast.index"))
    store(given.out, measured)
    if measured["base_megabytes"] > GOAL:
        raise SystemExit(f"the base install takes more than {GOAL} MB.")


if __name__ == "__main__":
    main()
