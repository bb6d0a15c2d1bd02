"""The routes: what is taken out of a request, and nothing more; what the index is asked; how OpenAPI describes both."""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from centerhash.search.names import synonyms
from centerhash.serve.index import ServedIndex
from centerhash.serve.schemas import (
    Added,
    DuplicatesAnswer,
    Failure,
    FolderCount,
    FoldersAnswer,
    Item,
    ItemsAnswer,
    LabelCount,
    LabelsAnswer,
    Removed,
    SearchAnswer,
)
from centerhash.serve.settings import Settings

MAX_RESULTS = 1000
_KEEP = "private, max-age=300, stale-while-revalidate=86400"
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


class _Only(BaseModel):
    """Which items may be found."""

    having: list[str] = Field([], description="only items that carry all of these labels", max_length=32)
    without: list[str] = Field([], description="only items that carry none of these labels", max_length=32)
    under: str | None = Field(
        None, description="only images in this folder, named as `folder` of a result is"
    )


class _Search(_Only):
    """How an image is searched by."""

    k: int = Field(10, ge=1, le=MAX_RESULTS, description="how many results")
    by: Literal["both", "look", "meaning"] = Field(
        "both",
        description="what to compare: semantic and visual codes, the look alone, or the semantic code alone",
    )
    within: int | None = Field(None, ge=0, description="only results at this Hamming distance or less")


class _SearchBy(_Search):
    """A search by the id of an item, or by labels."""

    id: str | None = Field(None, description="an item of the index", examples=["9f86d081884c7d65"])
    labels: str | None = Field(
        None, description="labels, with weights if wanted", examples=["dog:0.7,bicycle:0.3"]
    )


class _Page(_Only):
    """Some of all items."""

    offset: int = Field(0, ge=0, description="how many to pass over")
    limit: int = Field(100, ge=1, le=MAX_RESULTS, description="how many to answer with")


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer with, besides 503."""
    return {status: {"model": Failure} for status in (*statuses, 503)}


def _check_token(request: Request, settings: Settings) -> None:
    """Let pass who may change the index; HTTPException 403 where nobody may, 401 without the right token."""
    if settings.read_only or settings.token is None:
        why = "is read-only" if settings.read_only else "was started without a token (CENTERHASH_TOKEN)"
        raise HTTPException(403, f"this server {why}: nothing can be added or removed.")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    expected = settings.token.get_secret_value()
    # latin-1 is how headers are decoded: this gives back the bytes that were sent
    if scheme.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode("latin-1"), expected.encode()
    ):
        raise HTTPException(
            401,
            "adding and removing needs the header 'Authorization: Bearer TOKEN'.",
            {"www-authenticate": "Bearer"},
        )


async def _read_image(request: Request) -> bytes:
    """The bytes of the form field `image` of a multipart upload; the name that comes with it is not looked at."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "send the image as multipart/form-data, in the field 'image'.")
    async with request.form(max_files=1, max_fields=4, max_part_size=1024) as form:
        upload = form.get("image")
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "the form has no file in its field 'image'.")
        return await upload.read()


def add_search(app: FastAPI, served: ServedIndex) -> None:
    """Searching."""

    @app.post("/search", openapi_extra=_UPLOAD, responses=_failures(400, 408, 413, 415))
    async def search_by_upload(request: Request, asked: Annotated[_Search, Query()]) -> SearchAnswer:
        """Search by an image, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        served.images.check()
        return await served.search(await _read_image(request), **dict(asked))

    @app.get("/search", responses=_failures(400, 404))
    async def search(asked: Annotated[_SearchBy, Query()]) -> SearchAnswer:
        """Search by the id of an item, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        if (asked.id is None) == (asked.labels is None):
            raise HTTPException(
                400, "give either id=... or labels=dog:0.7,bicycle:0.3; or send an image by POST."
            )
        return await served.search(**dict(asked))


def add_collection(app: FastAPI, served: ServedIndex) -> None:
    """What the index holds."""
    model = served.index.model

    @app.get("/items", responses=_failures(400))
    async def items(asked: Annotated[_Page, Query()]) -> ItemsAnswer:
        """The images of the index, those first whose files were modified last; for uploads this is when they came.

        Example: `curl 'http://127.0.0.1:8000/items?limit=5&having=dog'`
        """
        return await served.items(**dict(asked))

    @app.get("/items/{id:path}", responses=_failures(404))
    async def item(id: str) -> Item:
        """What is known of one image."""
        return await served.item(id)

    @app.get("/folders", responses=_failures())
    async def folders() -> FoldersAnswer:
        """The folders of the images, with the number of images in each and below it."""
        counts = (await served.codes.run(served.catalog.now)).folders
        return FoldersAnswer(
            folders=[FolderCount(folder=name, count=count) for name, count in counts.items()]
        )

    @app.get("/duplicates", responses=_failures(400))
    async def duplicates() -> DuplicatesAnswer:
        """Groups of images that are the same photo or look alike; the first question begins the search for them."""
        return await served.duplicates()

    @app.get("/labels", responses=_failures())
    async def labels() -> LabelsAnswer:
        """All labels, with the number of items that carry each."""
        counts = await served.codes.run(served.index.labels)
        centers = set(model.classes) if model.has_centers else set()
        rows = [
            LabelCount(
                label=label,
                count=counts.get(label, 0),
                center=label in centers,
                also=[word for word, meant in synonyms().items() if meant == label],
            )
            for label in dict.fromkeys((*model.classes, *counts))
        ]
        return LabelsAnswer(labels=rows)


def add_files(app: FastAPI, served: ServedIndex) -> None:
    """Thumbnails and originals. No path comes from a request, only an id."""

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=_failures(404))
    async def thumbnail(request: Request, id: str) -> Response:
        """A small WebP of an indexed image."""
        found = await served.thumbnail(id)
        headers = {"etag": found.etag, "cache-control": _KEEP}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.data, media_type=found.media_type, headers=headers)

    @app.get("/images/{id:path}", response_class=Response, responses=_failures(404))
    async def image(
        id: str, download: Annotated[bool, Query(description="to be saved rather than shown")] = False
    ) -> Response:
        """The file of an indexed image as it is, with all that it says about itself; ranges can be asked for."""
        found = await served.original(id)
        if found.data is not None:
            return Response(found.data, media_type=found.media_type, headers={"cache-control": _KEEP})
        return FileResponse(
            found.path,
            media_type=found.media_type,
            filename=found.path.name,
            content_disposition_type="attachment" if download else "inline",
            headers={"cache-control": _KEEP},
        )


def add_changes(app: FastAPI, served: ServedIndex, settings: Settings) -> None:
    """Adding and removing: only with the token, only by id."""

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
        _check_token(request, settings)
        served.changes.check()
        added, new = await served.add(await _read_image(request))
        return Added(id=added.id, labels=list(added.labels), new=new, size=len(served.index))

    @app.delete("/images/{id:path}", openapi_extra=_BEARER, responses=_failures(401, 403, 404))
    async def remove_image(request: Request, id: str) -> Removed:
        """Remove an image from the index."""
        _check_token(request, settings)
        await served.remove(id)
        return Removed(id=id, size=len(served.index))
