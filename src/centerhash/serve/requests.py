"""What is taken out of a request, and nothing more: an image's bytes, and a token."""

from __future__ import annotations

import hmac

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from centerhash.serve.settings import Settings


def check_token(request: Request, settings: Settings) -> None:
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


async def read_image(request: Request) -> bytes:
    """The bytes of the form field `image` of a multipart upload; the name that comes with it is not looked at."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "send the image as multipart/form-data, in the field 'image'.")
    async with request.form(max_files=1, max_fields=4, max_part_size=1024) as form:
        upload = form.get("image")
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "the form has no file in its field 'image'.")
        return await upload.read()
