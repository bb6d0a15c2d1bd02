"""Commands in which one call of the operating system fails, or is the last one before a kill; by strace."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from centerhash.search import Index, verify_index
from centerhash.search.database import FILES
from tests.search.sound_index import sound_index
from tests.toys import PATIENCE, command, process_environment, write_images

MISSING = "strace is missing: install it (apt-get install strace)"
CALLS = (
    *(
        "openat",
        "read",
        "pread64",
        "write",
        "pwrite64",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "lseek",
        "mmap",
    ),
    *("flock", "fcntl", "rename", "unlink", "rmdir", "mkdir", "getdents64", "newfstatat", "fstat", "close"),
)
ENDS = ("error=EIO", "error=ENOSPC", "signal=KILL")
NEW = [f"{number:016x}" for number in range(900, 920)]
GONE = f"{5:016x}"


@dataclass(frozen=True)
class Place:
    """A sound index, and what the commands need besides."""

    sound: Path
    photos: Path
    codes: Path


def prepare(place: Path) -> Place:
    """Make the index, four photos and a code file."""
    sound = sound_index(place / "sound")
    write_images(place / "photos", 4, 32)
    with Index.create(place / "other", place / "sound-model") as other:
        codes = np.random.default_rng(0).integers(0, 256, (len(NEW), 2), dtype=np.uint8)
        other.store.add(codes, NEW, [["cat"]] * len(NEW))
        other.export(place / "codes.npz", "npz", progress=False)
    return Place(sound, place / "photos", place / "codes.npz")


def commands(place: Place, index: Path) -> dict[str, list[str | Path]]:
    """The command lines that are tried."""
    return {
        "add": ["index", "add", index, place.photos, "--engine", "onnx"],
        "remove": ["index", "remove", index, GONE],
        "compact": ["index", "compact", index],
        "import": ["index", "import", index, place.codes],
        "search": ["search", index, "--labels", "cat, dog"],
        "verify": ["index", "verify", index],
    }


def traced(
    words: list[str | Path], index: Path, log: Path, inject: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line under strace, which looks only at the files of the index."""
    names = ("", "index.json", "model", "model/model.onnx", "images", *FILES)
    paths = [word for name in names for word in ("-P", str(index / name).rstrip("/"))]
    how = ["-e", f"trace={','.join(CALLS)}", *(["-e", f"inject={inject}"] if inject else [])]
    return subprocess.run(
        ["strace", "-f", "-o", str(log), *how, *paths, *command(words)],
        capture_output=True,
        text=True,
        env=process_environment(),
        timeout=PATIENCE,
        check=False,
    )


def calls_of(log: Path) -> Counter[str]:
    """How often each call was made."""
    return Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(errors="replace"), re.MULTILINE))


def injections(place: Place, work: Path, each: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield commands with what to inject: up to `each` moments of every call that the command makes, for every end."""
    chance, index = random.Random(seed), work / "index"
    for name, words in commands(place, index).items():
        shutil.copytree(place.sound, index)
        done = traced(words, index, work / "log")
        assert done.returncode == 0, done.stderr
        for call, count in sorted(calls_of(work / "log").items()):
            for end in ENDS:
                for moment in sorted(chance.sample(range(1, count + 1), min(each, count))):
                    yield name, f"{call}:{end}:when={moment}"
        shutil.rmtree(index)


def failed(place: Place, work: Path, name: str, inject: str) -> str:
    """Run a command with one injection; return what is wrong afterwards, or nothing."""
    index = shutil.copytree(place.sound, work / "index")
    try:
        done = traced(commands(place, index)[name], index, work / "log", inject)
        killed = "KILL" in inject
        allowed = {0, 2, -9, 137} if killed else {0, 1, 2} if name == "verify" else {0, 2}
        if done.returncode not in allowed or "Traceback" in done.stderr:
            return f"code {done.returncode}: {done.stderr[-600:]}"
        if done.returncode in (1, 2) and len(done.stderr.strip().splitlines()) != 1:
            return f"not one sentence: {done.stderr[-600:]}"
        if problems := verify_index(index):
            return f"damaged afterwards: {problems[0]}"
        before, after = (_ids(folder) for folder in (place.sound, index))
        return _lost(name, before, after, acknowledged=done.returncode == 0) or _unusable(index)
    finally:
        shutil.rmtree(index)


def _ids(folder: Path) -> set[str]:
    with Index.open(folder, read_only=True) as index:
        return {item.id for item in index.items()}


def _lost(name: str, before: set[str], after: set[str], *, acknowledged: bool) -> str:
    more, less = after - before, before - after
    sizes = {"add": 4, "import": len(NEW)}
    if len(more) not in ({sizes.get(name, 0)} if acknowledged else {0, sizes.get(name, 0)}):
        return f"{len(more)} items are new"
    if less != ({GONE} if name == "remove" else set()) and (acknowledged or less):
        return f"the items {less} are gone"
    return ""


def _unusable(folder: Path) -> str:
    with Index.open(folder) as index:
        index.store.add(np.zeros((1, 2), np.uint8), ["afterwards"])
    return "; ".join(verify_index(folder))
