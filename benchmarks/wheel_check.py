"""`make wheel-check`: the wheel in an empty venv, with base dependencies alone, runs the first commands of the README.

Takes minutes and needs an index of packages, so it is no test: the workflow runs it. The third command serves a page,
for which the extra `serve` is installed after the size was taken.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

ROOT = Path(__file__).parent.parent


def first_commands(readme: str) -> list[list[str]]:
    """The three commands of the README's first block, word by word."""
    block = re.search(r"```console\n(centerhash .*?)```", readme, flags=re.DOTALL)
    if block is None:
        raise SystemExit("README.md has no block of commands.")
    return [shlex.split(line) for line in block[1].splitlines()][:3]


def megabytes(folder: Path) -> float:
    """What the files in a folder take, links not counted twice."""
    return (
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        / 1e6
    )


def main() -> None:
    from reproduction.scenes import write_scenes

    with TemporaryDirectory() as name:
        place = Path(name)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", name, str(ROOT)])
        (wheel,) = place.glob("*.whl")
        venv.create(place / "venv", with_pip=True)
        scripts = place / "venv" / "bin"
        pip = [
            str(scripts / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            str(ROOT / "constraints.txt"),
        ]
        before = megabytes(place / "venv")
        run([*pip, str(wheel)])
        print(f"wheel: {megabytes(place) - megabytes(place / 'venv'):.1f} MB")
        print(f"base dependencies, installed: {megabytes(place / 'venv') - before:,.0f} MB", flush=True)
        write_scenes(place / "desk" / "photos", 12, size=96)
        *commands, serve = first_commands((ROOT / "README.md").read_text())
        for words in commands:
            run([str(scripts / words[0]), *words[1:]], place / "desk")
        run([*pip, f"{wheel}[serve]"])
        answers([str(scripts / serve[0]), *serve[1:], "--port", "0"], place / "desk")
    print("the first three commands of the README run")


def run(words: list[str], folder: Path = ROOT) -> None:
    """Run a command without what this Python would lend it; end with its output where it fails."""
    done = subprocess.run(words, cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def answers(words: list[str], folder: Path) -> None:
    """Start a server, wait until it says where it is, ask it once, and stop it."""
    with subprocess.Popen(
        words, cwd=folder, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        said = ""
        for line in server.stdout or ():
            said += line
            found = re.search(r"http://[\w.]+:\d+", line)
            if found:
                with urlopen(f"{found[0]}/health", timeout=60) as answer:
                    said += answer.read().decode()
                server.terminate()
                return
        raise SystemExit(f"{shlex.join(words)}\n{said}")


if __name__ == "__main__":
    main()
