"""No request takes the server down: sizes, times, full queues, strange hosts, mistakes of our own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from centerhash.core.errors import DataError, OutputError
from centerhash.search import Index
from centerhash.serve import Settings, create_app
from centerhash.serve.app import allowed_hosts
from centerhash.serve.limits import Guard
from tests.data.pictures import jpeg_of_scans
from tests.serve.toys import BEARER, TOKEN, call, error_of, multipart, png, png_header, upload
from tests.toys import PATIENCE

SMALL = Settings(max_upload_mb=0.1, token=TOKEN)
BODY, FORM = multipart(png())
OWN = {"host": "localhost:8000"}


@pytest.mark.parametrize(("path", "status"), [("/search", 413), ("/images", 401)])
def test_a_body_without_end_is_cut_while_it_streams(own: Index, path: str, status: int) -> None:
    """Refused at the limit, or for want of the token, and read on only a little for the client to see the answer."""
    sent: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        yield BODY[: BODY.index(b"\r\n\r\n") + 4]
        while True:
            await asyncio.sleep(0)
            sent.append(50_000)
            yield bytes(50_000)

    reply = asyncio.run(call(create_app(own, SMALL), "POST", path, endless(), {"content-type": FORM}))
    assert reply.status_code == status
    assert error_of(reply)
    assert sum(sent) <= 5 * SMALL.max_upload


@pytest.mark.parametrize("length", ["200000", "9" * 30])
def test_a_body_that_is_declared_too_large_is_not_parsed(pictures: Index, length: str) -> None:
    app = create_app(pictures, SMALL)
    reply = asyncio.run(call(app, "POST", "/search", b"x", {"content-length": length}))
    assert reply.status_code == 413
    assert "0.1 MB" in error_of(reply)


def test_the_largest_allowed_upload_passes(pictures: Index) -> None:
    data = png() + bytes(100_000 - len(png()))  # bytes behind a PNG are not looked at
    with TestClient(create_app(pictures, SMALL)) as client:
        assert client.post("/search", files=upload(data)).status_code == 200
        assert client.post("/search", files=upload(data + bytes(20_000))).status_code == 413


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(reader: TestClient) -> None:
    answered = reader.post("/search", files=upload(png_header(50_000, 50_000) + png()[33:]))
    assert answered.status_code == 400
    assert "2,500,000,000 pixels" in error_of(answered)


def test_a_slow_upload_ends(pictures: Index) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield BODY[:50]
        await asyncio.sleep(60)

    app = create_app(pictures, Settings(timeout=0.1))
    reply = asyncio.run(call(app, "POST", "/search", sent(), {"content-type": FORM}))
    assert reply.status_code == 408
    assert "0.1 seconds" in error_of(reply)


@pytest.mark.slow
def test_an_upload_is_decoded_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real network: what takes too long is ended, and the next upload is answered."""
    with Index.create(tmp_path / "own", "coco") as index:
        settings = Settings(token=TOKEN, timeout=PATIENCE, workers=1)
        with TestClient(create_app(index, settings)) as client:
            assert client.post("/images", files=upload(png()), headers=BEARER).status_code == 201
            assert client.post("/search", files=upload(png())).json()["results"][0]["distance"] == 0
            many = client.post("/search", files=upload(jpeg_of_scans(7000, 6000)))
            assert (many.status_code, "6,000 scans" in error_of(many)) == (400, True)
        monkeypatch.setattr("centerhash.serve.index.DECODING", 1e-5)  # Python alone takes longer to start
        with TestClient(create_app(index, settings)) as client:
            for path in ("/search", "/images"):
                late = client.post(path, files=upload(png(1)), headers=BEARER)
                assert (late.status_code, "not decoded within" in error_of(late)) == (400, True)
        assert len(index) == 1
        assert index.search(png())[0].distance == 0


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

    def ask() -> Any:
        return asyncio.ensure_future(call(app, "POST", "/search", BODY, {"content-type": FORM}))

    async def story() -> list[httpx.Response]:
        waiting = [ask(), ask()]
        await asyncio.to_thread(held.begun.acquire)
        others = [
            await ask(),
            await call(app, "GET", "/search?labels=dog"),
            await call(app, "GET", "/metrics"),
        ]
        held.go.set()
        return others + await asyncio.gather(*waiting)

    refused, quick, metrics, *served = asyncio.run(story())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "busy" in error_of(refused)
    assert quick.status_code == 200
    assert 'centerhash_queue{lane="images"} 2.0\n' in metrics.text
    assert [reply.status_code for reply in served] == [500, 500]


@pytest.mark.slow
def test_work_that_takes_too_long_is_given_up(
    pictures: Index, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is answered, but the place stays taken until the work has really ended."""
    monkeypatch.setattr(pictures, "search", held)
    app = create_app(pictures, Settings(workers=1, queue=0, timeout=2))

    async def story() -> list[httpx.Response]:
        late = await call(app, "GET", "/search?labels=dog")
        full = await call(app, "GET", "/search?labels=dog")
        held.go.set()
        while 'centerhash_queue{lane="codes"} 0.0' not in (await call(app, "GET", "/metrics")).text:
            await asyncio.sleep(0.01)
        return [late, full, await call(app, "GET", "/search?labels=dog")]

    late, full, after = asyncio.run(story())
    assert (late.status_code, "2 seconds" in error_of(late)) == (503, True)
    assert (full.status_code, "busy" in error_of(full)) == (503, True)
    assert after.status_code == 500


@pytest.mark.parametrize("kind", [ValueError, OutputError, DataError])
def test_mistakes_of_ours_show_neither_traceback_nor_path(
    own: Index, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise kind("/secret/path")

    monkeypatch.setattr(own, "add_bytes", fail)
    with TestClient(create_app(own, SMALL)) as client:
        answered = client.post("/images", files=upload(png()), headers=BEARER)
        assert answered.status_code == 500
        assert "secret" not in error_of(answered)
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
    assert all(error_of(answer) for answer in answers[3:])


def test_names_of_other_sites_are_refused(pictures: Index) -> None:
    app = create_app(pictures, Settings(hosts=allowed_hosts("127.0.0.1", ("photos.example",))))
    expected = {"localhost:8000": 200, "127.0.0.1": 200, "[::1]:80": 200, "Photos.Example": 200}
    for host, status in {**expected, "evil.example": 400, "localhost.evil.example:80": 400, "": 400}.items():
        reply = asyncio.run(call(app, "GET", "/health", headers={"host": host}))
        assert reply.status_code == status, host
    assert allowed_hosts("0.0.0.0", ()) == ()
    assert allowed_hosts("::1", ()) == ("localhost", "127.0.0.1", "[::1]")


@pytest.mark.parametrize(
    ("headers", "welcome"),
    [
        (OWN, True),
        (OWN | {"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}, True),
        (OWN | {"sec-fetch-site": "none"}, True),
        ({"host": "photos.example", "origin": "https://photos.example"}, True),
        (OWN | {"origin": "https://photos.example"}, True),  # a proxy that changes the Host
        (OWN | {"origin": "https://evil.example"}, False),
        (OWN | {"origin": "http://localhost:3000"}, False),
        (OWN | {"origin": "http://localhost"}, False),
        (OWN | {"origin": "null"}, False),
        (OWN | {"origin": ""}, False),
        (OWN | {"sec-fetch-site": "cross-site"}, False),
        (OWN | {"sec-fetch-site": "same-site"}, False),
    ],
)
def test_pages_of_other_sites_cannot_make_the_server_work(
    own: Index, headers: dict[str, str], welcome: bool
) -> None:
    """Browsers send such uploads without asking; only the answer would be kept from the page."""
    app = create_app(own, Settings(hosts=allowed_hosts("127.0.0.1", ("photos.example",)), token=TOKEN))
    body, form = multipart(png(100))
    for method, path, status in (
        ("POST", "/search", 200),
        ("POST", "/images", 201),
        ("DELETE", "/images/x", 404),
    ):
        reply = asyncio.run(call(app, method, path, body, headers | BEARER | {"content-type": form}))
        assert reply.status_code == (status if welcome else 403), method
    assert asyncio.run(call(app, "GET", "/health", headers=headers)).status_code == 200


@pytest.mark.slow
def test_a_long_answer_may_take_long_as_long_as_it_is_read() -> None:
    """The time is that between two pieces, not that of all of them."""

    async def pieces(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(8):
            await asyncio.sleep(0.7)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(pieces, Settings(timeout=5), CollectorRegistry())
    assert asyncio.run(call(guard, "GET", "/")).content == 8 * b"x"
