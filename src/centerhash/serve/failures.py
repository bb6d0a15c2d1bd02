"""Errors as answers: one shape, no traceback, no path of this machine."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from centerhash.core.errors import CenterhashError, DataError, ImageError, InputError
from centerhash.serve.guard import error_response
from centerhash.serve.index import UnknownId
from centerhash.serve.work import Busy

log = logging.getLogger("centerhash.serve")


def add_handlers(app: FastAPI) -> None:
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
