"""The application: routes that read a request, ask the index, and shape the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from centerhash.core.version import __version__
from centerhash.serve.failures import add_handlers
from centerhash.serve.guard import Guard
from centerhash.serve.index import ServedIndex
from centerhash.serve.metrics import Metrics
from centerhash.serve.requests import check_token, read_image
from centerhash.serve.schemas import (
    Added,
    Failure,
    Health,
    LabelCount,
    LabelsAnswer,
    Removed,
    SearchAnswer,
)
from centerhash.serve.settings import Settings

if TYPE_CHECKING:
    from centerhash.search import Index, Results

MAX_RESULTS = 1000
_STATIC = Path(__file__).parent / "static"

K = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many results")]
Having = Annotated[
    list[str] | None, Query(description="only items that carry all of these labels", max_length=32)
]
Without = Annotated[
    list[str] | None, Query(description="only items that carry none of these labels", max_length=32)
]
Under = Annotated[str | None, Query(description="only images in this folder of the server's machine")]
By = Annotated[
    Literal["both", "look", "meaning"],
    Query(
        description="what to compare: semantic and visual codes, the look alone, or the semantic code alone"
    ),
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


def create_app(
    index: Index, settings: Settings | None = None, adding: Callable[[], int] | None = None
) -> FastAPI:
    """The server of one index, which stays the caller's to close once the application has ended.

    `adding` says how many images are still to be added to it, where some are.
    """
    settings = settings or Settings()
    served, metrics = ServedIndex(index, settings), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = []
        if adding is None:  # else files that are gone may yet be found
            tasks.append(asyncio.create_task(served.count_missing()))
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
    add_handlers(app)
    _add_search(app, served)
    _add_changes(app, served, settings)
    _add_facts(app, served, settings, metrics, adding)
    _add_page(app)
    _describe_token(app)
    return app


def _add_search(app: FastAPI, served: ServedIndex) -> None:
    @app.post("/search", openapi_extra=_UPLOAD, responses=_failures(400, 408, 413, 415))
    async def search_by_upload(
        request: Request,
        k: K = 10,
        by: By = "both",
        having: Having = None,
        without: Without = None,
        under: Under = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by an image, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        served.images.check()
        image = await read_image(request)
        only: dict[str, Any] = {
            "having": having or (),
            "without": without or (),
            "under": under,
            "within": within,
        }
        return _shaped(await served.search(image, k=k, by=by, **only))

    @app.get("/search", responses=_failures(400, 404))
    async def search(
        id: Annotated[
            str | None, Query(description="an item of the index", examples=["9f86d081884c7d65"])
        ] = None,
        labels: Annotated[
            str | None, Query(description="labels, with weights if wanted", examples=["dog:0.7,bicycle:0.3"])
        ] = None,
        k: K = 10,
        by: By = "both",
        having: Having = None,
        without: Without = None,
        under: Under = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by the id of an item, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        if (id is None) == (labels is None):
            raise HTTPException(
                400, "give either id=... or labels=dog:0.7,bicycle:0.3; or send an image by POST."
            )
        only: dict[str, Any] = {
            "having": having or (),
            "without": without or (),
            "under": under,
            "within": within,
        }
        return _shaped(await served.search(id=id, labels=labels, k=k, by=by, **only))


def _shaped(results: Results) -> SearchAnswer:
    """The same as on the command line, but for the folders of this machine, which are nobody's business."""
    shaped = results.to_dict()
    for row in shaped["results"]:
        row["path"] = None if row["path"] is None else Path(row["path"]).name
    return SearchAnswer.model_validate(shaped)


def _add_changes(app: FastAPI, served: ServedIndex, settings: Settings) -> None:
    @app.post(
        "/images",
        status_code=201,
        openapi_extra=_UPLOAD | _BEARER,
        responses=_failures(400, 401, 403, 408, 413, 415),
    )
    async def add_image(request: Request) -> Added:
        """Add an image, sent as the form field `image`; once answered, it is stored durably.

        Example: `curl -F image=@photo.jpg -H "Authorization: Bearer $CENTERHASH_TOKEN" http://127.0.0.1:8000/images`
        """
        check_token(request, settings)
        served.changes.check()
        image = await read_image(request)
        added = await served.add(image)
        return Added(id=added.id, labels=list(added.labels), size=len(served.index))

    @app.delete("/images/{id:path}", openapi_extra=_BEARER, responses=_failures(401, 403, 404))
    async def remove_image(request: Request, id: str) -> Removed:
        """Remove an image from the index."""
        check_token(request, settings)
        await served.remove(id)
        return Removed(id=id, size=len(served.index))


def _add_facts(
    app: FastAPI, served: ServedIndex, settings: Settings, metrics: Metrics, adding: Callable[[], int] | None
) -> None:
    model = served.index.model

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=_failures(404))
    async def thumbnail(request: Request, id: str) -> Response:
        """A small WebP of an indexed image."""
        found = await served.thumbnail(id)
        headers = {"etag": found.etag, "cache-control": "private, max-age=300, stale-while-revalidate=86400"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.data, media_type=found.media_type, headers=headers)

    @app.get("/labels", responses=_failures())
    async def labels() -> LabelsAnswer:
        """All labels, with the number of items that carry each."""
        counts = await served.labels()
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

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")


def _describe_token(app: FastAPI) -> None:
    """Tell OpenAPI that changes want a bearer token; it is checked before the body is read, so not by FastAPI."""
    described = app.openapi()
    schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer"}
