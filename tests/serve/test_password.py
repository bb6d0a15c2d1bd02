"""The password for viewing: who gets in, by which way, and how often somebody may guess."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.cookies import SimpleCookie

import pytest
from fastapi.testclient import TestClient

from centerhash.search import Index
from centerhash.serve import Settings, create_app, password
from centerhash.serve.password import Attempts, client_of, credentials
from tests.serve.toys import BEARER, TOKEN, error_of, png, upload

PASSWORD = "größer als: nichts"
PEOPLE = {"accept": "text/html,application/xhtml+xml"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(password, "monotonic", made)
    return made


@pytest.fixture
def guarded(own: Index, clock: Clock) -> Iterator[TestClient]:
    """A client of a server with a password and a token."""
    app = create_app(own, Settings(token=TOKEN, password=PASSWORD))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"anyone:{text}".encode()).decode()}


def log_in(client: TestClient, text: str = PASSWORD, **headers: str) -> int:
    return client.post("/login", json={"password": text}, headers=headers).status_code


def test_everything_but_the_health_needs_the_password(guarded: TestClient) -> None:
    found = guarded.get("/openapi.json", headers=basic(PASSWORD)).json()["paths"]
    reachable = {
        (method, path)
        for path, methods in found.items()
        for method in methods
        if guarded.request(method, path.replace("{id}", "x")).status_code != 401
    }
    # 422: a login without a password
    assert reachable == {("get", "/health"), ("post", "/login"), ("delete", "/login")}
    for path in (
        "/",
        "/api",
        "/openapi.json",
        "/static/app.js",
        "/static/%2e%2e/health",
        "/health/",
        "//health",
    ):
        assert guarded.get(path).status_code == 401, path
    assert guarded.get("/health").json()["password"] is True


def test_people_get_a_page_in_place_of_any_other_and_programs_an_error(guarded: TestClient) -> None:
    for path, root in (("/", ""), ("/api", ""), ("/images/x", "../"), ("/images/x/y", "../../")):
        page = guarded.get(path, headers=PEOPLE)
        assert page.status_code == 401
        assert f'action="{root}login"' in page.text
        assert f'src="{root}static/login.js"' in page.text
        assert "basic" not in page.headers["www-authenticate"].lower()  # for which browsers open a window
    for part in ("style.css", "photo.css", "login.js", "icon.svg"):
        assert guarded.get(f"/static/{part}").status_code == 200
    assert error_of(guarded.get("/items"))
    assert error_of(guarded.post("/search", files=upload(png()), headers=PEOPLE))


def test_a_login_lasts_thirty_days(guarded: TestClient, clock: Clock) -> None:
    assert guarded.get("/login").status_code == 401
    assert log_in(guarded, "wrong") == 401
    assert guarded.get("/items").status_code == 401
    assert log_in(guarded) == 204
    assert guarded.get("/login").status_code == 204
    assert guarded.get("/items").status_code == 200
    assert guarded.post("/search", files=upload(png())).status_code == 200
    assert guarded.post("/images", files=upload(png(50))).status_code == 401  # that needs the token as before
    assert guarded.post("/images", files=upload(png(50)), headers=BEARER).status_code == 201
    clock.now += 30 * 24 * 3600 - 1
    assert guarded.get("/items").status_code == 200
    clock.now += 2
    assert guarded.get("/items").status_code == 401
    assert log_in(guarded) == 204
    assert guarded.delete("/login").status_code == 204
    assert guarded.get("/items").status_code == 401


def test_a_cookie_cannot_be_made_or_kept_over_a_restart(guarded: TestClient, own: Index) -> None:
    log_in(guarded)
    name, value = next(iter(guarded.cookies.items()))
    deadline, signature = value.split(".")
    guarded.cookies.clear()
    for made in (
        "",
        ".",
        deadline,
        f"{int(deadline) + 1}.{signature}",
        f"{deadline}.{signature[:-1]}",
        f"{deadline}.",
        f".{signature}",
        '"\\351.\\377"',
    ):
        assert guarded.get("/items", headers={"cookie": f"{name}={made}"}).status_code == 401, made
    assert guarded.get("/items", headers={"cookie": f"{name}={value}"}).status_code == 200
    with TestClient(create_app(own, Settings(password=PASSWORD)), base_url="http://localhost") as restarted:
        assert restarted.get("/items", headers={"cookie": f"{name}={value}"}).status_code == 401


@pytest.mark.parametrize(
    ("host", "headers", "secure", "name"),
    [
        ("http://localhost:8000", {"origin": "http://localhost:8000"}, False, "centerhash-8000"),
        ("http://localhost:8001", {}, False, "centerhash-8001"),
        ("https://photos.example", {"origin": "https://photos.example"}, True, "centerhash-web"),
        # a proxy that does not forward the scheme
        ("http://photos.example", {"origin": "https://photos.example"}, True, "centerhash-web"),
    ],
)
def test_what_the_cookie_allows(
    pictures: Index, host: str, headers: dict[str, str], secure: bool, name: str
) -> None:
    settings = Settings(password=PASSWORD, hosts=("localhost", "photos.example"))
    with TestClient(create_app(pictures, settings), base_url=host) as client:
        sent = client.post("/login", json={"password": PASSWORD}, headers=headers).headers["set-cookie"]
    (cookie,) = SimpleCookie(sent).values()
    assert cookie.key == name
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert bool(cookie["secure"]) is secure
    assert cookie["path"] == ""  # the folder of the address: also below the prefix of a proxy
    assert cookie["max-age"] == str(30 * 24 * 3600)


def test_programs_send_the_password_with_each_request(guarded: TestClient) -> None:
    for headers, status in (
        (basic(PASSWORD), 200),
        ({"authorization": b"bearer " + PASSWORD.encode()}, 200),
        (BEARER, 200),  # the token allows more than the password
        (basic(TOKEN), 200),
        (basic("wrong"), 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic no-base64!"}, 401),
        ({"authorization": f"Digest {TOKEN}"}, 401),
    ):
        assert guarded.get("/items", headers=headers).status_code == status, headers  # type: ignore[arg-type]
    assert guarded.post("/images", files=upload(png(51)), headers=basic(PASSWORD)).status_code == 401
    assert guarded.post("/images", files=upload(png(51)), headers=BEARER).status_code == 201
    assert log_in(guarded, TOKEN) == 401  # people log in with the password


def test_guessing_is_slowed_down_for_the_right_password_too(guarded: TestClient, clock: Clock) -> None:
    seen = TestClient(guarded.app, base_url="http://localhost")
    assert log_in(seen) == 204
    for number in range(password.MOST_WRONG):
        clock.now += 1
        assert (
            log_in(guarded, "wrong")
            if number % 2
            else guarded.get("/items", headers=basic("wrong")).status_code
        ) == 401
    late = guarded.post("/login", json={"password": PASSWORD})
    assert late.status_code == 429
    assert error_of(late)
    assert guarded.get("/items", headers=basic(PASSWORD)).status_code == 429
    assert guarded.get("/", headers=PEOPLE).status_code == 401  # the page can still be opened
    assert seen.get("/items").status_code == 200  # who is logged in stays so
    clock.now += int(late.headers["retry-after"]) - 2
    assert log_in(guarded) == 429
    clock.now += 2  # the first wrong one is forgotten
    assert log_in(guarded) == 204


def test_attempts_are_counted_by_address_and_in_all(clock: Clock) -> None:
    attempts = Attempts()
    for number in range(password.MOST_WRONG):
        assert attempts.seconds_to_wait("a") == 0
        attempts.add("a")
        clock.now += number
    assert attempts.seconds_to_wait("a") > 0
    assert attempts.seconds_to_wait("b") == 0
    for number in range(password.MOST_WRONG_OF_ALL - password.MOST_WRONG):
        assert attempts.seconds_to_wait("b") == 0
        attempts.add(str(number))
    assert attempts.seconds_to_wait("b") > 0
    clock.now += password.ATTEMPTS_SECONDS
    assert attempts.seconds_to_wait("a") == attempts.seconds_to_wait("b") == 0


def test_addresses_of_one_network_count_as_one() -> None:
    def of(address: str) -> str:
        return client_of({"client": (address, 1)})

    assert of("2001:db8::1") == of("2001:db8::ffff:1")
    assert of("2001:db8::1") != of("2001:db8:0:1::1")
    assert of("10.0.0.1") != of("10.0.0.2")
    assert client_of({"client": None}) == ""


def test_credentials_of_a_header() -> None:
    assert credentials("Bearer  a b ") == b"a b"
    assert credentials(basic("with:colon")["authorization"]) == b"with:colon"
    for header in ("", "Bearer", "Digest x", "Basic %%%"):
        assert credentials(header) in (None, b"")


def test_without_a_password_nothing_changes(reader: TestClient) -> None:
    assert reader.get("/items").status_code == 200
    assert reader.get("/health").json()["password"] is False
    assert reader.post("/login", json={"password": "x"}).status_code in (404, 405)


def test_the_password_is_not_in_messages(guarded: TestClient) -> None:
    assert PASSWORD not in repr(Settings(password=PASSWORD))
    assert "secret-typed" not in guarded.post("/login", json={"password": ["secret-typed"]}).text


def test_the_token_can_be_checked(writer: TestClient, reader: TestClient) -> None:
    assert writer.get("/token", headers=BEARER).status_code == 204
    assert writer.get("/token").status_code == 401
    assert writer.get("/token", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert reader.get("/token", headers=BEARER).status_code == 403
