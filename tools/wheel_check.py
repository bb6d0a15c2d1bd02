"""Test the wheel in an empty venv with its base dependencies alone: `make wheel-check`.

    python -m tools.wheel_check [--out benchmarks/results/wheel.json] [--photos FOLDER]

Builds the wheel, installs it into an empty venv, and runs the first commands of the README there. Then it measures the
time of `--help`, photos per second of `photos add`, the time of a search by a photo in a new process and the memory of
the server. `--photos` are real photos to add; by default, pictures are drawn. Takes minutes and downloads packages.
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

from benchmarks.reporting import ROOT, arguments_of, megabytes, serving, store
from tests.shapes import write_shapes

MAX_MEGABYTES = 255
DRAWN_PICTURES, REPEATS = 300, 5
INDEX, SUFFIXES = "base.index", (".jpg", ".jpeg", ".png", ".heic")


def base_commands(readme: str) -> list[list[str]]:
    """Return the README's commands for the base install as words; `serve`, which does not end, is last."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", readme.split("## Train")[0], flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("centerhash ")]
    if not lines:
        raise SystemExit("README.md has no commands.")
    return sorted((shlex.split(line, comments=True) for line in lines), key=lambda words: words[1] == "serve")


def folder_megabytes(folder: Path) -> float:
    """Return the size of the files in a folder, without links."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


class Environment:
    """An empty venv into which the wheel is installed, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.desk = folder / "venv", folder / "desk"
        self.desk.mkdir()
        venv.create(self.venv, with_pip=True)

    def install(self, requirement: str) -> None:
        """Install a requirement with the versions of a clone."""
        words = ("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), requirement)
        run([str(self.venv / "bin" / "python"), *words], self.desk)

    def words(self, *arguments: str | Path) -> list[str]:
        """Return the words of a command line."""
        return [str(self.venv / "bin" / "centerhash"), *map(str, arguments)]

    def seconds(self, *arguments: str | Path) -> float:
        """Return the time of a command in a new process."""
        started = time.perf_counter()
        run(self.words(*arguments), self.desk)
        return time.perf_counter() - started

    def median(self, *arguments: str | Path) -> float:
        """Return the median time of several runs of a command."""
        return round(float(np.median([self.seconds(*arguments) for _ in range(REPEATS)])), 3)


def clean_environment() -> dict[str, str]:
    """Return the environment variables without the settings of this Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(words: list[str], folder: Path = ROOT) -> None:
    """Run a command; exit with its output if it fails."""
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")


def added_per_second(environment: Environment, photos: Path, files: list[Path]) -> float:
    """Return photos per second of `photos add`, without the start of the process and of the network."""
    first = environment.seconds("photos", "add", INDEX, files[0])
    every = environment.seconds("photos", "add", INDEX, photos)
    return round((len(files) - 1) / max(every - first, 1e-3), 1)


def run_readme(environment: Environment) -> None:
    """Run the README's commands on the sample photos; the server must respond."""
    shutil.copytree(ROOT / "examples" / "photos", environment.desk / "photos")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("~/Pictures", "photos")
    for words in base_commands(readme):
        print(shlex.join(words), flush=True)
        if words[1] == "serve":
            with serving(environment.words(*words[1:]), cwd=environment.desk, env=clean_environment()) as (
                address,
                _,
            ):
                urlopen(f"{address}/health", timeout=60).read()
        else:
            run(environment.words(*words[1:]), environment.desk)


def main() -> None:
    """Build, install, measure and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of real photos to add")
    options = parser.parse_args()
    measured: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        measured[name] = value
        print(f"{name}: {value}", flush=True)

    with TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(ROOT)])
        (wheel,) = (folder / "dist").glob("*.whl")
        note("wheel_megabytes", round(wheel.stat().st_size / 1e6, 1))
        environment = Environment(folder)
        before = folder_megabytes(environment.venv)
        environment.install(str(wheel))
        note("base_megabytes", round(folder_megabytes(environment.venv) - before, 1))
        note("help_seconds", environment.median("--help"))
        run_readme(environment)
        photos = options.photos and options.photos.absolute()
        photos = photos or write_shapes(environment.desk / "drawn", DRAWN_PICTURES, size=480) / "images"
        files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in SUFFIXES)
        note("photos", "real" if options.photos else "drawn")
        note("added_per_second", added_per_second(environment, photos, files))
        note("search_seconds", environment.median("photos", "search", INDEX, files[0]))
        words = environment.words("serve", INDEX)
        with serving(words, cwd=environment.desk, env=clean_environment()) as (_, process):
            note("served_megabytes", megabytes(process))
        environment.install(f"{wheel}[fast]")
        note("fast_megabytes", round(folder_megabytes(environment.venv) - before, 1))
    store(options.out, measured)
    if measured["base_megabytes"] > MAX_MEGABYTES:
        raise SystemExit(f"the base install takes more than {MAX_MEGABYTES} MB.")


if __name__ == "__main__":
    main()
