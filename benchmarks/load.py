"""The server under load: many clients at once against an index of a million codes, by id and by upload.

    python -m benchmarks.load [--seconds 60] [--clients 50] [--codes 1000000] [--out benchmarks/results/load.json]

One client asks by id first, for a sixth of the time: what a single person waits. Then come all clients at once.
The index is made in a temporary folder: random codes, and some emoji scenes whose pictures are uploaded. Random codes
have no visual code, so a search by id compares semantic codes; one by upload compares both codes. Clients and
server share this machine, so the times are upper bounds. Each client sends its next request as soon as it has its
answer; every second client uploads.
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
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, store
from centerhash.search import Index
from centerhash.training.run import train
from reproduction.scenes import write_scenes

BITS, SCENES, AT_ONCE, SETTLED = 64, 48, 100_000, 0.2
BY_ID, BY_UPLOAD = "by id, semantic code", "by upload, both codes"  # the modes of a row


def make_index(folder: Path, codes: int) -> tuple[Path, list[bytes]]:
    """An index of random codes and emoji scenes, and the scenes' files."""
    scenes = write_scenes(folder / "scenes", SCENES)
    train(scenes, bits=BITS, epochs=2, out=folder / "run", cache=None, device="cpu", progress=False)
    generator = np.random.default_rng(0)
    with Index.create(folder / "index", folder / "run") as index:
        for start in range(0, codes, AT_ONCE):
            count = min(AT_ONCE, codes - start)
            packed = generator.integers(0, 256, (count, BITS // 8), dtype=np.uint8)
            index.store.add(packed, [code_id(start + row) for row in range(count)])
        index.add([scenes / "images"])
    return folder / "index", [file.read_bytes() for file in sorted((scenes / "images").iterdir())]


def code_id(number: int) -> str:
    return f"{number:016x}"


@contextmanager
def serving(index: Path, clients: int) -> Iterator[tuple[int, int, float]]:
    """Start a server with a place for every client; yields its process id, its port and how many seconds it took."""
    started = time.perf_counter()
    words = [sys.executable, "-m", "centerhash", "serve", str(index), "--port", "0", "--queue", str(clients)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^:]+:(\d+)", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start; what it says stands above.")
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


async def one_client(port: int, codes: int, seconds: float) -> dict[str, Any]:
    """A single client that asks by id."""
    tally, generator = Tally(), np.random.default_rng(0)
    await client(port, lambda: id_request(generator, codes), tally, time.perf_counter() + seconds)
    return tally.figures(seconds, BY_ID, 1)


async def load(process: int, port: int, codes: int, pictures: list[bytes], arguments: Any) -> dict[str, Any]:
    """All clients at once for a time; memory once things have settled, and at the end."""
    modes = {"by_id": BY_ID, "by_upload": BY_UPLOAD}
    tallies = {name: Tally() for name in modes}
    end = time.perf_counter() + arguments.seconds
    tasks = []
    for number in range(arguments.clients):
        generator = np.random.default_rng(number)
        if number % 2:
            ask: Callable[[], bytes] = lambda g=generator: upload_request(g, pictures)  # noqa: E731
            tasks.append(asyncio.create_task(client(port, ask, tallies["by_upload"], end)))
        else:
            ask = lambda g=generator: id_request(g, codes)  # noqa: E731
            tasks.append(asyncio.create_task(client(port, ask, tallies["by_id"], end)))
    await asyncio.sleep(SETTLED * arguments.seconds)
    memory = {"settled_mb": megabytes(process)}
    await asyncio.gather(*tasks)
    memory["end_mb"] = megabytes(process)
    rows = {
        name: tally.figures(arguments.seconds, modes[name], arguments.clients)
        for name, tally in tallies.items()
    }
    return rows | {"memory": memory}


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--codes", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index, pictures = make_index(Path(folder), arguments.codes)
        with serving(index, arguments.clients) as (process, port, start):
            measured = {
                "start": {"seconds": start},
                "one_client": asyncio.run(one_client(port, arguments.codes, arguments.seconds / 6)),
                **asyncio.run(load(process, port, arguments.codes, pictures, arguments)),
            }
    for name, figures in measured.items():
        print(f"{name}: {json.dumps(figures)}", flush=True)
    setting = {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "codes": arguments.codes,
        "bits": BITS,
    }
    store(arguments.out, {"setting": setting, **measured})


if __name__ == "__main__":
    main()
