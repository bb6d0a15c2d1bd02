"""The application: its life, its routes, and errors as answers of one shape, without traceback or path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from centerhash.core.errors import CenterhashError, DataError, ImageError, InputError
from centerhash.core.version import __version__
from centerhash.serve.guard import Guard, error_response
from centerhash.serve.index import ServedIndex, UnknownId
from centerhash.serve.metrics import Metrics
from centerhash.serve.routes import add_changes, add_collection, add_files, add_search
from centerhash.serve.schemas import Health
from centerhash.serve.settings import Settings
from centerhash.serve.work import Busy

if TYPE_CHECKING:
    from centerhash.search import Index

log = logging.getLogger("centerhash.serve")

_STATIC = Path(__file__).parent / "static"


def create_app(
    index: Index,
    settings: Settings | None = None,
    adding: Callable[[], int] | None = None,
    counted: Callable[[int], None] | None = None,
) -> FastAPI:
    """The server of one index, which stays the caller's to close once the application has ended.

    `adding` says how many images are still to be added to it, where some are. `counted` is told once how many files of
    indexed images are gone.
    """
    settings = settings or Settings()
    served, metrics = ServedIndex(index, settings), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # while images are being added, files that are gone may yet be found
        told = counted or (served.warn_of_missing if adding is None else None)
        tasks = [asyncio.create_task(served.prepare(told))]
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
    app.add_middleware(Guard, settings=settings, metrics=metrics)
    _add_handlers(app)
    add_search(app, served)
    add_collection(app, served)
    add_files(app, served)
    add_changes(app, served, settings)
    _add_facts(app, served, settings, metrics, adding)
    _add_page(app)
    _describe_token(app)
    return app


def _add_handlers(app: FastAPI) -> None:
    """Make every error of `app` look the same."""

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
            case ImageError():
                return error_response(400, str(error))
            case InputError() if not isinstance(error, DataError):
                return error_response(400, str(error))
        log.error("%s %s failed: %s", request.method, request.url.path, error)  # may name files of ours
        return error_response(500, "the server could not do this; its log says why.")


def _add_facts(
    app: FastAPI, served: ServedIndex, settings: Settings, metrics: Metrics, adding: Callable[[], int] | None
) -> None:
    model = served.index.model

    @app.get("/health")
    async def health() -> Health:
        """That the server is up, what it serves and what it takes."""
        return Health(
            status="ok",
            index=Path(served.index.folder).name,
            size=len(served.index),
            adding=0 if adding is None else adding(),
            bits=served.index.model.bits,
            method=model.spec.method,
            writable=settings.may_write,
            max_upload_mb=settings.max_upload_mb,
            version=__version__,
        )

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Counters for Prometheus."""
        waiting = {f'lane="{lane.name}"': float(lane.taken) for lane in served.lanes}
        places = {f'lane="{lane.name}"': float(lane.places) for lane in served.lanes}
        gauges = {
            "centerhash_index_size": ("Items in the index.", {"": float(len(served.index))}),
            "centerhash_queue": ("Requests being worked on or waiting, by lane.", waiting),
            "centerhash_queue_places": ("How many there may be at once, by lane.", places),
            "centerhash_thumbnail_bytes": ("Memory of thumbnails.", {"": float(served.thumbnails.size)}),
        }
        return PlainTextResponse(metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    fresh = {"cache-control": "no-cache"}  # asks each time, by etag: a new version is seen at once

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=fresh)

    @app.get("/api", include_in_schema=False)
    async def programs() -> FileResponse:
        return FileResponse(_STATIC / "api.html", headers=fresh)

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def _describe_token(app: FastAPI) -> None:
    """Tell OpenAPI that changes want a bearer token; it is checked before the body is read, so not by FastAPI.

    The description is made when somebody asks for it: it takes most of the time in which the app is made.
    """
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["bearer"] = {"type": "http", "scheme": "bearer"}
        return schema

    app.openapi = described  # type: ignore[method-assign]
