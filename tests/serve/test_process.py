"""A real server under bad clients: malformed uploads, path tricks, slow clients, a stop in the middle of an upload."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.search import Index
from tests.serve.processes import Served, serving
from tests.serve.toys import BEARER, TOKEN, encoded, ids_of, multipart, png, png_header, upload
from tests.toys import PATIENCE, cli, noise_image, refused, wait_until

pytestmark = pytest.mark.slow

KINDS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")
COUNT = 200


def malformed() -> Iterator[bytes]:
    """Two hundred uploads that no honest client sends; the same ones each time."""
    made = [*foreign(), *bombs()]
    yield from made
    generator = np.random.default_rng(20)
    sound = [encoded(noise_image(40, seed), kind) for seed, kind in enumerate(KINDS)]
    for number in range(COUNT - len(made)):
        yield mutated(sound[number % len(sound)], generator)


def mutated(data: bytes, generator: np.random.Generator) -> bytes:
    """A sound picture, damaged in one of five ways, mostly in its header."""
    damaged = bytearray(data)
    way = int(generator.integers(5))
    head = min(len(data), 96)
    if way == 0:  # some bytes of the header are others
        for place in generator.integers(0, head, size=4):
            damaged[place] = int(generator.integers(256))
    elif way == 1:  # cut off
        del damaged[int(generator.integers(1, len(data))) :]
    elif way == 2:  # a number becomes huge
        place = int(generator.integers(2, head - 4))
        damaged[place : place + 4] = b"\xff\xff\xff\x7f"
    elif way == 3:  # a piece is missing
        place = int(generator.integers(2, head))
        del damaged[place : place + int(generator.integers(1, 40))]
    else:  # a piece comes twice
        place = int(generator.integers(2, head))
        damaged[place:place] = damaged[: int(generator.integers(1, 60))]
    return bytes(damaged)


def foreign() -> list[bytes]:
    """What is no picture at all."""
    return [
        b"",
        b"\0",
        b"\n" * 5000,
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        b"%PDF-1.7\n%%EOF",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
        b"PK\x03\x04" + bytes(60),
        b"\x7fELF" + bytes(60),
        b"GIF89a",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        b"BM" + b"\xff" * 60,
        b"P6 99999999 99999999 255 ",
        b"P6 " + b"9" * 5000 + b" 1 255 ",
        b"II*\0\x08\0\0\0\xff\xff" + b"\x01\x01\x04\0\xff\xff\xff\xff\0\0\0\0" * 40,
        bytes(2_000_000),
    ]


def bombs() -> list[bytes]:
    """Small files that stand for huge pictures."""
    data = zlib.compress(bytes(3_000_000))
    body = struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    text = zlib.compress(bytes(50_000_000))
    note = b"zTXt" + b"k\0\0" + text
    chunk = struct.pack(">I", len(note) - 4) + note + struct.pack(">I", zlib.crc32(note))
    frames = io.BytesIO()
    Image.new("P", (8, 8)).save(
        frames, "GIF", save_all=True, append_images=[Image.new("P", (8, 8), n) for n in range(1, 200)]
    )
    return [
        png_header(60_000, 60_000) + body,
        png_header(2**31 - 1, 2**31 - 1) + body,
        png_header(0, 5) + body,
        png_header(9_000, 9_000) + body,
        png_header(8, 8) + chunk + body,
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(200),
        frames.getvalue(),
    ]


def request(head: str, body: bytes = b"", length: int | None = None) -> bytes:
    lines = [
        f"{head} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body) if length is None else length}",
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def answer(connection: socket.socket) -> tuple[int, bytes]:
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    return int(received.split(b" ", 2)[1]), received.partition(b"\r\n\r\n")[2]


def wait_until_closed(server: Served) -> None:
    """Return when the server takes no new clients."""
    with suppress(OSError):
        while True:
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE).close()


def test_malformed_uploads_are_refused_and_the_server_lives(served: Served) -> None:
    sent = 0
    with served.client() as client:
        for number, data in enumerate(malformed()):
            address = "/search" if number % 3 else "/images"
            answered = client.post(address, files=upload(data), headers=BEARER)
            assert answered.status_code in (200, 201, 400, 503), (number, answered.text)
            assert answered.status_code < 400 or list(answered.json()) == ["error"]
            assert "Traceback" not in answered.text
            sent += 1
        assert sent == COUNT
        assert client.post("/search", files=upload(bytes(21_000_000))).status_code == 413
        assert client.post("/search", files=upload(png())).status_code == 200
    assert served.process.poll() is None


def test_malformed_forms_are_refused(served: Served) -> None:
    body, form = multipart(png())
    with served.client() as client:
        for content, kind in [
            (body[:40], form),
            (b"", form),
            (body.replace(b"--edge", b"--else"), form),
            (body.replace(b'name="image"', b""), form),
            (body.replace(b"\r\n", b"\n"), form),
            (body, "multipart/form-data"),
            (body, "multipart/form-data; boundary=" + "x" * 3000),
            (body, form + "; charset=no-such"),
            (b"--edge\r\n" + b"A" * 100_000 + b": b\r\n\r\n", form),
            (body, "text/plain"),
        ]:
            answered = client.post("/search", content=content, headers={"content-type": kind})
            assert answered.status_code in (200, 400, 415), (content[:60], answered.text)
            assert answered.status_code == 200 or list(answered.json()) == ["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/settings.py",
        "/static/..%5c..%5csettings.py",
        "/static/%00",
        "//etc/passwd",
        "/thumbnails/..%2f..%2f..%2fetc%2fpasswd",
        "/thumbnails/%2fetc%2fpasswd",
        "/thumbnails/file:///etc/passwd",
        "/thumbnails/%00%ff",
        "/thumbnails/" + "x" * 5000,
        "/thumbnails/",
        "/images/..",
        "/images//etc/passwd",
        "/images/%2e%2e%2findex.json",
        "/images/%00",
        "/search?id=../../etc/passwd",
        "/search?id=%00",
        "/search?id=%ff%fe",
        "/search?id=" + "%f0%9f%90%95" * 500,
        "/search?id=",
    ],
)
def test_path_tricks_find_nothing(served: Served, path: str) -> None:
    """Sent as they are: an HTTP client would tidy them up."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(request(f"GET {path}"))
        status, body = answer(connection)
    assert status in (400, 404, 405)
    assert list(json.loads(body)) == ["error"]


def test_slow_clients_are_sent_away_and_hold_up_nobody(
    scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    body, form = multipart(png())
    with serving(scene_index(5), tmp_path / "log", "--timeout", "4") as server:
        place = ("127.0.0.1", server.port)
        with (
            socket.create_connection(place, timeout=PATIENCE) as head,
            socket.create_connection(place, timeout=PATIENCE) as half,
            server.client() as client,
        ):
            head.sendall(b"GET /health HTTP/1.1\r\nHost: local")
            start = request("POST /search", length=len(body)).replace(
                b"\r\n\r\n", f"\r\nContent-Type: {form}\r\n\r\n".encode()
            )
            half.sendall(start + body[:100])
            # where the machine has better things to do, the four seconds are over for others too
            wait_until(lambda: client.get("/health").status_code == 200, "the server answers")
            search = functools.partial(client.post, "/search", files=upload(png()))
            wait_until(lambda: search().status_code == 200, "a search is answered")
            status, message = answer(half)
            assert (status, list(json.loads(message))) == (408, ["error"])
            with suppress(ConnectionResetError):  # closed as well
                assert head.recv(1000) == b""


def test_a_stop_lets_a_running_upload_finish_and_loses_nothing(
    scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    body, form = multipart(png(81))
    with serving(scene_index(0), tmp_path / "log") as server:
        with server.client() as client:
            added = [
                client.post("/images", files=upload(png(seed)), headers=BEARER).json()["id"]
                for seed in (79, 80)
            ]
        head = request("POST /images", length=len(body))[:-2]
        head += f"Authorization: Bearer {TOKEN}\r\nContent-Type: {form}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(head + body[:200])
            with server.client() as client:  # an answer to a later request: the upload has begun
                assert client.get("/health").json()["size"] == 2
            server.process.send_signal(signal.SIGTERM)
            wait_until_closed(server)
            connection.sendall(body[200:])
            status, message = answer(connection)
        assert status == 201
        assert server.process.wait(timeout=PATIENCE) == 0
        with Index.open(server.folder) as index:  # the right to write was given back
            assert ids_of(index) == sorted([*added, json.loads(message)["id"]])
            assert index.verify() == []
    assert "Traceback" not in (tmp_path / "log").read_text()


def parts(server: Served) -> list[int]:
    """The processes that a server has started to answer requests."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_of_several_processes_a_dead_one_is_replaced_and_none_outlives_the_first(
    scene_index: Callable[[int], Path], tmp_path: Path, end: signal.Signals
) -> None:
    with serving(scene_index(2), tmp_path / "log", "--read-only", "--processes", "2") as server:
        killed = parts(server)[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(parts(server)) == 2 and killed not in parts(server), "a process in its place")
        with server.client() as client:
            item = client.get("/items").json()["items"][0]["id"]
            assert client.get("/search", params={"id": item}).status_code == 200
        started = parts(server)
        server.process.send_signal(end)
        server.process.wait(timeout=PATIENCE)
        wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in started), "their end")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_several_processes_need_an_index_that_is_only_read(scene_index: Callable[[int], Path]) -> None:
    assert "--processes" in refused(cli("serve", scene_index(0), "--processes", "2"))
