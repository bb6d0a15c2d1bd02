"""What stands before every request: limits on size and time, security headers, counting, one shape of error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from time import perf_counter

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from centerhash.serve.metrics import Metrics
from centerhash.serve.settings import Settings

log = logging.getLogger("centerhash.serve")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CHANGING = _METHODS - {"GET", "HEAD", "OPTIONS"}  # what changes the index, or makes it work
_DRAIN_SECONDS = 2.0  # for a client that is still sending when its answer is ready
_DRAIN_BODIES = 4  # times the allowed size that are read and thrown away, so that the client sees its answer
_HEADERS = {
    # blob: and data: are the image that the user has just picked
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The one shape of an error: {"error": "..."}."""
    return JSONResponse({"error": message}, status, headers=dict(headers or {}))


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, within the time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        exchange = _Exchange(scope, receive, send, self._settings)
        try:
            async with asyncio.timeout(self._settings.timeout) as exchange.limit:
                await self._admit(scope, exchange)
        except TimeoutError:
            await exchange.fail(scope, *self._late(exchange))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await exchange.fail(scope, 500, "the server made a mistake; its log says more.")
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.count(method, _route_of(scope), exchange.status, perf_counter() - started)

    async def _admit(self, scope: Scope, exchange: _Exchange) -> None:
        """Refuse what needs no look at the body, then let the application answer."""
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, exchange.receive, exchange.send)
            return
        uploads = scope["method"] not in ("GET", "HEAD", "DELETE")
        self._uploads += uploads
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._uploads -= uploads

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        hosts = self._settings.hosts
        # a page of another site may point its own name at this address, to read what only this machine may read
        if hosts and _host_of(headers.get("host", "")) not in hosts:
            return error_response(400, f"this server answers only to {', '.join(hosts)}.")
        if scope["method"] in _CHANGING and _is_foreign(headers, hosts):
            return error_response(
                403, "this request comes from a page of another site: use the server's own."
            )
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._settings.max_upload:
            return error_response(413, _too_large(self._settings))
        # bodies that are still coming in take memory too
        if scope["method"] == "POST" and self._uploads >= 2 * self._settings.queue + self._settings.workers:
            return error_response(503, "the server is busy: try again in a moment.", {"retry-after": "1"})
        return None

    def _late(self, exchange: _Exchange) -> tuple[int, str]:
        limit = f"{self._settings.timeout:g} seconds"
        if exchange.body_pending:
            return 408, f"the request did not arrive within {limit}."
        return 503, f"no answer within {limit}: try again in a moment."


class _Exchange:
    """One request and its answer: counts the bytes that come in, and adds the headers that go out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self._receive, self._send = receive, send
        self._settings = settings
        self._received = 0
        headers = Headers(scope=scope)
        self.body_pending = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self.status = 499  # the client was gone before there was an answer
        self.limit: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next piece of the body; HTTPException 413 as soon as there are too many bytes."""
        message = await self._next()
        if self._received > self._settings.max_upload:
            raise HTTPException(413, _too_large(self._settings))
        return message

    async def _next(self) -> Message:
        message = await self._receive()
        self.body_pending = message["type"] == "http.request" and message.get("more_body", False)
        self._received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on."""
        if message["type"] == "http.response.start":
            if message["status"] != 408:  # who was too slow need not be waited for again
                await self._drain()
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("cache-control", "no-store")
        await self._send(message)
        # a long file over a slow line: each piece that was taken gives time for the next
        if self.limit is not None and message.get("more_body"):
            self.limit.reschedule(asyncio.get_running_loop().time() + self._settings.timeout)

    async def _drain(self) -> None:
        """Throw away a body that nobody read, within reason: a client that still sends would not see the answer."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self.body_pending and self._received <= _DRAIN_BODIES * self._settings.max_upload:
                    await self._next()
        except TimeoutError:
            return

    async def fail(self, scope: Scope, status: int, message: str) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status == 499:
            headers = {"retry-after": "1"} if status == 503 else {}
            await error_response(status, message, headers)(scope, self._receive, self.send)


def _too_large(settings: Settings) -> str:
    return f"the upload is larger than the {settings.max_upload_mb:g} MB that this server takes."


def _is_foreign(headers: Headers, hosts: Collection[str]) -> bool:
    """Whether a browser sent this for a page of another origin; programs other than browsers say nothing of the kind.

    Behind a proxy that changes the Host, pages of the hosts that were named are the server's own.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    place = origin.partition("://")[2].lower()
    named = set(hosts) - set(LOOPBACK)  # another port of this machine is another site
    return place != headers.get("host", "").lower() and _host_of(place) not in named


def _host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    return (header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header).lower()


def _route_of(scope: Scope) -> str:
    """The pattern of the route, never the path itself: ids must not become names of metrics."""
    route = scope.get("route")
    return str(getattr(route, "path", "")) or ("/static" if scope["path"].startswith("/static/") else "none")
