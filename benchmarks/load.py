"""Measure the server under load: many clients at once, an index of a million codes, queries by id and by upload.

    python -m benchmarks.load [--seconds 15] [--clients 50] [--codes 1000000] [--out benchmarks/results/load.json]

One client at a time runs first, for the time that a single user waits. Then all clients search by id, then all by upload,
then half of them by id and half by upload.

The index of the built-in model has random codes and some drawn pictures, which are uploaded. Random codes have no
general code, so a search by id compares semantic codes; one by upload compares both. Clients and server share the
machine, so the times are upper bounds. Each client sends its next request as soon as it has its response.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, megabytes, serving, store
from centerhash.photos import PhotoIndex
from tests.shapes import write_shapes

BITS, PICTURES = 64, 48
Requests = dict[str, Callable[[np.random.Generator], bytes]]


def make_index(folder: Path, codes: int) -> tuple[Path, list[bytes]]:
    """Create an index of random codes and pictures; return its folder and the contents of the pictures."""
    pictures = write_shapes(folder / "pictures", PICTURES, size=224) / "images"
    generator = np.random.default_rng(0)
    with PhotoIndex.create(folder / "index", "coco") as photos:
        packed = generator.integers(0, 256, (codes, BITS // 8), dtype=np.uint8)
        photos.index.add(codes=packed, ids=[f"{row:016x}" for row in range(codes)])
        photos.add(pictures, progress=False)
    return folder / "index", [file.read_bytes() for file in sorted(pictures.iterdir())]


@dataclass
class Tally:
    """Milliseconds of the responses, and the errors."""

    milliseconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def figures(self, seconds: float, clients: int) -> dict[str, Any]:
        """Summarize the responses to so many clients."""
        times = np.array(self.milliseconds or [np.nan])
        return {
            "clients": clients,
            "answers": len(self.milliseconds),
            "per_second": len(self.milliseconds) / seconds,
            "p50_ms": float(np.percentile(times, 50)),
            "p99_ms": float(np.percentile(times, 99)),
            "errors": len(self.errors),
            "first_error": self.errors[0] if self.errors else None,
        }


async def client(port: int, request: Callable[[], bytes], tally: Tally, end: float) -> None:
    """Send requests over one connection, again and again until `end`."""
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


def upload(picture: bytes) -> bytes:
    """Return the request that searches by a picture."""
    part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    body = part + picture + b"\r\n--x--\r\n"
    head = (
        "POST /search?k=10 HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def load(port: int, clients: dict[str, int], requests: Requests, seconds: float) -> dict[str, Any]:
    """Run so many clients of each kind of request at once for some seconds."""
    tallies, end = {kind: Tally() for kind in clients}, time.perf_counter() + seconds

    async def run(kind: str, number: int) -> None:
        generator = np.random.default_rng(number)
        await client(port, lambda: requests[kind](generator), tallies[kind], end)

    await asyncio.gather(*(run(kind, number) for kind, count in clients.items() for number in range(count)))
    return {kind: tally.figures(seconds, clients[kind]) for kind, tally in tallies.items()}


def main() -> None:
    """Measure, print and store."""
    parser = arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--codes", type=int, default=1_000_000)
    options = parser.parse_args()
    every, half = options.clients, options.clients // 2
    loads = {
        "one_client": [{"by_id": 1}, {"by_upload": 1}],
        "all_clients": [{"by_id": every}, {"by_upload": every}],
        "both_at_once": [{"by_id": half, "by_upload": every - half}],
    }
    with tempfile.TemporaryDirectory() as folder:
        index, pictures = make_index(Path(folder), options.codes)
        path = "GET /search?id={:016x}&k=10 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        requests: Requests = {
            "by_id": lambda generator: path.format(generator.integers(options.codes)).encode(),
            "by_upload": lambda generator: upload(pictures[generator.integers(len(pictures))]),
        }
        words = [sys.executable, "-m", "centerhash", "serve", str(index)]
        accept_all = {"CENTERHASH_UPLOADS": str(every), "CENTERHASH_QUEUE": str(every)}
        started = time.perf_counter()
        with serving(words, env=os.environ | accept_all) as (address, process):
            measured: dict[str, Any] = {"start_seconds": time.perf_counter() - started}
            port = int(address.rpartition(":")[2])
            for name, rounds in loads.items():
                measured[name] = {}
                for clients in rounds:
                    measured[name] |= asyncio.run(load(port, clients, requests, options.seconds))
            measured["memory_mb"] = megabytes(process)
    print(json.dumps(measured), flush=True)
    setting = {name: getattr(options, name) for name in ("clients", "seconds", "codes")}
    store(options.out, {"setting": {**setting, "bits": BITS}, **measured})


if __name__ == "__main__":
    main()
