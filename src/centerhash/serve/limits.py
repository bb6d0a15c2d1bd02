"""Keep any request from stopping the server: bounded queues, sizes, host names, and headers for browsers.

Slow clients are the task of a proxy in front of the server: see docs/how-to/deploy.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from centerhash.core.errors import CenterhashError
from centerhash.serve.settings import Settings

log = logging.getLogger("centerhash.serve")

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")

_BUSY = "the server is busy: try again in a moment."
_HEADERS = {
    # The image that the user has just picked is a blob: or data: address.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Busy(CenterhashError):
    """The queue of a worker pool is full; the client may try again in a moment."""


class WorkerPool:
    """A few worker threads with a bounded queue; each kind of work has a pool, so that quick work never waits for slow.

    A request leaves the queue when its work has ended, not when the client stopped waiting for it.
    """

    def __init__(self, name: str, workers: int, queue: int) -> None:
        self._limit, self._pending = workers + queue, 0
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"centerhash-{name}")
        self._lock = Lock()

    async def run(
        self, work: Callable[Inputs, Output], *args: Inputs.args, **options: Inputs.kwargs
    ) -> Output:
        """Run `work` in a thread, or raise Busy. Work that is cancelled while it waits is never started."""
        with self._lock:
            if self._pending >= self._limit:
                raise Busy(_BUSY)
            self._pending += 1
        future = self._pool.submit(work, *args, **options)
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, _future: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        """Finish the requests that run or wait, and accept nothing new."""
        self._pool.shutdown(wait=True)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error in the shape {"error": "..."}."""
    return JSONResponse({"error": message}, status, headers=dict(headers or {}))


class LimitsMiddleware:
    """ASGI middleware around the application: host names, sizes and number of uploads, security headers."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings, self._uploads = app, settings, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, also if the application fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received_bytes, is_started = 0, False

        async def receive_limited() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._settings.max_body:
                raise HTTPException(413, self._too_large)
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await error_response(*refusal)(scope, receive, send_with_headers)
            return
        is_upload = scope["method"] == "POST"
        self._uploads += is_upload
        try:
            await self._app(scope, receive_limited, send_with_headers)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not is_started:
                message = "an internal error occurred; the log of the server contains the details."
                await error_response(500, message)(scope, receive, send_with_headers)
        finally:
            self._uploads -= is_upload

    @property
    def _too_large(self) -> str:
        return f"the upload is larger than the {self._settings.max_upload_mb:g} MB that this server accepts."

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        """Return the error of a request that is rejected before its body is read."""
        hosts, host = self._settings.allowed_hosts, re.sub(r":\d+$", "", headers.get("host", ""))
        # Starlette's TrustedHostMiddleware answers in plain text, and rejects [::1].
        if hosts and host.lower() not in map(str.lower, hosts):
            return 400, f"this server answers only to {', '.join(hosts)}.", {}
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._settings.max_body:
            return 413, self._too_large, {"connection": "close"}
        if method == "POST" and self._uploads >= self._settings.uploads:
            return 503, _BUSY, {"retry-after": "1"}
        return None
