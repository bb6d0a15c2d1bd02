"""One secret for viewing: a form and a signed cookie for browsers, `Authorization: Bearer` for programs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from fastapi import FastAPI, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.security.utils import get_authorization_scheme_param
from pydantic import SecretStr
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from centerhash.serve.limits import Busy, error_response

SESSION_SECONDS = 30 * 24 * 3600
# Passwords are compared one after the other, so a process rejects at most some 86,000 guesses a day.
WRONG_SECONDS = 1.0
_MAX_WAITING = 16
_PUBLIC_PATHS = ("/health", "/login", "/static/style.css", "/static/icon.svg")
_FORM = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in – centerhash</title>
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="static/style.css">
<main>
<form class="login" method="post" action="login">
<h1>Log in to view the photos</h1>
<label for="password">Password</label>
<p class="combo">
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus>
</p>
<p role="alert">{problem}</p>
<button class="button">Log in</button>
</form>
</main>
</html>
"""


def add_login(app: FastAPI, password: SecretStr) -> None:
    """Require the password for all routes but the login and the health of the server."""
    secret = password.get_secret_value().encode()
    check = PasswordCheck(secret)

    @app.get("/login", include_in_schema=False)
    async def form() -> Response:
        return HTMLResponse(_FORM.format(problem=""))

    @app.post("/login", include_in_schema=False)
    async def log_in(request: Request, password: str = Form(max_length=1000)) -> Response:
        if not await check.is_right(password.encode()):
            return HTMLResponse(_FORM.format(problem="This is not the password."), 401)
        request.session["viewer"] = True
        return RedirectResponse("./", 303)

    @app.get("/logout", include_in_schema=False)
    async def log_out(request: Request) -> Response:
        request.session.clear()
        return RedirectResponse("login", 303)

    app.add_middleware(PasswordMiddleware, check=check)
    # The key is derived from the password: all processes of a server share it, and a new password ends all sessions.
    key = hmac.digest(b"centerhash session", secret, "sha256").hex()
    app.add_middleware(SessionMiddleware, secret_key=key, max_age=SESSION_SECONDS, same_site="lax")


class PasswordCheck:
    """Compare passwords one after the other, so that wrong ones delay all others."""

    def __init__(self, secret: bytes) -> None:
        self._digest, self._lock, self._waiting = hashlib.sha256(secret).digest(), asyncio.Lock(), 0

    async def is_right(self, password: bytes) -> bool:
        """Return whether this is the password; raise Busy if many others wait to be compared."""
        if self._waiting >= _MAX_WAITING:
            raise Busy("too many wrong passwords: try again in a moment.")
        self._waiting += 1
        try:
            async with self._lock:
                # Comparing digests takes the same time for texts of any length.
                if hmac.compare_digest(hashlib.sha256(password).digest(), self._digest):
                    return True
                await asyncio.sleep(WRONG_SECONDS)
                return False
        finally:
            self._waiting -= 1


class PasswordMiddleware:
    """ASGI middleware that sends browsers without a session to the login, and answers programs with a 401."""

    def __init__(self, app: ASGIApp, check: PasswordCheck) -> None:
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _PUBLIC_PATHS:
            connection = HTTPConnection(scope)
            try:
                if not await self._may_pass(connection):
                    app = _refusal(connection)
            except Busy as error:
                app = error_response(503, str(error), {"retry-after": "1"})
        await app(scope, receive, send)

    async def _may_pass(self, connection: HTTPConnection) -> bool:
        if connection.session.get("viewer"):
            return True
        scheme, value = get_authorization_scheme_param(connection.headers.get("authorization"))
        # Headers are decoded as Latin-1, so this restores the bytes that were sent.
        password = value.strip().encode("latin-1")
        return scheme.lower() == "bearer" and password != b"" and await self._check.is_right(password)


def _refusal(connection: HTTPConnection) -> Response:
    """Return the response to a request without the password."""
    if connection.scope["method"] == "GET" and "text/html" in connection.headers.get("accept", ""):
        return RedirectResponse("../" * (connection.scope["path"].count("/") - 1) + "login", 303)
    message = "this server needs its password: send 'Authorization: Bearer PASSWORD'."
    return error_response(401, message, {"www-authenticate": "Bearer"})
