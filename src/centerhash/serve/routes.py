"""The routes: read the parameters of a request, call the index, describe both in OpenAPI."""

from __future__ import annotations

import hmac
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from centerhash.serve import schemas
from centerhash.serve.index import ServedIndex, Thumbnail
from centerhash.serve.limits import Settings

MAX_RESULTS = 1000
_KEEP = "private, max-age=300, stale-while-revalidate=86400"
_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "string", "format": "binary"}},
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}
_BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # errors are ours


class _Only(BaseModel):
    """Which items pass."""

    having: list[str] = Field([], description="only items that show all of these labels", max_length=32)
    without: list[str] = Field([], description="only items that show none of these labels", max_length=32)
    named: list[str] = Field(
        [], description="only images with these words in the name of their file or folders", max_length=32
    )
    under: str | None = Field(None, description="only images in this folder, as in `folder` of a result")
    after: str | None = Field(
        None,
        description="only images taken on or after the first day of this year, month or day",
        examples=["2024-06"],
    )
    before: str | None = Field(
        None,
        description="only images taken before the first day of this year, month or day",
        examples=["2024-06-01"],
    )
    camera: str | None = Field(None, description="only images of cameras whose name contains this text")


class _Search(_Only):
    """How an image is searched by."""

    k: int = Field(10, ge=1, le=MAX_RESULTS, description="how many results")
    by: Literal["both", "visual", "semantic"] = Field(
        "both",
        description="codes to compare: semantic and visual, visual alone, or semantic alone",
    )
    within: int | None = Field(None, ge=0, description="only results at this Hamming distance or less")


class _SearchUpload(_Search):
    """A search by an image that is sent."""

    rotations: bool = Field(
        False, description="also find rotated copies of the image, which takes four times as long"
    )


class _SearchBy(_Search):
    """A search by the id of an item, or by labels."""

    id: str | None = Field(None, description="an item of the index", examples=["9f86d081884c7d65"])
    labels: str | None = Field(
        None,
        description="labels with optional weights, or a phrase in one of ten languages",
        examples=["dog:0.7,bicycle:0.3", "a dog on a couch without person"],
    )


class _Page(_Only):
    """Some of all items."""

    offset: int = Field(0, ge=0, description="how many to skip")
    limit: int = Field(100, ge=1, le=MAX_RESULTS, description="how many to return")


Parameters = TypeVar("Parameters", bound=_Only)


def _read_query(request: Request, model: type[Parameters]) -> Parameters:
    """Read the parameters of a request; RequestValidationError for the first that is wrong.

    FastAPI can read such a model too, but that takes more than a quarter of the event loop's time for a search.
    """
    given = request.query_params
    values = {
        name: given.getlist(name) if is_list else given[name]
        for name, is_list in _parameters(model)
        if name in given
    }
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


@cache
def _parameters(model: type[BaseModel]) -> list[tuple[str, bool]]:
    """The names of a model's parameters, and whether each is a list."""
    return [(name, isinstance(field.default, list)) for name, field in model.model_fields.items()]


def _described(model: type[BaseModel]) -> dict[str, Any]:
    """The parameters that `_read_query` reads, for OpenAPI."""
    fields = model.model_json_schema()["properties"].items()
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": schema, "description": schema["description"]}
            for name, schema in fields
        ]
    }


def _json(answer: BaseModel) -> Response:
    """An answer that is complete: FastAPI would check it a second time."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer with, besides 503."""
    return {status: {"model": schemas.Failure} for status in (*statuses, 503)}


async def _read_image(request: Request) -> tuple[bytes, str]:
    """Read the form field `image` of a multipart upload, and its file name."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "send the image as multipart/form-data, in the field 'image'.")
    async with request.form(max_files=1, max_fields=4, max_part_size=1024) as form:
        upload = form.get("image")
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "the form has no file in its field 'image'.")
        return await upload.read(), upload.filename or ""


def add_search(app: FastAPI, served: ServedIndex) -> None:
    """Add the searches."""

    @app.post(
        "/search",
        openapi_extra=_UPLOAD | _described(_SearchUpload),
        response_model=schemas.SearchAnswer,
        responses=_failures(400, 408, 413, 415, 422),
    )
    async def search_by_upload(request: Request) -> Response:
        """Search by an image, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        query = _read_query(request, _SearchUpload)
        served.images.check()
        data, _ = await _read_image(request)
        return _json(await served.images.run(partial(served.search, data, **dict(query))))

    @app.get(
        "/search",
        openapi_extra=_described(_SearchBy),
        response_model=schemas.SearchAnswer,
        responses=_failures(400, 404, 422),
    )
    async def search(request: Request) -> Response:
        """Search by the id of an item, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        query = _read_query(request, _SearchBy)
        if (query.id is None) == (query.labels is None):
            message = "give either id=... or labels=dog:0.7,bicycle:0.3; or send an image by POST."
            raise HTTPException(400, message)
        return _json(await served.codes.run(partial(served.search, **dict(query))))

    @app.get("/typed", responses=_failures(400))
    async def typed(
        text: Annotated[
            str, Query(description="what a person typed", examples=["dog on a couch without people"])
        ],
    ) -> schemas.TypedAnswer:
        """Read a text as labels, filters and unknown words, without searching.

        Example: `curl 'http://127.0.0.1:8000/typed?text=dog+without+person'`
        """
        return await served.codes.run(partial(served.read, text))


def _small(request: Request, found: Thumbnail) -> Response:
    """A thumbnail, or that the client has it already."""
    headers = {"etag": found.etag, "cache-control": _KEEP}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.data, media_type="image/webp", headers=headers)


def add_collection(app: FastAPI, served: ServedIndex) -> None:
    """Add what the index holds. No path comes from a request, only an id or the name of a folder."""

    @app.get(
        "/items",
        openapi_extra=_described(_Page),
        response_model=schemas.ItemsAnswer,
        responses=_failures(400, 422),
    )
    async def items(request: Request) -> Response:
        """The images of the index, those first that were taken last.

        Example: `curl 'http://127.0.0.1:8000/items?limit=5&having=dog'`
        """
        query = _read_query(request, _Page)
        return _json(await served.codes.run(partial(served.items, **dict(query))))

    @app.get("/months", responses=_failures(400))
    async def months(query: Annotated[_Only, Query()]) -> schemas.MonthsAnswer:
        """The months in which images that pass the filters were taken, with their number.

        Example: `curl 'http://127.0.0.1:8000/months?having=dog'`
        """
        return await served.codes.run(partial(served.months, **dict(query)))

    @app.get("/counts", responses=_failures(400))
    async def counts(query: Annotated[_Only, Query()]) -> schemas.CountsAnswer:
        """How many of the images that pass the filters a further filter by each label, camera or folder would leave.

        Example: `curl 'http://127.0.0.1:8000/counts?having=dog'`
        """
        return await served.codes.run(partial(served.counts, **dict(query)))

    @app.get("/cameras", responses=_failures())
    async def cameras() -> schemas.CamerasAnswer:
        """The cameras, with the number of images of each."""
        return await served.codes.run(served.cameras)

    @app.get("/items/{id:path}", responses=_failures(404))
    async def item(id: str) -> schemas.Item:
        """One image."""
        return await served.codes.run(lambda: served.item(id))

    @app.get("/folders", responses=_failures())
    async def folders() -> schemas.FoldersAnswer:
        """The folders of the images, with the number of images in each and below it."""
        counts = (await served.codes.run(served.folders)).counts
        rows = [schemas.FolderCount(folder=name, count=count) for name, count in counts.items()]
        return schemas.FoldersAnswer(folders=rows)

    @app.get("/duplicates", responses=_failures(400))
    async def duplicates() -> schemas.DuplicatesAnswer:
        """Groups of images that are the same photo or look alike; the first request starts the search for them."""
        return await served.codes.run(served.duplicates)

    @app.get("/labels", responses=_failures())
    async def labels() -> schemas.LabelsAnswer:
        """All labels, with the number of items that carry each."""
        return await served.codes.run(served.labels)

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=_failures(404))
    async def thumbnail(request: Request, id: str) -> Response:
        """A small WebP of an indexed image."""
        return _small(request, await served.small.run(lambda: served.thumbnail(id)))

    @app.get("/previews/{id:path}", response_class=Response, responses=_failures(404))
    async def preview(request: Request, id: str) -> Response:
        """A large WebP of an indexed image, for formats that browsers do not show, such as HEIC."""
        return _small(request, await served.small.run(lambda: served.preview(id)))

    @app.get("/images/{id:path}", response_class=Response, responses=_failures(404))
    async def image(
        id: str, download: Annotated[bool, Query(description="to be saved rather than shown")] = False
    ) -> Response:
        """The file of an indexed image unchanged, with its metadata; supports ranges."""
        path, media_type, data = await served.small.run(lambda: served.original(id))
        if data is not None:
            return Response(data, media_type=media_type, headers={"cache-control": _KEEP})
        return FileResponse(
            path,
            media_type=media_type,
            filename=path.name,
            content_disposition_type="attachment" if download else "inline",
            headers={"cache-control": _KEEP},
        )


def _needs_token(settings: Settings) -> list[Any]:
    """Return the dependencies of a route that changes the index; they are checked before the body is read."""

    async def check_token(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if settings.read_only or settings.token is None:
            why = "is read-only" if settings.read_only else "was started without a token (CENTERHASH_TOKEN)"
            raise HTTPException(403, f"this server {why}: nothing can be added or removed.")
        # latin-1 is how headers are decoded: this gives back the bytes that were sent
        brought = None if given is None else given.credentials.strip().encode("latin-1")
        if not brought or not hmac.compare_digest(brought, settings.token.get_secret_value().encode()):
            message = "adding and removing needs the header 'Authorization: Bearer TOKEN'."
            raise HTTPException(401, message, {"www-authenticate": "Bearer"})

    return [Depends(check_token)]


def add_changes(app: FastAPI, served: ServedIndex, settings: Settings) -> None:
    """Add the changes: only with the token, only by id."""
    checked = _needs_token(settings)

    @app.post(
        "/images",
        status_code=201,
        dependencies=checked,
        openapi_extra=_UPLOAD,
        responses=_failures(400, 401, 403, 408, 413, 415),
    )
    async def add_image(request: Request) -> schemas.Added:
        """Add an image, sent as the form field `image`; once answered, it is stored durably.

        Example: `curl -F image=@photo.jpg -H "Authorization: Bearer $CENTERHASH_TOKEN" http://127.0.0.1:8000/images`
        """
        served.changes.check()
        data, name = await _read_image(request)
        return await served.changes.run(lambda: served.add(data, name))

    @app.get("/token", status_code=204, dependencies=checked, responses=_failures(401, 403))
    async def token() -> None:
        """Check the token without changing anything."""

    @app.post("/duplicates/move", dependencies=checked, responses=_failures(400, 401, 403))
    async def move_duplicates(files: schemas.DuplicateMove) -> schemas.DuplicatesMoved:
        """Move files of one group of duplicates to the folder of `serve --duplicates-to`, with their sidecar files."""
        return await served.changes.run(lambda: served.move_duplicates(files))

    @app.post("/duplicates/undo", dependencies=checked, responses=_failures(400, 401, 403))
    async def undo_duplicates() -> schemas.DuplicatesMoved:
        """Move the files of the last move back to where they were."""
        return await served.changes.run(served.undo_duplicates)

    @app.delete("/images/{id:path}", dependencies=checked, responses=_failures(401, 403, 404))
    async def remove_image(id: str) -> schemas.Removed:
        """Remove an image from the index."""
        return await served.changes.run(lambda: served.remove(id))


def add_teaching(app: FastAPI, served: ServedIndex, settings: Settings) -> None:
    """Add taught labels: their examples are ids, and changes need the token."""
    checked = _needs_token(settings)

    @app.get("/taught", responses=_failures())
    async def taught() -> schemas.TaughtAnswer:
        """The labels that were taught by examples."""
        return await served.codes.run(served.taught)

    @app.get("/suggestions", responses=_failures(400))
    async def suggestions(
        name: Annotated[str, Query(description="a taught label", examples=["Bella"])],
        k: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many")] = 12,
    ) -> schemas.SuggestionsAnswer:
        """Images to confirm or reject as further examples: the likeliest, and the most uncertain."""
        return await served.codes.run(lambda: served.suggest(name, k))

    @app.post("/taught", dependencies=checked, responses=_failures(400, 401, 403, 404))
    async def teach(teaching: schemas.Teaching) -> schemas.TaughtLabel:
        """Teach a label by images of the index that show it or do not; further examples improve it.

        Example: `curl -H "Authorization: Bearer $CENTERHASH_TOKEN" -H 'Content-Type: application/json'
        -d '{"name": "Bella", "like": ["9f86d081884c7d65"]}' http://127.0.0.1:8000/taught`
        """
        return await served.changes.run(lambda: served.teach(teaching))

    @app.patch("/taught", dependencies=checked, responses=_failures(400, 401, 403))
    async def rename(renaming: schemas.Renaming) -> schemas.TaughtAnswer:
        """Rename a taught label."""
        return await served.changes.run(lambda: served.rename_taught(renaming))

    @app.delete("/taught", dependencies=checked, responses=_failures(400, 401, 403))
    async def forget(name: Annotated[str, Query(description="a taught label")]) -> schemas.TaughtAnswer:
        """Remove a taught label; the images that carried it stay."""
        return await served.changes.run(lambda: served.forget(name))
