"""Routes that change the index: only with the token, only by id."""

from __future__ import annotations

from fastapi import FastAPI, Request

from centerhash.serve.described import BEARER, UPLOAD, failures
from centerhash.serve.index import ServedIndex
from centerhash.serve.requests import check_token, read_image
from centerhash.serve.schemas import Added, Removed
from centerhash.serve.settings import Settings


def add_changes(app: FastAPI, served: ServedIndex, settings: Settings) -> None:
    """Adding and removing."""

    @app.post(
        "/images",
        status_code=201,
        openapi_extra=UPLOAD | BEARER,
        responses=failures(400, 401, 403, 408, 413, 415),
    )
    async def add_image(request: Request) -> Added:
        """Add an image, sent as the form field `image`; once answered, it is stored durably.

        Example: `curl -F image=@photo.jpg -H "Authorization: Bearer $CENTERHASH_TOKEN" http://127.0.0.1:8000/images`
        """
        check_token(request, settings)
        served.changes.check()
        image = await read_image(request)
        added, new = await served.add(image)
        return Added(id=added.id, labels=list(added.labels), new=new, size=len(served.index))

    @app.delete("/images/{id:path}", openapi_extra=BEARER, responses=failures(401, 403, 404))
    async def remove_image(request: Request, id: str) -> Removed:
        """Remove an image from the index."""
        check_token(request, settings)
        await served.remove(id)
        return Removed(id=id, size=len(served.index))
