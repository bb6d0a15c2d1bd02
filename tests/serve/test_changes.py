"""Adding and removing: only with the token, only by id, and for good."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from centerhash.search import Index
from centerhash.serve import Settings, create_app
from tests.serve.toys import BEARER, TOKEN, call, ids_of, png, upload
from tests.toys import wait_until


def test_added_pictures_are_found_and_stay(writer: TestClient, own: Index) -> None:
    added = writer.post("/images", files=upload(png(50)), headers=BEARER)
    assert added.status_code == 201
    assert added.json()["size"] == 4
    body = writer.post("/search", files=upload(png(50))).json()
    assert (body["results"][0]["id"], body["results"][0]["distance"]) == (added.json()["id"], 0)
    with Index.open(own.folder, read_only=True) as other:
        assert added.json()["id"] in other


def test_the_same_picture_is_stored_once(writer: TestClient) -> None:
    ids = {writer.post("/images", files=upload(png(0)), headers=BEARER).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert writer.get("/health").json()["size"] == 3


def test_a_broken_picture_is_not_added(writer: TestClient) -> None:
    assert writer.post("/images", files=upload(png()[:80]), headers=BEARER).status_code == 400
    assert writer.get("/health").json()["size"] == 3


def test_removed_pictures_are_gone_with_their_thumbnails(writer: TestClient, own: Index) -> None:
    id = ids_of(own)[0]
    assert writer.get(f"/thumbnails/{id}").status_code == 200
    removed = writer.delete(f"/images/{id}", headers=BEARER)
    assert (removed.status_code, removed.json()) == (200, {"id": id, "size": 2})
    assert writer.get(f"/thumbnails/{id}").status_code == 404
    assert writer.get("/search", params={"id": id}).status_code == 404
    assert writer.delete(f"/images/{id}", headers=BEARER).status_code == 404


def test_nothing_is_removed_by_its_path(writer: TestClient, own: Index) -> None:
    """The index itself takes paths and folders; a request must not."""
    for path in (own.image(ids_of(own)[0]), own.folder / "images", Path("/")):
        assert own.find([path])[str(path)]  # the index would know it
        assert writer.delete(f"/images/{path}", headers=BEARER).status_code == 404
    assert len(own) == 3


def test_without_the_token_nothing_changes(writer: TestClient, own: Index) -> None:
    id = ids_of(own)[0]
    for given in ("", "Bearer", f"Basic {TOKEN}", "Bearer wrong", f"Bearer {TOKEN}x", TOKEN, "Bearer ü"):
        headers = {"Authorization": given.encode("latin-1")} if given else {}
        for answered in (
            writer.post("/images", files=upload(png(60)), headers=headers),
            writer.delete(f"/images/{id}", headers=headers),
        ):
            assert answered.status_code == 401, given
            assert answered.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer TOKEN" in answered.json()["error"]
    assert len(own) == 3


def test_a_server_without_a_token_says_how_to_allow_changes(reader: TestClient) -> None:
    answered = reader.post("/images", files=upload(png(60)), headers=BEARER)
    assert answered.status_code == 403
    assert "CENTERHASH_TOKEN" in answered.json()["error"]


def test_a_read_only_server_takes_no_token(own: Index) -> None:
    with TestClient(create_app(own, Settings(token=TOKEN, read_only=True))) as client:
        answered = client.delete("/images/x", headers=BEARER)
    assert answered.status_code == 403
    assert "read-only" in answered.json()["error"]


def test_the_token_is_asked_for_before_the_body_is_read(own: Index) -> None:
    """What is read after the answer is thrown away, not parsed, and at most a few times the allowed size."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield bytes(100_000)

    app = create_app(own, Settings(token=TOKEN, max_upload_mb=0.1))
    form = {"content-type": "multipart/form-data; boundary=x"}
    reply = asyncio.run(call(app, "POST", "/images", endless(), form))
    assert reply.status == 401
    assert reply.read < 1_000_000


def test_a_reader_sees_what_a_writer_adds(own: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centerhash.serve.index._REFRESH_SECONDS", 0.01)
    with (
        Index.open(own.folder, read_only=True) as copy,
        TestClient(create_app(copy), base_url="http://localhost") as client,
    ):
        id = own.add_bytes(png(70)).id
        known = functools.partial(client.get, "/search", params={"id": id})
        wait_until(lambda: known().status_code == 200, "the reader knows the new picture")
        assert client.get("/health").json()["size"] == 4
        assert client.get(f"/thumbnails/{id}").status_code == 200
