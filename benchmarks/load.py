"""The server under load: many clients at once against an index of a million codes, by id and by upload.

    python -m benchmarks.load [--seconds 15] [--clients 50] [--codes 1000000] [--out benchmarks/results/load.json]

One client at a time first, which is what a single person waits; then all clients by id; then all by upload; then half
of them each, at the same time. All of this for one process, and for two that only read (`--read-only --processes 2`).

The index is made in a temporary folder with the built-in model: random codes, and some emoji scenes whose pictures are
uploaded. Random codes have no visual code, so a search by id compares semantic codes; one by upload compares both.
Clients and server share this machine, so the times are upper bounds. Each client sends its next request as soon as it
has its answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.reporting import arguments_of, store
from centerhash.search import Index
from reproduction.scenes import write_scenes

BITS, SCENES, AT_ONCE, SETTLED = 64, 48, 100_000, 0.2
MODES = {"by_id": "by id, semantic code", "by_upload": "by upload, both codes"}
Request: TypeAlias = Callable[[np.random.Generator], bytes]


def make_index(folder: Path, codes: int) -> tuple[Path, list[bytes]]:
    """An index of random codes and emoji scenes, and the scenes' files."""
    scenes = write_scenes(folder / "scenes", SCENES)
    generator = np.random.default_rng(0)
    with Index.create(folder / "index", "coco") as index:
        for start in range(0, codes, AT_ONCE):
            count = min(AT_ONCE, codes - start)
            packed = generator.integers(0, 256, (count, BITS // 8), dtype=np.uint8)
            index.store.add(packed, [code_id(start + row) for row in range(count)])
        index.add([scenes / "images"])
    return folder / "index", [file.read_bytes() for file in sorted((scenes / "images").iterdir())]


def code_id(number: int) -> str:
    return f"{number:016x}"


@contextmanager
def serving(index: Path, clients: int, *options: str) -> Iterator[tuple[int, int, float]]:
    """Start a server with a place for every client; yields its process id, its port and how many seconds it took."""
    started = time.perf_counter()
    words = [sys.executable, "-m", "centerhash", "serve", str(index), "--port", "0", "--queue", str(clients)]
    process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^:]+:(\d+)", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start; its message stands above.")
        yield process.pid, int(found.group(1)), time.perf_counter() - started
    finally:
        process.terminate()
        process.wait(timeout=60)


@dataclass
class Tally:
    """Milliseconds of the good answers, and what went wrong."""

    milliseconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def figures(self, seconds: float, mode: str, clients: int) -> dict[str, Any]:
        times = np.array(self.milliseconds or [np.nan])
        return {
            "mode": mode,
            "clients": clients,
            "answers": len(self.milliseconds),
            "per_second": len(self.milliseconds) / seconds,
            "p50_ms": float(np.percentile(times, 50)),
            "p99_ms": float(np.percentile(times, 99)),
            "largest_ms": float(times.max()),
            "errors": len(self.errors),
            "first_error": self.errors[0] if self.errors else None,
        }


async def client(port: int, request: Callable[[], bytes], tally: Tally, end: float) -> None:
    """Ask over one connection, again and again until `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (started := time.perf_counter()) < end:
        try:
            writer.write(request())
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length.group(1)) if length else 0)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.errors.append(repr(error))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        if head.startswith(b"HTTP/1.1 200 "):
            tally.milliseconds.append(1000 * (time.perf_counter() - started))
        else:
            tally.errors.append(f"{head.splitlines()[0]!r} {body[:200]!r}")
    writer.close()


def id_request(generator: np.random.Generator, codes: int) -> bytes:
    id = code_id(int(generator.integers(codes)))
    return f"GET /search?id={id}&k=10 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def upload_request(generator: np.random.Generator, pictures: list[bytes]) -> bytes:
    picture = pictures[int(generator.integers(len(pictures)))]
    body = (
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        + picture
        + b"\r\n--x--\r\n"
    )
    head = (
        "POST /search?k=10 HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def megabytes(process: int) -> dict[str, float]:
    """Memory of a process: all that is resident, and what of it is its own rather than a mapped file."""
    text = Path(f"/proc/{process}/status").read_text()
    found = {name: re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "RssAnon")}
    named = {"VmRSS": "resident", "RssAnon": "own"}
    return {named[name]: int(match.group(1)) / 1000 for name, match in found.items() if match}


async def load(
    port: int, asked: dict[str, int], requests: dict[str, Request], seconds: float
) -> dict[str, Any]:
    """Clients at once for a time, so many of each mode."""
    tallies, end = {mode: Tally() for mode in asked}, time.perf_counter() + seconds

    async def one(mode: str, number: int) -> None:
        generator = np.random.default_rng(number)
        await client(port, lambda: requests[mode](generator), tallies[mode], end)

    await asyncio.gather(*(one(mode, number) for mode, count in asked.items() for number in range(count)))
    return {mode: tally.figures(seconds, MODES[mode], asked[mode]) for mode, tally in tallies.items()}


def measure(index: Path, pictures: list[bytes], arguments: Any, processes: int) -> dict[str, Any]:
    """All loads against one server, and the memory of its first process that answers."""
    requests: dict[str, Request] = {
        "by_id": lambda generator: id_request(generator, arguments.codes),
        "by_upload": lambda generator: upload_request(generator, pictures),
    }
    many, half = arguments.clients, arguments.clients // 2
    loads = {
        "one_client": [{"by_id": 1}, {"by_upload": 1}],
        "all_clients": [{"by_id": many}, {"by_upload": many}],
        "both_at_once": [{"by_id": half, "by_upload": many - half}],
    }
    options = ("--read-only", "--processes", str(processes)) if processes > 1 else ()
    with serving(index, many, *options) as (process, port, start):
        found: dict[str, Any] = {"start_seconds": start}
        for name, rounds in loads.items():
            found[name] = {}
            for asked in rounds:
                found[name] |= asyncio.run(load(port, asked, requests, arguments.seconds))
        found["memory_mb"] = [megabytes(one) for one in answering(process, processes)]
    return found


def answering(process: int, processes: int) -> list[int]:
    """The processes that answer requests."""
    if processes == 1:
        return [process]
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--codes", type=int, default=1_000_000)
    arguments = parser.parse_args()
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        index, pictures = make_index(Path(folder), arguments.codes)
        for processes, name in ((1, "one_process"), (2, "two_processes")):
            measured[name] = measure(index, pictures, arguments, processes)
            print(f"{name}: {json.dumps(measured[name])}", flush=True)
    setting = {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "codes": arguments.codes,
        "bits": BITS,
    }
    store(arguments.out, {"setting": setting, **measured})


if __name__ == "__main__":
    main()
