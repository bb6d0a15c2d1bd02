"""The application of one index, and the process that serves it until a signal stops it.

app = create_app(PhotoIndex.open("photos.index", read_only=True), Settings())
CENTERHASH_INDEX=photos.index CENTERHASH_PASSWORD=... uvicorn --factory centerhash.serve:create_app --workers 4
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image
from starlette.exceptions import HTTPException

from centerhash.core.errors import CenterhashError, ConfigError, DataError, ImageError, InputError
from centerhash.core.version import __version__
from centerhash.index import Index
from centerhash.photos import PhotoIndex, is_photo_index
from centerhash.serve.background import BackgroundSync
from centerhash.serve.collection import Collection, UnknownId
from centerhash.serve.limits import Busy, LimitsMiddleware, error_response
from centerhash.serve.login import add_login
from centerhash.serve.routes import add_routes
from centerhash.serve.schemas import HealthResponse
from centerhash.serve.settings import Settings, address_of, check_public, listen

log = logging.getLogger("centerhash.serve")

_STATIC = Path(__file__).parent / "static"


def create_app(
    served: PhotoIndex | Index | None = None,
    settings: Settings | None = None,
    adding: Callable[[], int] | None = None,
) -> FastAPI:
    """Create the application of one index, which the caller closes after the application has ended.

    `adding` returns how many images are still to be added to the index. Without arguments, the index of
    the folder CENTERHASH_INDEX is opened read-only, and the settings come from the environment.
    """
    settings = settings or (Settings.from_environment() if served is None else Settings())
    served = _index_of_environment(settings) if served is None else served
    collection = Collection(served, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(collection.close)

    app = FastAPI(
        title="centerhash",
        summary="Nearest images by compact binary codes.",
        version=__version__,
        lifespan=lifespan,
        # FastAPI's pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    if settings.password is not None:
        add_login(app, settings.password)
    app.add_middleware(LimitsMiddleware, settings=settings)
    _add_handlers(app)
    add_routes(app, collection)
    _add_health(app, collection, settings, adding or (lambda: 0))
    _add_page(app, has_photos=collection.photos is not None)
    return app


def _index_of_environment(settings: Settings) -> PhotoIndex | Index:
    folder = os.environ.get("CENTERHASH_INDEX")
    if not folder:
        raise ConfigError("there is no index to serve: set CENTERHASH_INDEX to its folder.")
    if settings.password is None:
        raise ConfigError(
            "other machines may reach this server, so it needs a password: set CENTERHASH_PASSWORD."
        )
    served = open_index(Path(folder), settings)
    warm_up(served)
    return served


def open_index(folder: Path, settings: Settings) -> PhotoIndex | Index:
    """Open an index of photos, or of codes alone, for reading."""
    if is_photo_index(folder):
        return PhotoIndex.open(folder, read_only=True, **settings.encoding)
    return Index.open(folder, read_only=True, **settings.encoding)


def _add_handlers(app: FastAPI) -> None:
    """Respond to all errors in one shape, without traceback or path."""

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
        if isinstance(error, Busy):
            return error_response(503, str(error), {"retry-after": "1"})
        if isinstance(error, UnknownId):
            return error_response(404, str(error))
        if isinstance(error, ImageError) or (
            isinstance(error, InputError) and not isinstance(error, DataError)
        ):
            return error_response(400, str(error))
        # The text of other errors may contain a path of this machine.
        log.error("%s %s failed: %s", request.method, request.url.path, error)
        return error_response(500, "the server failed to process this request; its log contains the reason.")


def _add_health(app: FastAPI, collection: Collection, settings: Settings, adding: Callable[[], int]) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> HealthResponse:
        """Return the state of the server, and the index and limits that it serves with."""
        index = collection.index
        return HealthResponse(
            status="ok",
            index=index.folder.name,
            size=len(index),
            adding=adding(),
            bits=index.bits,
            method=index.facts.method,
            password=settings.password is not None,
            max_upload_mb=settings.max_upload_mb,
            changes=str(index.version),
            version=__version__,
        )


def _add_page(app: FastAPI, *, has_photos: bool) -> None:
    """Add the page for people and the one for programs; an index of codes alone has only the latter."""
    # Browsers revalidate the page by its etag, so that a new version appears at once.
    revalidated = {"cache-control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / ("index.html" if has_photos else "api.html"), headers=revalidated)

    @app.get("/api", include_in_schema=False)
    async def programs() -> FileResponse:
        return FileResponse(_STATIC / "api.html", headers=revalidated)

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def serve_index(
    served: PhotoIndex | Index,
    settings: Settings,
    host: str,
    port: int,
    announce: Callable[[str], None],
    syncing: BackgroundSync | None = None,
    *,
    log_requests: bool = False,
) -> None:
    """Serve an open index until SIGTERM or SIGINT; running requests are finished first.

    `announce` is called with the address as soon as clients may connect. With `syncing`, images are added meanwhile.
    """
    check_public(settings, host)
    with listen(host, port) as listener:
        warm_up(served)
        app = create_app(served, settings, None if syncing is None else lambda: syncing.remaining)
        config = uvicorn.Config(
            app,
            ws="none",
            log_level="info" if log_requests else "warning",
            access_log=log_requests,
            server_header=False,
            timeout_graceful_shutdown=30,
        )
        announce(address_of(host, listener.getsockname()[1]))
        with syncing or nullcontext():
            _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server of uvicorn that does not send the signal to its own process again after a graceful stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def warm_up(served: PhotoIndex | Index) -> None:
    """Load codes, compiled loops and the network, so that the first request does not wait for them."""
    index = served.index if isinstance(served, PhotoIndex) else served
    for item in islice(index.items(), 1):
        index.search(id=item.id, k=1)
    if isinstance(served, PhotoIndex):
        served.search(Image.new("RGB", (32, 32)), k=1, rotations=False)
