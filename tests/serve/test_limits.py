"""No request takes the server down: sizes, times, full queues, strange hosts, mistakes of our own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from centerhash.core.errors import DataError, OutputError
from centerhash.search import Index
from centerhash.serve import Settings, create_app
from centerhash.serve.app import allowed_hosts
from centerhash.serve.limits import Guard
from tests.data.pictures import jpeg_of_scans
from tests.serve.toys import BEARER, TOKEN, Reply, call, multipart, png, png_header, upload
from tests.toys import PATIENCE

SMALL = Settings(max_upload_mb=0.1, token=TOKEN)


async def endless() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield bytes(50_000)


def test_a_body_is_cut_while_it_streams(pictures: Index) -> None:
    """No Content-Length, no end: refused at the limit, and read on only a little for the client to see it."""
    body, form = multipart(b"")

    async def sent() -> AsyncIterator[bytes]:
        yield body[: body.index(b"\r\n\r\n") + 4]
        async for piece in endless():
            yield piece

    reply = asyncio.run(call(create_app(pictures, SMALL), "POST", "/search", sent(), {"content-type": form}))
    assert (reply.status, "0.1 MB" in reply.error) == (413, True)
    assert reply.read <= 5 * SMALL.max_upload


@pytest.mark.parametrize("length", ["200000", "9" * 30])
def test_a_body_that_is_declared_too_large_is_not_parsed(pictures: Index, length: str) -> None:
    app = create_app(pictures, SMALL)
    reply = asyncio.run(call(app, "POST", "/search", [b"x"], {"content-length": length}))
    assert reply.status == 413


def test_the_largest_allowed_upload_passes(pictures: Index) -> None:
    data = png() + bytes(100_000 - len(png()))  # bytes behind a PNG are not looked at
    with TestClient(create_app(pictures, SMALL)) as client:
        assert client.post("/search", files=upload(data)).status_code == 200
        assert client.post("/search", files=upload(data + bytes(20_000))).status_code == 413


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(reader: TestClient) -> None:
    answered = reader.post("/search", files=upload(png_header(50_000, 50_000) + png()[33:]))
    assert answered.status_code == 400
    assert "2,500,000,000 pixels" in answered.json()["error"]


def test_a_slow_upload_ends(pictures: Index) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield multipart(png())[0][:50]
        await asyncio.sleep(60)
        yield b""

    app = create_app(pictures, Settings(timeout=0.1))
    reply = asyncio.run(call(app, "POST", "/search", sent(), {"content-type": multipart(b"")[1]}))
    assert (reply.status, "0.1 seconds" in reply.error) == (408, True)


@pytest.mark.slow
def test_an_upload_is_decoded_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real network: what takes too long is ended, and the next upload is answered."""
    with Index.create(tmp_path / "own", "coco") as index:
        settings = Settings(token=TOKEN, timeout=PATIENCE, workers=1)
        with TestClient(create_app(index, settings)) as client:
            assert client.post("/images", files=upload(png()), headers=BEARER).status_code == 201
            assert client.post("/search", files=upload(png())).json()["results"][0]["distance"] == 0
            many = client.post("/search", files=upload(jpeg_of_scans(7000, 6000)))
            assert (many.status_code, "6,000 scans" in many.json()["error"]) == (400, True)
        monkeypatch.setattr("centerhash.serve.index.DECODING", 1e-5)  # Python alone takes longer to start
        with TestClient(create_app(index, settings)) as client:
            for path in ("/search", "/images"):
                late = client.post(path, files=upload(png(1)), headers=BEARER)
                assert (late.status_code, "not decoded within" in late.json()["error"]) == (400, True)
        assert len(index) == 1
        assert index.search(png()).to_dict()["results"][0]["distance"] == 0


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self.begun.release()
        assert self.go.wait(PATIENCE)
        raise DataError("let go")


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.go.set()


def test_a_full_queue_answers_at_once(pictures: Index, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, one place to wait: the third request is sent away, and quick work has its own lane."""
    search = pictures.search
    monkeypatch.setattr(
        pictures, "search", lambda image=None, **query: search(**query) if image is None else held()
    )
    app = create_app(pictures, Settings(workers=1, queue=1))
    body, form = multipart(png())

    def ask() -> Any:
        return asyncio.ensure_future(call(app, "POST", "/search", [body], {"content-type": form}))

    async def story() -> tuple[Reply, Reply, Reply, list[Reply]]:
        waiting = [ask(), ask()]
        await asyncio.to_thread(held.begun.acquire)
        refused, quick = await ask(), await call(app, "GET", "/search?labels=dog")
        metrics = await call(app, "GET", "/metrics")
        held.go.set()
        return refused, quick, metrics, await asyncio.gather(*waiting)

    refused, quick, metrics, served = asyncio.run(story())
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.error
    assert quick.status == 200
    assert b'centerhash_queue{lane="images"} 2.0\n' in metrics.body
    assert [reply.status for reply in served] == [500, 500]


@pytest.mark.slow
def test_work_that_takes_too_long_is_given_up(
    pictures: Index, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is answered, but the place stays taken until the work has really ended."""
    monkeypatch.setattr(pictures, "search", held)
    app = create_app(pictures, Settings(workers=1, queue=0, timeout=2))

    async def story() -> list[Reply]:
        late = await call(app, "GET", "/search?labels=dog")
        full = await call(app, "GET", "/search?labels=dog")
        held.go.set()
        while b'centerhash_queue{lane="codes"} 0.0' not in (await call(app, "GET", "/metrics")).body:
            await asyncio.sleep(0.01)
        return [late, full, await call(app, "GET", "/search?labels=dog")]

    late, full, after = asyncio.run(story())
    assert (late.status, "2 seconds" in late.error) == (503, True)
    assert (full.status, "busy" in full.error) == (503, True)
    assert after.status == 500


@pytest.mark.parametrize(
    "error", [ValueError("/secret/path"), OutputError("/secret/path"), DataError("/secret/path")]
)
def test_mistakes_of_ours_show_neither_traceback_nor_path(
    own: Index, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr(own, "add_bytes", fail)
    with TestClient(create_app(own, SMALL)) as client:
        answered = client.post("/images", files=upload(png()), headers=BEARER)
        assert (answered.status_code, list(answered.json())) == (500, ["error"])
        assert "secret" not in answered.text
        assert client.get("/health").status_code == 200


def test_every_answer_has_the_headers_that_keep_browsers_safe(reader: TestClient) -> None:
    answers = [reader.get(path) for path in ("/", "/health", "/static/app.js", "/nowhere", "/search")]
    answers.append(reader.put("/search"))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 400, 405]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    assert all(list(answer.json()) == ["error"] for answer in answers[3:])


def test_names_of_other_sites_are_refused(pictures: Index) -> None:
    hosts = allowed_hosts("127.0.0.1", ("photos.example",))
    app = create_app(pictures, Settings(hosts=hosts))
    expected = {"localhost:8000": 200, "127.0.0.1": 200, "[::1]:80": 200, "Photos.Example": 200}
    for host, status in {**expected, "evil.example": 400, "localhost.evil.example:80": 400, "": 400}.items():
        reply = asyncio.run(call(app, "GET", "/health", headers={"host": host}))
        assert reply.status == status, host
    assert allowed_hosts("0.0.0.0", ()) == ()
    assert allowed_hosts("::1", ()) == ("localhost", "127.0.0.1", "[::1]")


OWN = {"host": "localhost:8000"}


def test_pages_of_other_sites_cannot_make_the_server_work(own: Index) -> None:
    """Browsers send such uploads without asking; only the answer would be kept from the page."""
    app = create_app(own, Settings(hosts=allowed_hosts("127.0.0.1", ("photos.example",)), token=TOKEN))
    welcome: list[dict[str, str]] = [
        OWN,
        OWN | {"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"},
        OWN | {"sec-fetch-site": "none"},
        {"host": "photos.example", "origin": "https://photos.example"},
        OWN | {"origin": "https://photos.example"},  # a proxy that changes the Host
    ]
    origins = ("https://evil.example", "http://localhost:3000", "http://localhost", "null", "")
    foreign = [OWN | {"origin": origin} for origin in origins]
    foreign += [OWN | {"sec-fetch-site": site} for site in ("cross-site", "same-site")]
    for number, headers in enumerate(welcome + foreign):
        body, form = multipart(png(100 + number))
        for method, path, status in (
            ("POST", "/search", 200),
            ("POST", "/images", 201),
            ("DELETE", "/images/x", 404),
        ):
            sent = headers | {"content-type": form, "authorization": f"Bearer {TOKEN}"}
            reply = asyncio.run(call(app, method, path, [body], sent))
            assert reply.status == (403 if headers in foreign else status), (method, headers)
        assert asyncio.run(call(app, "GET", "/health", headers=headers)).status == 200


@pytest.mark.slow
def test_a_long_answer_may_take_long_as_long_as_it_is_read() -> None:
    """The time is that between two pieces, not that of all of them."""
    guard = Guard(pieces_of_an_answer, Settings(timeout=5), CollectorRegistry())
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard({"type": "http", "method": "GET", "path": "/", "headers": []}, nothing, send))
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 9


async def nothing() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def pieces_of_an_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(8):
        await asyncio.sleep(0.7)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/..%2f..%2fsettings.py",
        "/thumbnails/../../etc/passwd",
        "/thumbnails//etc/passwd",
        "/thumbnails/%00",
        "/thumbnails/" + "x" * 5000,
        "/thumbnails/",
        "/search?id=../../etc/passwd",
        "/search?id=%00",
        "/search?id=%ff%fe",
        "/search?id=" + "%f0%9f%90%95" * 500,
        "/search?id=",
    ],
)
def test_no_path_comes_from_a_request(reader: TestClient, path: str) -> None:
    answered = reader.get(path)
    assert answered.status_code in (404, 400)
    assert list(answered.json()) == ["error"]
