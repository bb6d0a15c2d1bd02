"""The optional password for viewing: a login page and a cookie for people, HTTP Basic or Bearer for programs."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections import deque
from pathlib import Path
from time import monotonic

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from centerhash.serve.limits import Settings, error_response

SESSION_SECONDS = 30 * 24 * 3600
ATTEMPTS_SECONDS = 300  # in which wrong passwords are counted
MOST_WRONG = 10  # wrong passwords from one address in that time
# A proxy may hide the addresses, or pass on those that clients invent: this many from all of them
MOST_WRONG_OF_ALL = 100
_LOGIN = Path(__file__).parent / "static" / "login.html"
# The page of the login and its parts, which are the same for every server, and the check that the server is up
_OPEN = frozenset(
    {"/health", "/login", "/static/style.css", "/static/photo.css", "/static/login.js", "/static/icon.svg"}
)
_WRONG = "this needs the password of the server, by HTTP Basic or as 'Authorization: Bearer PASSWORD'."


class Attempts:
    """Counts wrong passwords; the right one is rejected too while there are too many, else guessing would continue."""

    def __init__(self) -> None:
        self._wrong: deque[tuple[float, str]] = deque()  # when and from where

    def seconds_to_wait(self, client: str) -> int:
        """Return how long this client must wait until the next attempt; 0 if it may try."""
        now = monotonic()
        while self._wrong and self._wrong[0][0] <= now - ATTEMPTS_SECONDS:
            self._wrong.popleft()
        for times, most in (
            ([at for at, other in self._wrong if other == client], MOST_WRONG),
            ([at for at, _ in self._wrong], MOST_WRONG_OF_ALL),
        ):
            if len(times) >= most:
                return int(times[-most] + ATTEMPTS_SECONDS - now) + 1
        return 0

    def add(self, client: str) -> None:
        """Count a wrong password."""
        self._wrong.append((monotonic(), client))


class Password:
    """Checks passwords and sessions. A session is a signed deadline, so that nothing is stored; a restart ends all."""

    def __init__(self, settings: Settings) -> None:
        assert settings.password is not None
        self._key = settings.session_key.get_secret_value()
        # the token allows more than the password, and a request has only one `Authorization`
        known = [settings.password] + ([settings.token] if settings.token else [])
        self._accepted = [self._digest(each.get_secret_value().encode()) for each in known]
        self._attempts = Attempts()

    def check(self, given: bytes, client: str, *, accept_token: bool = False) -> None:
        """Raise HTTPException 401 if it is wrong, 429 after too many wrong ones."""
        if wait := self._attempts.seconds_to_wait(client):
            message = f"too many wrong passwords: try again in {wait} seconds."
            raise HTTPException(429, message, {"retry-after": str(wait)})
        digest = self._digest(given)
        right = [hmac.compare_digest(digest, each) for each in self._accepted]
        if not (any(right) if accept_token else right[0]):
            self._attempts.add(client)
            raise HTTPException(401, "this is not the password of the server.", _CHALLENGE)

    def new_session(self) -> str:
        """Return the value of a cookie that is accepted for 30 days."""
        deadline = str(int(monotonic()) + SESSION_SECONDS)
        return f"{deadline}.{self._signature(deadline)}"

    def is_session(self, value: str) -> bool:
        """Whether this is the value of a cookie of this server that is not too old."""
        deadline, _, signature = value.partition(".")
        right = hmac.compare_digest(signature.encode(), self._signature(deadline).encode())
        return right and int(deadline) > monotonic()

    def _signature(self, deadline: str) -> str:
        return self._digest(b"session " + deadline.encode()).hex()

    def _digest(self, text: bytes) -> bytes:
        """Return a keyed hash: comparing hashes takes the same time for texts of any length."""
        return hmac.digest(self._key, text, "sha256")


# Not Basic: browsers would open a window of their own for it, before the page could show its form
_CHALLENGE = {"www-authenticate": 'Bearer realm="centerhash"'}


class PasswordGate:
    """ASGI middleware that answers requests without the password: people get the login page, programs a 401."""

    def __init__(self, app: ASGIApp, password: Password) -> None:
        self._app, self._password = app, password
        self._page = _LOGIN.read_text(encoding="utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                if not self._may_pass(scope):
                    app = self._refusal(scope)
            except HTTPException as error:
                app = error_response(error.status_code, error.detail, error.headers)
        await app(scope, receive, _varying(send))

    def _may_pass(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        if self._password.is_session(HTTPConnection(scope).cookies.get(_cookie_name(headers), "")):
            return True
        given = credentials(headers.get("authorization", ""))
        if given is None:
            return False
        self._password.check(given, client_of(scope), accept_token=True)
        return True

    def _refusal(self, scope: Scope) -> Response:
        if scope["method"] in ("GET", "HEAD") and "text/html" in Headers(scope=scope).get("accept", ""):
            # the page stands in place of any other, however deep: a reload after the login shows what was wanted
            root = "../" * (scope["path"].count("/") - 1)
            return HTMLResponse(self._page.replace("{root}", root), 401, headers=_CHALLENGE)
        return error_response(401, _WRONG, _CHALLENGE)


def _varying(send: Send) -> Send:
    """Keep a browser from showing photos of its cache after the cookie is gone."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).add_vary_header("Cookie")
        await send(message)

    return sending


def credentials(header: str) -> bytes | None:
    """Return the password in an `Authorization` header: that of Basic with any user name, or Bearer; None if neither."""
    scheme, _, value = header.strip().partition(" ")
    # latin-1 is how headers are decoded: this gives back the bytes that were sent
    sent = value.strip().encode("latin-1")
    match scheme.lower():
        case "bearer":
            return sent
        case "basic":
            try:
                return base64.b64decode(sent, validate=True).partition(b":")[2]
            except binascii.Error:
                return None
    return None


def client_of(scope: Scope) -> str:
    """Return the address whose wrong passwords are counted together; IPv6 hands out 64 bits to everyone."""
    address = (scope.get("client") or ("", 0))[0]
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return str(address)
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)


def _cookie_name(headers: Headers) -> str:
    """Return a name with the port: browsers send the cookies of a host to all of its ports."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"centerhash-{port if port.isdigit() else 'web'}"


class Login(BaseModel):
    """What the login page sends."""

    password: SecretStr = Field(max_length=1000)


def add_login(app: FastAPI, password: Password) -> None:
    """Add the routes of the login page."""

    @app.post("/login", status_code=204)
    async def log_in(request: Request, login: Login) -> Response:
        """Start a session of 30 days: a cookie for browsers. Programs send the password with every request instead."""
        password.check(login.password.get_secret_value().encode(), client_of(request.scope))
        response = Response(status_code=204)
        # a proxy need not forward the scheme, but browsers send the origin
        secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
        response.set_cookie(
            _cookie_name(request.headers),
            password.new_session(),
            max_age=SESSION_SECONDS,
            path=None,  # the folder of this address, also behind a proxy that serves it under a prefix
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return response

    @app.get("/login", status_code=204)
    async def check_login(request: Request) -> Response:
        """Check the session of a browser: 204, or 401 without one."""
        if not password.is_session(request.cookies.get(_cookie_name(request.headers), "")):
            raise HTTPException(401, _WRONG, _CHALLENGE)
        return Response(status_code=204)

    @app.delete("/login", status_code=204)
    async def log_out(request: Request) -> Response:
        """End the session of this browser."""
        response = Response(status_code=204)
        response.set_cookie(
            _cookie_name(request.headers), "", max_age=0, path=None, httponly=True, samesite="strict"
        )
        return response
