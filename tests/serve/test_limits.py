"""No request takes the server down, and no other site reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.photos import PhotoIndex
from centerhash.serve import Settings, create_app
from centerhash.serve.limits import Busy, WorkerPool
from tests.serve.toys import PASSWORD, call, encoded, error_of, multipart, png_header, upload

SMALL = Settings(max_upload_mb=0.05)


@contextmanager
def opened(photos: PhotoIndex, settings: Settings, **options: Any) -> Iterator[TestClient]:
    with TestClient(create_app(photos, settings), **{"base_url": "http://localhost", **options}) as client:
        yield client


@pytest.mark.parametrize("length", ["70000", "99999999999999999999"])
def test_declared_body(photos: PhotoIndex, length: str) -> None:
    body, kind = multipart(b"")
    headers = {"content-type": kind, "content-length": length}
    answer = asyncio.run(call(create_app(photos, SMALL), "POST", "/search", body, headers))
    assert answer.status_code == 413
    assert "0.05 MB" in error_of(answer)


def test_streamed_body(photos: PhotoIndex) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield multipart(b"")[0].partition(b"\r\n--edge--")[0]
        while True:
            sent += 1
            yield bytes(10_000)

    headers = {"content-type": multipart(b"")[1]}
    answer = asyncio.run(call(create_app(photos, SMALL), "POST", "/search", endless(), headers))
    assert (answer.status_code, sent) == (413, 7)
    error_of(answer)


FORMATS = [encoded(Image.new("RGB", (32, 32)), kind) for kind in ("GIF", "BMP", "TIFF", "JPEG2000", "PPM")]


@pytest.mark.parametrize("data", [*FORMATS, b"", b"text", png_header(64, 64), b"\xff\xd8\xff\xe0torn"])
def test_refused_images(client: TestClient, data: bytes) -> None:
    answer = client.post("/search", files=upload(data))
    assert answer.status_code == 400
    error_of(answer)


def test_huge_images(photos: PhotoIndex) -> None:
    with (
        PhotoIndex.open(photos.folder, read_only=True, max_pixels=10_000) as index,
        opened(index, Settings()) as client,
    ):
        for data, status in (
            (encoded(Image.new("RGB", (100, 100))), 200),
            (encoded(Image.new("RGB", (101, 100))), 400),
            (png_header(90_000, 90_000), 400),
        ):
            assert client.post("/search", files=upload(data)).status_code == status
    assert Settings(max_megapixels=2).encoding["max_pixels"] == 2_000_000


def test_uploads_at_once(photos: PhotoIndex, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, search = (pictures / "dog.jpg").read_bytes(), photos.search
    running, release = threading.Event(), threading.Event()

    def held(*arguments: Any, **named: Any) -> Any:
        running.set()
        release.wait()
        return search(*arguments, **named)

    with opened(photos, Settings(uploads=1)) as client:
        monkeypatch.setattr(photos, "search", held)
        statuses: list[int] = []
        first = threading.Thread(
            target=lambda: statuses.append(client.post("/search", files=upload(data)).status_code)
        )
        first.start()
        running.wait()
        answer = client.post("/search", files=upload(data))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        error_of(answer)
        # Quick work does not wait for slow work.
        assert client.get("/items").status_code == 200
        release.set()
        first.join()
        assert statuses == [200]
        assert client.post("/search", files=upload(data)).status_code == 200


def test_full_worker_pool() -> None:
    release = threading.Event()

    async def scenario() -> None:
        pool = WorkerPool("test", 1, 1)
        started = [asyncio.create_task(pool.run(release.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await pool.run(int)
        release.set()
        assert await asyncio.gather(*started) == [True, True]
        assert await pool.run(int) == 0
        pool.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("host", "hosts", "password", "is_answered"),
    [
        ("localhost", (), None, True),
        ("[::1]:8000", (), None, True),
        ("localhost.evil.example", (), None, False),
        ("", (), None, False),
        ("photos.example", ("photos.example",), None, True),
        ("PHOTOS.example:443", ("photos.example",), PASSWORD, True),
        ("localhost", ("photos.example",), PASSWORD, True),
        ("evil.example", ("photos.example",), PASSWORD, False),
        ("any.example", (), PASSWORD, True),
    ],
)
def test_host_names(
    photos: PhotoIndex, host: str, hosts: tuple[str, ...], password: str | None, is_answered: bool
) -> None:
    app = create_app(photos, Settings(hosts=hosts, password=password))
    answer = asyncio.run(call(app, "GET", "/health", headers={"host": host}))
    assert answer.status_code == (200 if is_answered else 400)
    assert is_answered or "photos" not in answer.json()


def test_headers(client: TestClient, photos: PhotoIndex) -> None:
    ids = [item.id for item in photos.list()[0]]
    paths = ["/", "/items", "/nowhere", "/search", f"/images/{ids[0]}", "/static/app.js"]
    answers = [client.get(path) for path in paths]
    answers.append(client.get("/health", headers={"host": "evil.example"}))
    assert {answer.status_code for answer in answers} == {200, 400, 404}
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/items").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_nothing_changes(client: TestClient, photos: PhotoIndex, method: str) -> None:
    before = photos.index.version
    for path in ("/items", f"/items/{photos.list()[0][0].id}", "/images", "/labels", "/duplicates"):
        answer = client.request(method, path)
        assert answer.status_code in (404, 405), path
        error_of(answer)
    assert photos.index.version == before


@pytest.mark.parametrize("kind", [RuntimeError, DataError])
def test_internal_errors(
    client: TestClient, photos: PhotoIndex, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any, **named: Any) -> Any:
        raise kind(f"'{photos.folder}' is damaged")

    monkeypatch.setattr(photos, "list", failing)
    answer = client.get("/items")
    assert answer.status_code == 500
    assert "damaged" not in error_of(answer)
