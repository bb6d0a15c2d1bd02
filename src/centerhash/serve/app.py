"""The application: routes that read a request, ask the library, and shape the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from centerhash.core.version import __version__
from centerhash.serve.failures import add_handlers
from centerhash.serve.guard import Guard
from centerhash.serve.library import Library
from centerhash.serve.metrics import Metrics
from centerhash.serve.requests import check_token, read_picture
from centerhash.serve.schemas import (
    Added,
    Failure,
    Health,
    LabelCount,
    LabelsAnswer,
    Removed,
    Result,
    SearchAnswer,
    Weighted,
)
from centerhash.serve.settings import Settings

if TYPE_CHECKING:
    from centerhash.search import Answer, Collection

MAX_RESULTS = 1000
_STATIC = Path(__file__).parent / "static"

K = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many results")]
Labels = Annotated[
    list[str] | None, Query(description="only pictures that carry all of these", max_length=32)
]
Within = Annotated[int | None, Query(ge=0, description="only results at this Hamming distance or less")]
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
_BEARER: dict[str, Any] = {"security": [{"bearer": []}]}


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Failure} for status in (*statuses, 503)}


def create_app(collection: Collection, settings: Settings | None = None) -> FastAPI:
    """The server of one collection, which stays the caller's to close once the application has ended."""
    settings = settings or Settings()
    library, metrics = Library(collection, settings), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refresher = None if settings.may_write else asyncio.create_task(library.keep_fresh())
        yield
        if refresher is not None:
            refresher.cancel()
            with suppress(asyncio.CancelledError):
                await refresher
        await asyncio.to_thread(library.close)

    app = FastAPI(
        title="centerhash",
        summary="Nearest pictures by compact binary codes.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, settings=settings, metrics=metrics)
    add_handlers(app)
    _add_search(app, library)
    _add_changes(app, library, settings)
    _add_facts(app, library, settings, metrics)
    _add_page(app)
    _describe_token(app)
    return app


def _add_search(app: FastAPI, library: Library) -> None:
    @app.post("/search", openapi_extra=_UPLOAD, responses=_failures(400, 408, 413, 415))
    async def search_by_upload(
        request: Request,
        k: K = 10,
        label: Labels = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by a picture, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        library.pictures.check()
        picture = await read_picture(request)
        return _shaped(library, await library.by_image(picture, k, label or (), within))

    @app.get("/search", responses=_failures(400, 404))
    async def search(
        id: Annotated[
            str | None, Query(description="a picture of the index", examples=["9f86d081884c7d65"])
        ] = None,
        labels: Annotated[
            str | None, Query(description="labels, with weights if wanted", examples=["dog:0.7,bicycle:0.3"])
        ] = None,
        k: K = 10,
        label: Labels = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by the id of an indexed picture, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        if id is not None and labels is None:
            return _shaped(library, await library.by_id(id, k, label or (), within))
        if labels is not None and id is None:
            return _shaped(library, await library.by_labels(labels, k, label or (), within))
        raise HTTPException(
            400, "give either id=... or labels=dog:0.7,bicycle:0.3; or send a picture by POST."
        )


def _shaped(library: Library, answer: Answer) -> SearchAnswer:
    return SearchAnswer(
        labels=[Weighted.model_validate(row, from_attributes=True) for row in answer.labels],
        results=[
            Result(
                id=found.id,
                name=None if found.path is None else Path(found.path).name,
                distance=found.distance,
                labels=list(found.labels),
            )
            for found in answer.found
        ],
        bits=library.collection.index.bits,
        size=library.size,
    )


def _add_changes(app: FastAPI, library: Library, settings: Settings) -> None:
    @app.post(
        "/images",
        status_code=201,
        openapi_extra=_UPLOAD | _BEARER,
        responses=_failures(400, 401, 403, 408, 413, 415),
    )
    async def add_image(request: Request) -> Added:
        """Add a picture, sent as the form field `image`; once answered, it is stored for good.

        Example: `curl -F image=@photo.jpg -H "Authorization: Bearer $CENTERHASH_TOKEN" http://127.0.0.1:8000/images`
        """
        check_token(request, settings)
        library.changes.check()
        picture = await read_picture(request)
        added = await library.add(picture)
        return Added(id=added.id, labels=list(added.labels), size=library.size)

    @app.delete("/images/{id:path}", openapi_extra=_BEARER, responses=_failures(401, 403, 404))
    async def remove_image(request: Request, id: str) -> Removed:
        """Remove a picture from the index."""
        check_token(request, settings)
        await library.remove(id)
        return Removed(id=id, size=library.size)


def _add_facts(app: FastAPI, library: Library, settings: Settings, metrics: Metrics) -> None:
    model = library.collection.model

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=_failures(404))
    async def thumbnail(request: Request, id: str) -> Response:
        """A small WebP of an indexed picture."""
        found = await library.thumbnail(id)
        headers = {"etag": found.etag, "cache-control": "private, max-age=300, stale-while-revalidate=86400"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.data, media_type=found.media_type, headers=headers)

    @app.get("/labels", responses=_failures())
    async def labels() -> LabelsAnswer:
        """All labels, with the number of pictures that carry each."""
        counts = await library.labels()
        centers = set(model.classes) if model.has_centers else set()
        rows = [
            LabelCount(label=label, count=counts.get(label, 0), center=label in centers)
            for label in dict.fromkeys((*model.classes, *counts))
        ]
        return LabelsAnswer(labels=rows)

    @app.get("/health")
    async def health() -> Health:
        """That the server is up, what it serves and what it takes."""
        return Health(
            status="ok",
            index=Path(library.collection.folder).name,
            size=library.size,
            bits=library.collection.index.bits,
            method=model.spec.method,
            writable=settings.may_write,
            max_upload_mb=settings.max_upload_mb,
            version=__version__,
        )

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> PlainTextResponse:
        """Counters for Prometheus."""
        waiting = {f'lane="{lane.name}"': float(lane.taken) for lane in library.lanes}
        places = {f'lane="{lane.name}"': float(lane.places) for lane in library.lanes}
        gauges = {
            "centerhash_index_size": ("Pictures in the index.", {"": float(library.size)}),
            "centerhash_queue": ("Requests being worked on or waiting, by lane.", waiting),
            "centerhash_queue_places": ("How many there may be at once, by lane.", places),
            "centerhash_thumbnail_bytes": ("Memory of thumbnails.", {"": float(library.thumbnails.size)}),
        }
        return PlainTextResponse(metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    fresh = {"cache-control": "no-cache"}  # asks each time, by etag: a new version is seen at once

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=fresh)

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def _describe_token(app: FastAPI) -> None:
    """Tell OpenAPI that changes want a bearer token; it is checked before the body is read, so not by FastAPI."""
    described = app.openapi()
    schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer"}
