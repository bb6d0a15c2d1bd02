"""Keep any request from taking the server down: settings, queues, sizes, timeouts, connections, browser security."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic, perf_counter
from typing import Any, TypeVar

from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram
from pydantic import Field, SecretBytes, SecretStr
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from centerhash.core.errors import CenterhashError
from centerhash.core.options import Options

log = logging.getLogger("centerhash.serve")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MEGABYTE = 1_000_000
Output = TypeVar("Output")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUSY = "the server is busy: try again in a moment."
_DRAIN_SECONDS = 2.0  # for a client that is still sending when its answer is ready
_DRAIN_BODIES = 4  # times the allowed size that are read and dropped, so that the client sees its answer
_QUIET_SECONDS = 60.0  # in which a message of the event loop is logged once
_HEADERS = (  # none of them is set elsewhere
    # blob: and data: are the image that the user has just picked
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_FULL = b'{"error": "too many connections: try again in a moment."}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


class Settings(Options):
    """Settings of a server, most of them limits."""

    token: SecretStr | None = Field(None, description="needed to add or remove images; None: no one can")
    password: SecretStr | None = Field(None, description="needed to view anything; None: everyone can")
    session_key: SecretBytes = Field(
        default_factory=lambda: SecretBytes(secrets.token_bytes(32)),
        description="signs the sessions of the password",
    )
    read_only: bool = Field(False, description="reject changes even with the token")
    max_upload_mb: float = Field(20.0, gt=0, le=1000, description="largest upload in megabytes")
    max_megapixels: float = Field(50.0, gt=0, le=1000, description="largest image in million pixels")
    device: str = Field("auto", description="device that encodes images")
    engine: str = Field("auto", description="engine that runs the network: auto, torch, onnx, openvino")
    queue: int = Field(32, ge=0, description="requests of one kind that may wait; more get a 503")
    connections: int = Field(512, ge=1, description="open connections; more get a 503")
    timeout: float = Field(30.0, gt=0, description="seconds that a request may take, slow clients included")
    workers: int = Field(2, ge=1, description="threads that decode images, and as many that search")
    thumbnail_mb: float = Field(64.0, gt=0, description="memory for thumbnails in megabytes")
    log_requests: bool = Field(
        False, description="print a line per request: method, path, status, milliseconds"
    )
    duplicates_to: Path | None = Field(
        None, description="folder that duplicates are moved to; None: moving is disabled"
    )
    hosts: tuple[str, ...] = Field((), description="names that the server answers to; empty: any")
    addresses: tuple[str, ...] = Field((), description="its own addresses, which it always answers to")

    @property
    def max_upload(self) -> int:
        """Largest body of a request in bytes: the image, and a little for the form around it."""
        return int(self.max_upload_mb * MEGABYTE) + 16_384

    @property
    def may_write(self) -> bool:
        """Whether any request can change the index."""
        return self.token is not None and not self.read_only


class Busy(CenterhashError):
    """The queue of a lane is full; the client may come back in a moment."""


class Lane:
    """A few worker threads with a bounded queue; one lane per kind of work, so that quick work never waits for slow.

    A place is free again when its work has really ended, not when the client stopped waiting for it.
    """

    def __init__(self, name: str, workers: int, queue: int) -> None:
        self.name = name
        self.places = workers + queue
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"centerhash-{name}")
        self._lock = Lock()
        self.taken = 0  # pieces of work that run or wait

    def check(self) -> None:
        """Raise Busy if the queue is full; called before a body is read."""
        if self.taken >= self.places:
            raise Busy(_BUSY)

    async def run(self, work: Callable[[], Output]) -> Output:
        """Run `work` in a thread, or raise Busy. Work that is cancelled while it waits is never started."""
        with self._lock:
            self.check()
            self.taken += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # closed
            self._leave()
            raise Busy("the server is stopping.") from None
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, future: Future[Any] | None = None) -> None:
        with self._lock:
            self.taken -= 1

    def close(self) -> None:
        """Finish what runs or waits, and accept nothing new."""
        self._pool.shutdown(wait=True)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The one shape of an error: {"error": "..."}."""
    return JSONResponse({"error": message}, status, headers=dict(headers or {}))


class Guard:
    """ASGI middleware around the whole application: limits size and time, counts, adds security headers."""

    def __init__(self, app: ASGIApp, settings: Settings, registry: CollectorRegistry) -> None:
        self._app, self._settings = app, settings
        self._uploads = 0
        labels = ["method", "route", "status"]
        self._requests = Counter("centerhash_requests", "Requests.", labels, registry=registry)
        self._seconds = Histogram(
            "centerhash_request_seconds", "Time to answer.", ["route"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, within the time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, limit = perf_counter(), f"{self._settings.timeout:g} seconds"
        exchange = _Exchange(scope, receive, send, self._settings)
        try:
            async with asyncio.timeout(self._settings.timeout) as exchange.limit:
                await self._admit(scope, exchange)
        except TimeoutError:
            if exchange.body_pending:
                await exchange.fail(408, f"the request did not arrive within {limit}.")
            else:
                await exchange.fail(503, f"no answer within {limit}: try again in a moment.")
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await exchange.fail(
                500, "an internal error occurred; the log of the server contains the details."
            )
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            # the pattern of the route, never the path itself: ids must not become labels of metrics
            static = "/static" if scope["path"].startswith("/static/") else "none"
            route = getattr(scope.get("route"), "path", "") or static
            seconds = perf_counter() - started
            self._requests.labels(method, route, exchange.status).inc()
            self._seconds.labels(route).observe(seconds)
            if self._settings.log_requests:
                # the path as it was sent, so still quoted: a decoded one could hold line ends; no query, no headers
                path = scope.get("raw_path", b"").decode("latin-1")
                print(method, path, exchange.status, f"{1000 * seconds:.1f} ms", file=sys.stderr, flush=True)

    async def _admit(self, scope: Scope, exchange: _Exchange) -> None:
        """Refuse what can be refused without the body, else let the application answer."""
        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await exchange.fail(*refusal)
            return
        uploads = scope["method"] == "POST"
        self._uploads += uploads
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._uploads -= uploads

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        hosts = self._settings.hosts
        # A page of another site may point its own name at this address, to read what only this machine may read.
        # Not starlette's TrustedHostMiddleware: it answers in plain text, and rejects [::1] before version 1.10.
        if hosts and _host_of(headers.get("host", "")) not in (*hosts, *self._settings.addresses):
            return 400, f"this server answers only to {', '.join(hosts)}."
        if method not in ("GET", "HEAD", "OPTIONS") and _is_foreign(headers, hosts):
            return 403, "this request comes from a page of another site: use the server's own."
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._settings.max_upload:
            return 413, _too_large(self._settings)
        # bodies that are still coming in take memory too
        if method == "POST" and self._uploads >= 2 * self._settings.queue + self._settings.workers:
            return 503, _BUSY
        return None


class _Exchange:
    """One request and its answer: counts the bytes that come in, and adds the headers that go out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self._scope, self._receive, self._send, self._settings = scope, receive, send, settings
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
            # a client that was too slow is not waited for again
            if self.body_pending and message["status"] != 408:
                await self._drain()
            self.status = message["status"]
            headers = [*message["headers"], *_HEADERS]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)
        # a long file over a slow line: each piece that was accepted gives time for the next
        if self.limit is not None and message.get("more_body"):
            self.limit.reschedule(asyncio.get_running_loop().time() + self._settings.timeout)

    async def _drain(self) -> None:
        """Drop a body that nobody read, within reason: a client that still sends would not see the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self.body_pending and self._received <= _DRAIN_BODIES * self._settings.max_upload:
                    await self._next()

    async def fail(self, status: int, message: str) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status == 499:
            headers = {"retry-after": "1"} if status == 503 else {}
            await error_response(status, message, headers)(self._scope, self._receive, self.send)


def _too_large(settings: Settings) -> str:
    return f"the upload is larger than the {settings.max_upload_mb:g} MB that this server accepts."


def _is_foreign(headers: Headers, hosts: Collection[str]) -> bool:
    """Whether a browser sent this for a page of another origin; other programs send neither header.

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


def timeout_protocol(seconds: float, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 with a timeout for headers and for clients that do not read, and a limit at the door.

    uvicorn itself limits only the time between two requests, and refuses a connection (`limit_concurrency`) only once
    its headers are complete.
    """

    class TimeoutProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _stalled = False  # the client does not read what is sent

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.write(_REFUSAL)
                transport.close()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = True
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stalled = False
            self._stop()  # it has read: its time begins anew
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Run the timer exactly while the client is to do something: send headers, read, or hang up.

            A request that has begun is the application's to end. A transport that closes first sends what it holds.
            """
            its_turn = self.cycle is None or self.cycle.response_complete
            if not (its_turn or self._stalled or self.transport.is_closing()):
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return TimeoutProtocol


class RateLimit(logging.Filter):
    """Logs a repeated message once a minute: without free file descriptors asyncio logs thousands a second."""

    _line, _at = "", 0.0  # the message logged last, and when

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the first line of this message was not just logged."""
        line, now = record.getMessage().partition("\n")[0], monotonic()
        if line == self._line and now - self._at < _QUIET_SECONDS:
            return False
        self._line, self._at = line, now
        return True
