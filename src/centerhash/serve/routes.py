"""Routes: read the parameters of a request, call the collection, and describe both in OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response, UploadFile
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from centerhash.serve import schemas
from centerhash.serve.collection import Collection

MAX_RESULTS = 1000
# Browsers may keep an image, because its id depends on the content of its file.
_CACHED = {"cache-control": "private, max-age=86400"}


class _Filters(BaseModel):
    """The filters of items."""

    having: list[str] = Field([], description="only items that show all of these labels", max_length=32)
    without: list[str] = Field([], description="only items that show none of these labels", max_length=32)
    under: str | None = Field(None, description="only images in this folder, as in `folder` of a result")
    after: str | None = Field(None, description="only images taken since this year, month or day: 2024-06")
    before: str | None = Field(None, description="only images taken before this year, month or day")


class _Search(_Filters):
    """The parameters of all searches."""

    k: int = Field(10, ge=1, le=MAX_RESULTS, description="how many results")
    by: Literal["both", "general", "semantic"] | None = Field(None, description="codes to compare")
    within: int | None = Field(None, ge=0, description="only results at this Hamming distance or less")


class _SearchUpload(_Search):
    """The parameters of a search by an uploaded image."""

    rotations: bool = Field(False, description="also find rotated copies, which takes four times as long")


class _SearchBy(_Search):
    """The parameters of a search by the id of an item, or by labels."""

    id: str | None = Field(None, description="an item of the index", examples=["9f86d081884c7d65"])
    labels: str | None = Field(None, description="dog:0.7,bicycle:0.3, or a phrase: a dog without people")


class _Page(_Filters):
    """The parameters of a page of items."""

    offset: int = Field(0, ge=0, description="how many to skip")
    limit: int = Field(100, ge=1, le=MAX_RESULTS, description="how many to return")


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route; every route may respond with 503."""
    return {status: {"model": schemas.ErrorResponse} for status in (*statuses, 503)}


def add_routes(app: FastAPI, collection: Collection) -> None:
    """Add all routes. No path comes from a request, only an id or the name of a folder."""

    @app.post("/search", responses=_failures(400, 413, 422))
    async def search_by_upload(
        image: UploadFile, query: Annotated[_SearchUpload, Query()]
    ) -> schemas.SearchResponse:
        """Search by an image, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        data = await image.read()
        return await collection.image_pool.run(collection.search, data, **dict(query))

    @app.get("/search", responses=_failures(400, 404, 422))
    async def search(query: Annotated[_SearchBy, Query()]) -> schemas.SearchResponse:
        """Search by the id of an item, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        if (query.id is None) == (query.labels is None):
            message = "give either id=... or labels=dog:0.7,bicycle:0.3; or send an image by POST."
            raise HTTPException(400, message)
        return await collection.code_pool.run(collection.search, **dict(query))

    @app.get("/parse", responses=_failures(400))
    async def parse(
        text: Annotated[str, Query(description="a dog on a couch without people")],
    ) -> schemas.ParsedQueryResponse:
        """Parse a text query into labels, excluded labels and unknown words, without searching.

        Example: `curl 'http://127.0.0.1:8000/parse?text=dog+without+person'`
        """
        return await collection.code_pool.run(collection.parse, text)

    @app.get("/items", responses=_failures(400, 422))
    async def items(query: Annotated[_Page, Query()]) -> schemas.ItemsResponse:
        """Return items of the index; images in the order in which they were taken, the last first.

        Example: `curl 'http://127.0.0.1:8000/items?limit=5&having=dog'`
        """
        return await collection.code_pool.run(collection.items, **dict(query))

    @app.get("/counts", responses=_failures(400))
    async def counts(query: Annotated[_Filters, Query()]) -> schemas.CountsResponse:
        """Count the items that a further filter by each label or folder would leave.

        Example: `curl 'http://127.0.0.1:8000/counts?having=dog'`
        """
        return await collection.code_pool.run(collection.counts, **dict(query))

    @app.get("/items/{id:path}", responses=_failures(404))
    async def item(id: str) -> schemas.ItemResponse:
        """Return one item."""
        return await collection.code_pool.run(collection.item, id)

    @app.get("/duplicates", responses=_failures(400))
    async def duplicates() -> schemas.DuplicatesResponse:
        """Return groups of images that are the same photo or look alike; the first request starts the search for them."""
        return await collection.code_pool.run(collection.duplicates)

    @app.get("/labels", responses=_failures())
    async def labels() -> schemas.LabelsResponse:
        """Return all labels, with the number of items that carry each."""
        return await collection.code_pool.run(collection.labels)

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=_failures(404))
    async def thumbnail(id: str) -> Response:
        """Return a small WebP of an indexed image."""
        data = await collection.thumbnail_pool.run(collection.thumbnail, id)
        return Response(data, media_type="image/webp", headers=_CACHED)

    @app.get("/previews/{id:path}", response_class=Response, responses=_failures(404))
    async def preview(id: str) -> Response:
        """Return a large WebP of an indexed image, for formats that browsers do not show, such as HEIC."""
        data = await collection.thumbnail_pool.run(collection.preview, id)
        return Response(data, media_type="image/webp", headers=_CACHED)

    @app.get("/images/{id:path}", response_class=Response, responses=_failures(404))
    async def image(
        id: str, download: Annotated[bool, Query(description="to be saved rather than shown")] = False
    ) -> Response:
        """Return the unchanged file of an indexed image, with its metadata; ranges are supported."""
        path, media_type = await collection.thumbnail_pool.run(collection.original, id)
        return FileResponse(
            path,
            media_type=media_type,
            filename=path.name,
            content_disposition_type="attachment" if download else "inline",
            headers=_CACHED,
        )
