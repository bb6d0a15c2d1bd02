"""One password: a form and a session for people, a header for programs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import itsdangerous
import pytest
from fastapi.testclient import TestClient

from centerhash.photos import PhotoIndex
from centerhash.serve import Settings, create_app, login
from centerhash.serve.limits import Busy
from tests.serve.toys import BEARER, PASSWORD, error_of

HTML = {"accept": "text/html,*/*"}
Guarded = Callable[..., TestClient]


@pytest.fixture
def guarded(photos: PhotoIndex, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """Make clients of servers with a password, whose wrong passwords wait for nothing."""
    monkeypatch.setattr(login, "WRONG_SECONDS", 0.0)
    clients = []

    def make(password: str = PASSWORD) -> TestClient:
        app = create_app(photos, Settings(password=password))
        client = TestClient(app, base_url="http://localhost", follow_redirects=False)
        clients.append(client.__enter__())
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def log_in(client: TestClient, password: str = PASSWORD) -> Any:
    return client.post("/login", data={"password": password})


def test_routes_need_the_password(guarded: Guarded, photos: PhotoIndex) -> None:
    client, id = guarded(), photos.list()[0][0].id
    paths = ["/", "/items", f"/items/{id}", f"/images/{id}", f"/thumbnails/{id}", "/labels", "/counts"]
    paths += ["/search?labels=dog", "/duplicates", "/openapi.json", "/static/app.js", "/api", "/nowhere"]
    for path in paths:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        error_of(answer)
        assert client.get(path, headers=BEARER).status_code == (404 if path == "/nowhere" else 200)
    assert client.post("/search").status_code == 401
    for path in ("/health", "/login", "/static/style.css", "/static/icon.svg"):
        assert client.get(path).status_code == 200
    assert client.get("/health").json()["password"] is True


def test_login_and_logout(guarded: Guarded) -> None:
    client = guarded()
    for path, location in (("/", "login"), ("/images/x", "../login")):
        answer = client.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, location)
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert f"max-age={30 * 24 * 3600}" in cookie
    assert client.get("/items").status_code == 200
    assert client.get("/logout").headers["location"] == "login"
    assert client.get("/items").status_code == 401


@pytest.mark.parametrize("password", ["wrong", "", PASSWORD + " ", PASSWORD.upper(), "x" * 2000])
def test_wrong_password(guarded: Guarded, password: str) -> None:
    client = guarded()
    answer = log_in(client, password)
    assert answer.status_code in (401, 422)
    assert not client.cookies
    assert PASSWORD not in answer.text
    assert client.get("/items").status_code == 401


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {PASSWORD}", 200),
        (f"bearer   {PASSWORD} ", 200),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        (f"Basic {PASSWORD}", 401),
        (PASSWORD, 401),
    ],
)
def test_bearer(guarded: Guarded, header: str, status: int) -> None:
    assert guarded().get("/items", headers={"authorization": header}).status_code == status


def test_forged_sessions(guarded: Guarded) -> None:
    client = guarded()
    payload = base64.b64encode(json.dumps({"viewer": True}).encode())
    forged = itsdangerous.TimestampSigner("another key").sign(payload).decode()
    for value in (payload.decode(), forged, "x.y.z", ""):
        assert client.get("/items", headers={"cookie": f"session={value}"}).status_code == 401


def test_new_password_ends_sessions(guarded: Guarded) -> None:
    first = guarded()
    log_in(first)
    header = {"cookie": f"session={first.cookies['session']}"}
    # Another process of the same server shares its sessions.
    assert guarded().get("/items", headers=header).status_code == 200
    assert guarded("another password").get("/items", headers=header).status_code == 401


def test_wrong_passwords_delay_others() -> None:
    async def scenario() -> None:
        check = login.PasswordCheck(PASSWORD.encode())
        wrong = [asyncio.create_task(check.is_right(b"wrong")) for _ in range(16)]
        await asyncio.sleep(0)
        # The right password is not compared before its turn.
        for guess in (b"wrong", PASSWORD.encode()):
            with pytest.raises(Busy):
                await check.is_right(guess)
        for task in wrong[1:]:
            task.cancel()
        assert await wrong[0] is False
        assert await check.is_right(PASSWORD.encode())

    asyncio.run(scenario())
