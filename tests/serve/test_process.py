"""A real server under bad clients: malformed uploads, path tricks, slow clients, a stop in the middle of an upload."""

from __future__ import annotations

import functools
import json
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from centerhash.search import Index
from tests.serve.fuzz import COUNT, malformed
from tests.serve.processes import Served, serving
from tests.serve.toys import BEARER, TOKEN, ids_of, multipart, png, upload
from tests.toys import PATIENCE, wait_until

pytestmark = pytest.mark.slow


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
        "/images/..",
    ],
)
def test_path_tricks_find_nothing(served: Served, path: str) -> None:
    """Sent as they are: an HTTP client would tidy them up."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(request(f"GET {path}"))
        status, body = answer(connection)
    assert status in (404, 405)
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
