"""`make wheel-check`: the wheel in an empty venv with base dependencies alone: size, speed, the README's commands.

    python -m tools.wheel_check [--out benchmarks/results/wheel.json] [--photos FOLDER]

Builds the wheel, installs it into an empty venv, and runs the first commands of the README there. Then it measures the
time of `--help`, photos per second of `photos add`, the time of a search by a photo in a new process and the memory of
the server. `--photos` are real photos to add, otherwise pictures of drawn shapes. Takes minutes and downloads packages.
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np

from benchmarks.reporting import ROOT, arguments_of, serving, store
from benchmarks.reporting import megabytes as memory
from tests.shapes import write_shapes

GOAL = 250  # megabytes
DRAWN, TIMES = 300, 5


def base_commands(readme: str) -> list[list[str]]:
    """Return the README's commands for the base install, word by word; `serve`, which does not end, is last."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", readme.split("## Train")[0], flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("centerhash ")]
    if not lines:
        raise SystemExit("README.md has no commands.")
    return sorted((shlex.split(line, comments=True) for line in lines), key=lambda words: words[1] == "serve")


def megabytes(folder: Path) -> float:
    """Return the size of the files in a folder, links not counted twice."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


class Environment:
    """An empty venv into which the wheel is installed, and a folder to work in."""

    def __init__(self, place: Path) -> None:
        self.home, self.desk = place / "venv", place / "desk"
        self.desk.mkdir()
        venv.create(self.home, with_pip=True)

    def install(self, what: str) -> None:
        """Install with the versions of a clone."""
        words = ("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), what)
        run([str(self.home / "bin" / "python"), *words], self.desk)

    def words(self, *arguments: str | Path) -> list[str]:
        """Return the words of a command line."""
        return [str(self.home / "bin" / "centerhash"), *map(str, arguments)]

    def seconds(self, *arguments: str | Path) -> float:
        """Return the time of a command in a process of its own."""
        started = time.perf_counter()
        run(self.words(*arguments), self.desk)
        return time.perf_counter() - started

    def median(self, *arguments: str | Path) -> float:
        """Return the median of several times."""
        return round(float(np.median([self.seconds(*arguments) for _ in range(TIMES)])), 3)


def clean() -> dict[str, str]:
    """Return the environment without the settings of this Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(words: list[str], folder: Path = ROOT) -> None:
    """Run a command; exit with its output if it fails."""
    done = subprocess.run(words, cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")


def added_per_second(environment: Environment, photos: Path, index: str) -> float:
    """Return photos per second of `photos add`, without the start of the process and of the network."""
    files = sorted(
        path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".heic")
    )
    start = environment.seconds("photos", "add", index, files[0])
    every = environment.seconds("photos", "add", index, photos)
    return round((len(files) - 1) / max(every - start, 1e-3), 1)


def run_readme(environment: Environment) -> None:
    """Run the README's commands on the sample photos; the server must answer."""
    shutil.copytree(ROOT / "examples" / "photos", environment.desk / "photos")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("~/Pictures", "photos")
    for words in base_commands(readme):
        print(shlex.join(words), flush=True)
        if words[1] == "serve":
            with serving(environment.words(*words[1:]), cwd=environment.desk, env=clean()) as (address, _):
                urlopen(f"{address}/health", timeout=60).read()
        else:
            run(environment.words(*words[1:]), environment.desk)


def main() -> None:
    """Build, install, measure and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of real photos to add")
    given = parser.parse_args()
    measured: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        measured[name] = value
        print(f"{name}: {value}", flush=True)

    with TemporaryDirectory() as folder:
        place = Path(folder)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(place / "dist"), str(ROOT)])
        (wheel,) = (place / "dist").glob("*.whl")
        note("wheel_megabytes", round(wheel.stat().st_size / 1e6, 1))
        environment = Environment(place)
        before = megabytes(environment.home)
        environment.install(str(wheel))
        note("base_megabytes", round(megabytes(environment.home) - before, 1))
        note("help_seconds", environment.median("--help"))
        run_readme(environment)
        photos = given.photos and given.photos.absolute()
        photos = photos or write_shapes(environment.desk / "drawn", DRAWN, size=480) / "images"
        note("photos", "real" if given.photos else "drawn")
        note("added_per_second", added_per_second(environment, photos, "base.index"))
        first = next(path for path in sorted(photos.rglob("*")) if path.is_file())
        note("search_seconds", environment.median("photos", "search", "base.index", first))
        words = environment.words("serve", "base.index")
        with serving(words, cwd=environment.desk, env=clean()) as (_, process):
            note("served_megabytes", memory(process))
        environment.install(f"{wheel}[fast]")
        note("fast_megabytes", round(megabytes(environment.home) - before, 1))
    store(given.out, measured)
    if measured["base_megabytes"] > GOAL:
        raise SystemExit(f"the base install takes more than {GOAL} MB.")


if __name__ == "__main__":
    main()
