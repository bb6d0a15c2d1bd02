"""Give AI assistants read access to a photo index: `python mcp_server.py photos.index` (needs `mcp`)."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

import centerhash as ch

READING = ToolAnnotations(read_only_hint=True, open_world_hint=False)
Limit = Annotated[int, Field(ge=1, le=50, description="photos to return")]
server: MCPServer[Any] = MCPServer(
    "centerhash", instructions="Photos, searched by the things that they show."
)
photos = ch.PhotoIndex.open(sys.argv[1], read_only=True)


@server.tool(annotations=READING)
def search_photos(labels: Annotated[str, Field(max_length=1000)], limit: Limit = 10) -> dict[str, Any]:
    """Search by labels, such as 'dog:0.7, car:0.3' or 'a cat without people'; `list_labels` has all of them."""
    try:
        return photos.search(labels=labels, k=limit).to_dict()
    except ch.CenterhashError as error:
        # The assistant reads its message, such as "Did you mean 'bicycle'?".
        raise ToolError(str(error)) from None


@server.tool(annotations=READING)
def similar_photos(id: str, limit: Limit = 10) -> dict[str, Any]:
    """Search for photos like one of the index."""
    try:
        return photos.search(id=id, k=limit).to_dict()
    except ch.CenterhashError as error:
        raise ToolError(str(error)) from None


@server.tool(annotations=READING)
def list_photos(limit: Limit = 10, offset: Annotated[int, Field(ge=0)] = 0) -> dict[str, Any]:
    """List photos, the newest first."""
    rows, total = photos.list(offset, limit)
    return {"photos": [row.to_dict() for row in rows], "total": total}


@server.tool(annotations=READING)
def list_labels() -> dict[str, int]:
    """List all labels with the number of photos of each."""
    return {**dict.fromkeys(photos.index.classes, 0), **photos.labels()}


if __name__ == "__main__":
    server.run()  # over standard input and output
