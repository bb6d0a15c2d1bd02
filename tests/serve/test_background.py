"""A folder is brought up to date while its index is searched."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from centerhash.photos import PhotoIndex, SyncResult
from centerhash.serve import background, create_app
from centerhash.serve.background import BackgroundSync, DuplicateSearch
from tests.serve.conftest import fill
from tests.toys import wait_until


@pytest.fixture
def empty(tmp_path: Path) -> PhotoIndex:
    """The new index of a folder of photos."""
    return PhotoIndex.of(fill(tmp_path / "pictures"))


def test_search_while_adding(empty: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_BATCH", 2)
    held, release, done = threading.Event(), threading.Event(), list[SyncResult]()

    def hold(stage: str, count: int, total: int, note: str = "", /) -> None:
        if count >= 4:
            held.set()
            release.wait()

    syncing = BackgroundSync(empty, [tmp_path / "pictures"], done.append, hold)
    app = create_app(empty, adding=lambda: syncing.remaining)
    with empty, TestClient(app, base_url="http://localhost") as client, syncing:
        held.wait()
        before = client.get("/health").json()
        assert 0 < before["size"] < 9
        assert before["adding"] > 0
        (first, *_) = client.get("/items").json()["items"]
        assert client.get("/search", params={"id": first["id"]}).status_code == 200
        release.set()
        wait_until(lambda: bool(done), "all photos are added")
        health = client.get("/health").json()
        assert (health["adding"], health["size"], done[0].added) == (0, 9, 9)
        assert health["changes"] != before["changes"]
        assert client.get("/search?labels=dog").json()["results"][0]["path"] == "dog again.jpg"


def test_stop_and_resume(empty: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_BATCH", 2)
    held, done = threading.Event(), list[SyncResult]()

    def hold(stage: str, count: int, total: int, note: str = "", /) -> None:
        if count >= 4:
            held.set()
            syncing._stop.wait()

    syncing = BackgroundSync(empty, [tmp_path / "pictures"], done.append, hold)
    with empty:
        with syncing:
            held.wait()
        assert not done
        assert syncing.remaining == 0
        assert 0 < len(empty) < 9
        with BackgroundSync(empty, [tmp_path / "pictures"], done.append) as again:
            wait_until(lambda: again.remaining == 0, "all photos are added")
        assert len(empty) == 9
        assert done[0].known > 0


def test_close_abandons_the_search(photos: PhotoIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    search, running = DuplicateSearch(photos), threading.Event()

    def endless(progress: object) -> None:
        while True:
            running.set()
            progress("pixels", 1, 2)  # type: ignore[operator]

    monkeypatch.setattr(photos, "duplicates", endless)
    assert search.result() is None
    running.wait()
    search.close()
    assert search.progress == (1, 2)
