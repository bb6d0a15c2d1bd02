"""An index for AI assistants: read-only tools of the Model Context Protocol over standard input and output.

Every answer is bounded, and no file is read but images that the index knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from centerhash.core.errors import CenterhashError, InputError
from centerhash.core.extras import require
from centerhash.core.version import __version__

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from centerhash.search.index import Index
    from centerhash.search.results import Result

MOST = 50  # photos in one answer
SIDE = 512  # pixels of a thumbnail's longer side
INSTRUCTIONS = (
    "Photos of one index, read-only. Search by words for the things that they show; `list_labels` lists all words. "
    "Names of people, places and free text are not understood. `get_photo` shows a photo."
)

Function = TypeVar("Function", bound=Callable[..., Any])
Limit = Annotated[int, Field(ge=1, le=MOST, description="photos to return")]
Words = Annotated[
    str, Field(max_length=1000, description="labels, such as 'dog, person' or 'dog:0.7, car:0.3'")
]
Names = Annotated[Sequence[str], Field(max_length=20, description="names of labels")]
PhotoName = Annotated[str, Field(max_length=4096, description="id of a photo, or the path of its file")]


def assistant_server(index: Index) -> MCPServer[Any]:
    """Build the server of an index."""
    library, types = require("mcp.server.mcpserver"), require("mcp.types")
    server: MCPServer[Any] = library.MCPServer(
        "centerhash", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    error = require("mcp.server.mcpserver.exceptions").ToolError

    def tool(function: Function) -> Function:
        """Register a tool; errors of the library reach the assistant as one sentence."""

        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except CenterhashError as found:
                raise error(str(found)) from None

        reading = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return server.tool(annotations=reading)(run)  # type: ignore[return-value]

    @tool
    def search_photos(
        words: Words, limit: Limit = 10, having: Names = (), without: Names = ()
    ) -> dict[str, Any]:
        """Find the photos that show all of some things, the best first."""
        found = index.search(labels=words, k=limit, having=having, without=without)
        return {"photos": _rows(found), "index_size": found.size}

    @tool
    def similar_photos(photo: PhotoName, limit: Limit = 10) -> dict[str, Any]:
        """Find the photos most similar to a photo of the index."""
        found = index.search(id=_known(index, photo), k=limit)
        return {"photos": _rows(found), "index_size": found.size}

    @tool
    def list_photos(
        limit: Limit = 10,
        offset: Annotated[int, Field(ge=0, description="photos to skip")] = 0,
        having: Names = (),
        without: Names = (),
        folder: Annotated[
            str | None, Field(max_length=4096, description="only photos in this folder")
        ] = None,
    ) -> dict[str, Any]:
        """List photos, the newest first."""
        found, total = index.newest(offset, limit, having=having, without=without, under=folder)
        return {"photos": _rows(found), "total": total}

    @tool
    def list_labels() -> dict[str, Any]:
        """List the things that can be searched for, and how many photos carry each label."""
        counts = index.labels()
        return {"labels": {name: counts.get(name, 0) for name in (*index.model_info.classes, *counts)}}

    @tool
    def list_duplicates(limit: Limit = 10) -> dict[str, Any]:
        """List groups of photos that exist more than once, and which photo of each to keep."""
        found = index.duplicates(progress=False)
        groups = [
            {"kind": group.kind, "keep": group.keep.path, "others": [one.path for one in group.others[:MOST]]}
            for group in found[:limit]
        ]
        return {"groups": groups, "total": len(found)}

    @tool
    def get_photo(photo: PhotoName) -> Any:
        """Show one photo as a thumbnail, with its labels, path and date."""
        from centerhash.search.results import thumbnail

        id = _known(index, photo)
        facts = types.TextContent(type="text", text=json.dumps(_rows([index.get(id)])[0]))
        data = thumbnail(index.image(id), SIDE).partition(",")[2]
        return [facts, types.ImageContent(type="image", data=data, mime_type="image/jpeg")]

    return server


def run_assistant(index: Index) -> None:
    """Answer requests on standard input until it ends."""
    assistant_server(index).run("stdio")


def _known(index: Index, photo: str) -> str:
    """Return the id that an id or a path means."""
    found = index.find(photo)[photo]
    if len(found) != 1:
        what = f"means {len(found):,} photos" if found else "is neither the id nor the path of a photo"
        raise InputError(f"'{photo}' {what} of this index: use an id of a result.")
    return found[0]


def _rows(found: Sequence[Result]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in found]
