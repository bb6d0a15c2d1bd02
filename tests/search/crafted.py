"""Indexes that somebody has crafted: their checksums are right and their contents are wrong.

`cases` lists them, `tried` makes each out of a sound index in a process with limited memory and uses it in every way. A
case is "harmless" if an index may be like that; of any other, `verify` has to report something.

    python -m tests.search.crafted SOUND PLACE     # tries the cases whose names come by standard input, one per line
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from centerhash.core.errors import CenterhashError, DataError, OutputError
from centerhash.search import Index, verify_index
from tests.search.crafted_databases import column_cases, meaning_cases, schema_cases
from tests.search.crafted_files import file_cases, place_cases
from tests.search.sound_index import Case
from tests.toys import noise_image, process_environment

LARGE = 300 * 2**20  # bytes that no case may take
ADDRESSES = 2**30  # bytes of address space that a case may add to those of the process
SECONDS = 30  # of CPU time, after which a case hangs; ten times as many if it waits
BAD = ("traceback", "large", "hangs", "whole", "contradicts")


def cases() -> list[Case]:
    """All crafted indexes."""
    found = [*column_cases(), *meaning_cases(), *schema_cases(), *file_cases(), *place_cases()]
    assert len({case.name for case in found}) == len(found)
    return found


def uses(folder: Path, out: Path) -> dict[str, Callable[[], object]]:
    """Everything that a user does with an index."""
    photo = noise_image(32, seed=3)

    def read(use: Callable[[Index], object]) -> Callable[[], object]:
        def run() -> object:
            with Index.open(folder, read_only=True, engine="onnx") as index:
                return use(index)

        return run

    def write(use: Callable[[Index], object]) -> Callable[[], object]:
        def run() -> object:
            with Index.open(folder, engine="onnx") as index:
                return use(index)

        return run

    first = f"{1:016x}"
    return {
        "size": read(len),
        "items": read(lambda index: list(index.items())),
        "labels": read(lambda index: (index.labels(), index.folders())),
        "newest": read(lambda index: index.newest(0, 9)),
        "filtered": read(lambda index: index.newest(0, 9, having="bee", under="/photos")),
        "get": read(lambda index: index.get(first)),
        "by id": read(lambda index: index.search(id=first, k=50)),
        "by labels": read(lambda index: index.search(labels={"cat": 2, "dog": 1}, k=50).to_dict()),
        "by image": read(lambda index: index.search(photo, k=50)),
        "by visual code": read(
            lambda index: index.search(photo, by="visual", having="cat", without="dog", k=50)
        ),
        "missing": read(lambda index: index.missing()),
        "info": read(lambda index: index.info()),
        "images": read(lambda index: [index.image(item.id) for item in index.items()]),
        "duplicates": read(lambda index: index.duplicates(progress=False)),
        "find": read(lambda index: index.find("/photos/1")),
        "export": read(lambda index: index.export(out, "npz", progress=False)),
        "add": write(lambda index: index.add_bytes(_png(9))),
        "add codes": write(
            lambda index: index.store.add(
                np.zeros((1, 2), np.uint8), ["added"], [["cat"]], ["/photos/1/added.jpg"]
            )
        ),
        "remove": write(lambda index: index.remove([first, "/photos/2"])),
        "compact": write(lambda index: index.compact()),
    }


def _png(seed: int) -> bytes:
    import io

    stream = io.BytesIO()
    noise_image(24, seed).save(stream, "PNG")
    return stream.getvalue()


def outcome(case: Case, sound: Path, place: Path, limit: int) -> str:
    """What becomes of one crafted index: "right", "refused", or what must not happen.

    `limit` is the address space in bytes while it is used; to craft it may take more.
    """
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    folder, out = place / "crafted", place / "out.npz"
    shutil.copytree(sound, folder, symlinks=True)
    try:
        case.craft(folder)
    except Exception as error:
        return f"not crafted: {type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited))
    refusals, problems = {}, list[str]()
    before = _peak(reset=True)
    try:
        problems = verify_index(folder)
    except CenterhashError as error:
        problems = [str(error)]
    except Exception as error:
        return f"traceback in verify: {type(error).__name__}: {error!s:.120}"
    for name, use in uses(folder, out).items():
        try:
            use()
        except CenterhashError as error:
            if isinstance(error, DataError | OutputError):
                refusals[name] = str(error)
            if not str(error).strip() or "\n" in str(error) or len(str(error)) > 5000:
                return f"traceback in {name}: not one sentence: {error!s:.120}"
        except Exception as error:
            return f"traceback in {name}: {type(error).__name__}: {error!s:.120}"
    if _peak() - before > LARGE:
        return f"large: {(_peak() - before) / 2**20:.0f} MB"
    if not case.harmless and not problems:
        return "whole: verify has found nothing"
    if not problems and refusals and not case.name.startswith("network: "):
        return f"contradicts: verify has found nothing, but {refusals}"[:300]
    if not problems and (left := verify_index(folder)):
        return f"contradicts: verify has found something only after changes: {left[0]}"
    return "refused" if problems or refusals else "right"


def _peak(reset: bool = False) -> int:
    """The largest resident size of this process since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def _removed(place: Path) -> None:
    shutil.rmtree(place / "crafted", ignore_errors=True)
    (place / "out.npz").unlink(missing_ok=True)


def tried(names: Sequence[str], sound: Path, place: Path) -> Iterator[tuple[str, str]]:
    """Try cases in processes with limited memory; one that ends its process is counted, and the rest goes on."""
    left = list(names)
    while left:
        words = [sys.executable, "-m", "tests.search.crafted", str(sound), str(place)]
        with (
            tempfile.TemporaryFile("w+") as asked,
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                words,
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=process_environment(),
            ) as process,
        ):
            asked.write("\n".join(left))
            asked.seek(0)
            assert process.stdout is not None
            for line in process.stdout:
                name, result = json.loads(line)
                left.remove(name)
                yield name, result
            process.wait()
            errors.seek(0)
            words_of_process = errors.read()[-300:]
        if left:
            _removed(place)
            yield left.pop(0), f"hangs, or ended its process: {process.returncode} {words_of_process}"


def main() -> None:
    """Try the cases whose names come by standard input."""
    sound, place = map(Path, sys.argv[1:])
    known = {case.name: case for case in cases()}
    shutil.copytree(sound, place / "warm")
    for use in uses(place / "warm", place / "out.npz").values():  # what is loaded once is no memory of a case
        use()
    shutil.rmtree(place / "warm")
    (place / "out.npz").unlink()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESSES
    for name in sys.stdin.read().splitlines():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        print(json.dumps([name, outcome(known[name], sound, place, limit)]), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        _removed(place)


if __name__ == "__main__":
    main()
