"""Routes that send images: small ones, and the files themselves. No path comes from a request, only an id."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse

from centerhash.serve.described import failures
from centerhash.serve.index import ServedIndex

_KEEP = "private, max-age=300, stale-while-revalidate=86400"


def add_files(app: FastAPI, served: ServedIndex) -> None:
    """Thumbnails and originals."""

    @app.get("/thumbnails/{id:path}", response_class=Response, responses=failures(404))
    async def thumbnail(request: Request, id: str) -> Response:
        """A small WebP of an indexed image."""
        found = await served.thumbnail(id)
        headers = {"etag": found.etag, "cache-control": _KEEP}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.data, media_type=found.media_type, headers=headers)

    @app.get("/images/{id:path}", response_class=Response, responses=failures(404))
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
