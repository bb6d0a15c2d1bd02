"""The application of one index, and the process that serves it until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.exceptions import HTTPException

from centerhash.core.errors import CenterhashError, ConfigError, DataError, ImageError, InputError
from centerhash.core.version import __version__
from centerhash.search import Index
from centerhash.serve.addresses import is_local, reachable_hosts
from centerhash.serve.background import Filling
from centerhash.serve.index import ServedIndex, UnknownId
from centerhash.serve.limits import (
    LOOPBACK,
    Busy,
    Guard,
    RateLimit,
    Settings,
    error_response,
    timeout_protocol,
)
from centerhash.serve.password import Password, PasswordGate, add_login
from centerhash.serve.routes import add_changes, add_collection, add_search, add_teaching
from centerhash.serve.schemas import Health

log = logging.getLogger("centerhash.serve")

_STATIC = Path(__file__).parent / "static"


def create_app(
    index: Index,
    settings: Settings | None = None,
    adding: Callable[[], int] | None = None,
    counted: Callable[[int], None] | None = None,
) -> FastAPI:
    """Make the application of one index, which the caller closes once the application has ended.

    `adding` returns how many images are still to be added to it, if some are. `counted` is called once with the number
    of indexed images whose files are gone.
    """
    settings = settings or Settings()
    served, registry = ServedIndex(index, settings), CollectorRegistry()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = []
        if adding is None:  # else files that are gone may yet be found
            tasks.append(asyncio.create_task(served.count_missing(counted)))
        if index.read_only:  # another process may add to it
            tasks.append(asyncio.create_task(served.keep_fresh()))
        with served.decoding():
            yield
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(served.close)

    app = FastAPI(
        title="centerhash",
        summary="Nearest images by compact binary codes.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    if settings.password is not None:
        password = Password(settings)
        app.add_middleware(PasswordGate, password=password)
        add_login(app, password)
    app.add_middleware(Guard, settings=settings, registry=registry)
    _add_handlers(app)
    add_search(app, served)
    add_collection(app, served)
    add_changes(app, served, settings)
    add_teaching(app, served, settings)
    _add_status(app, served, settings, adding)
    _add_metrics(app, served, registry)
    _add_page(app)
    return app


def _add_handlers(app: FastAPI) -> None:
    """Give all errors of `app` one shape, without traceback or path."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = "no such address: see /openapi.json." if error.detail == "Not Found" else error.detail
        return error_response(error.status_code, message, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(422, f"{first['loc'][-1]}: {first['msg']}.")

    @app.exception_handler(CenterhashError)
    async def failed(request: Request, error: CenterhashError) -> Response:
        match error:
            case Busy():
                return error_response(503, str(error), {"retry-after": "1"})
            case UnknownId():
                return error_response(404, str(error))
            case InputError() if isinstance(error, ImageError) or not isinstance(error, DataError):
                return error_response(400, str(error))
        log.error("%s %s failed: %s", request.method, request.url.path, error)  # may name files of ours
        return error_response(500, "the server failed to process this request; its log contains the reason.")


def _add_status(
    app: FastAPI, served: ServedIndex, settings: Settings, adding: Callable[[], int] | None
) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Health:
        """That the server is up, what it serves and what it accepts."""
        return Health(
            status="ok",
            index=Path(served.index.folder).name,
            size=len(served.index),
            adding=0 if adding is None else adding(),
            bits=served.index.model_info.bits,
            method=served.index.model_info.method,
            writable=settings.may_write,
            password=settings.password is not None,
            max_upload_mb=settings.max_upload_mb,
            changes=str(served.index.version),
            version=__version__,
        )


def _add_metrics(app: FastAPI, served: ServedIndex, registry: CollectorRegistry) -> None:
    size = Gauge("centerhash_index_size", "Items in the index.", registry=registry)
    size.set_function(lambda: len(served.index))
    memory = Gauge("centerhash_thumbnail_bytes", "Memory of thumbnails.", registry=registry)
    memory.set_function(lambda: served.thumbnails.size)
    queue = Gauge("centerhash_queue", "Requests that run or wait, by lane.", ["lane"], registry=registry)
    places = Gauge("centerhash_queue_places", "Their largest number, by lane.", ["lane"], registry=registry)
    for lane in served.lanes:
        queue.labels(lane.name).set_function(partial(getattr, lane, "taken"))
        places.labels(lane.name).set(lane.places)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    revalidated = {"cache-control": "no-cache"}  # by etag: a new version is seen at once

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=revalidated)

    @app.get("/api", include_in_schema=False)
    async def programs() -> FileResponse:
        return FileResponse(_STATIC / "api.html", headers=revalidated)

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def reading(settings: Settings) -> dict[str, Any]:
    """How a server's index reads images: arguments of `Index.open`."""
    pixels = int(settings.max_megapixels * 1e6)
    return {"device": settings.device, "engine": settings.engine, "max_pixels": pixels}


def serve_index(
    index: Index,
    settings: Settings,
    host: str,
    port: int,
    announce: Callable[[list[str], Index], None],
    counted: Callable[[int], None] | None = None,
    filling: Filling | None = None,
) -> None:
    """Serve an open index until SIGTERM or SIGINT; running requests are finished first.

    `announce` is called as soon as clients may connect, with its addresses and the index, and `counted` soon
    after with the number of images whose files are gone. With `filling`, images are added to it meanwhile.
    """
    settings, addresses = with_hosts(settings, host)
    with listen(host, port) as listener:
        warm_up(index)
        if (torch := sys.modules.get("torch")) is not None:  # its threads, too, share the cores
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.workers))
        app = create_app(index, settings, None if filling is None else lambda: filling.left, counted)
        number = listener.getsockname()[1]
        announce([f"http://{each}:{number}" for each in addresses], index)
        with filling or nullcontext():
            run(app, settings, listener)


def with_hosts(settings: Settings, host: str) -> tuple[Settings, list[str]]:
    """Return the settings of a server on `host` with the names that it answers to, and its addresses."""
    addresses, hosts = reachable_hosts(host), allowed_hosts(host, settings.hosts)
    return settings.model_copy(update={"hosts": hosts, "addresses": tuple(addresses)}), addresses


def warm_up(index: Index) -> None:
    """Load the network in one thread, codes and compiled loops in another: the first visitor need not wait for them."""
    with ThreadPoolExecutor(1) as pool:
        network = None
        if index.model_info.backbone is not None:
            network = pool.submit(lambda: index.encoder().engine)
        for item in islice(index.items(), 1):
            index.search(id=item.id, k=1)
    if network is not None:
        network.result()
        index.search(Image.new("RGB", (32, 32)), k=1)


def allowed_hosts(host: str, named: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a server on `host` answers to: on loopback its own and those named, elsewhere any unless named."""
    return tuple(dict.fromkeys((*LOOPBACK, *map(str.lower, named)))) if named or is_local(host) else ()


def run(app: FastAPI, settings: Settings, listener: socket.socket) -> None:
    """Run the application on an open socket until a signal stops it."""
    config = uvicorn.Config(
        app,
        http=timeout_protocol(settings.timeout, settings.connections),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout) + 5,
    )
    loop_log, rate_limit = logging.getLogger("asyncio"), RateLimit()
    loop_log.addFilter(rate_limit)
    try:
        _Server(config).run(sockets=[listener])
    finally:
        loop_log.removeFilter(rate_limit)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket; ConfigError if the address or the port is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        host.encode("idna")  # where this fails, create_server fails too, but leaves its socket open
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another `host=` or `port=`."
        ) from None
    # connections inherit it: with Nagle's algorithm the body of an answer waits 40 ms for the client's acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server, which after a graceful stop would kill its own process with the signal once more."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
