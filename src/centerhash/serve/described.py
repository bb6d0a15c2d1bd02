"""How OpenAPI describes what the schemas cannot: uploads, the token, errors."""

from __future__ import annotations

from typing import Any

from centerhash.serve.schemas import Failure

UPLOAD: dict[str, Any] = {
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
BEARER: dict[str, Any] = {"security": [{"bearer": []}]}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer with, besides 503."""
    return {status: {"model": Failure} for status in (*statuses, 503)}
