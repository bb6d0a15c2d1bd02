"""Options of all benchmarks, and their results as json with facts about the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def commit() -> str | None:
    """Return the commit that is measured, marked if the code differs from it; None outside of a clone."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git(
            "status", "--porcelain", "--", "src", "benchmarks/*.py", "pyproject.toml", "constraints.txt"
        )
        return git("rev-parse", "HEAD")[:10] + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def arguments_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures as json")
    return parser


@contextmanager
def serving(words: Sequence[str], **options: Any) -> Iterator[tuple[str, int]]:
    """Start a server by its command line; yield its address and process id once clients may connect, then stop it."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*words, "--port", "0"], **pipes, **options) as server:
        printed = ""
        for line in server.stdout or ():
            printed += line
            if match := re.search(r"http://[\w.]+:\d+", line):
                try:
                    yield match[0], server.pid
                finally:
                    server.terminate()
                return
        raise SystemExit(printed)


def megabytes(process: int) -> dict[str, float]:
    """Return the memory of a process: its resident memory, and that without mapped files."""
    status = Path(f"/proc/{process}/status").read_text()
    fields = {"resident": "VmRSS", "own": "RssAnon"}
    matches = {name: re.search(rf"{field}:\s+(\d+) kB", status) for name, field in fields.items()}
    return {name: int(match[1]) / 1000 for name, match in matches.items() if match}


def show(name: str, figures: Mapping[str, float]) -> None:
    """Print the figures of one measurement in a line."""
    print(f"{name}: {', '.join(f'{key} {value:.3g}' for key, value in figures.items())}", flush=True)


def store(out: Path | None, measured: Mapping[str, Any], *, threads: int | None = None) -> None:
    """Write the results with facts about the machine, the versions and the commit; nothing if `out` is None."""
    if out is None:
        return
    machine: dict[str, Any] = {"processor": platform.machine(), "cores": os.cpu_count()}
    if hasattr(os, "getloadavg"):
        machine["load"] = round(os.getloadavg()[1], 1)  # mean of five minutes
    if threads is not None:
        machine["threads"] = threads
    # This imports torch, which child processes do not need.
    from centerhash.training.run_folder import versions

    facts = {"machine": machine, "versions": versions(), "commit": commit()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts | dict(measured), indent=2) + "\n")
