"""The example that gives AI assistants read access to an index."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import centerhash as ch
from tests.toys import PATIENCE, process_environment

mcp = pytest.importorskip("mcp")
EXAMPLES = Path(__file__).parent.parent / "examples"


async def call(client: Any, tool: str, *, fails: bool = False, **arguments: Any) -> Any:
    done = await client.call_tool(tool, arguments)
    assert done.is_error is fails, done.content
    return done.content[0].text if fails else json.loads(done.content[0].text)


@pytest.mark.slow
def test_assistant(tmp_path: Path) -> None:
    pictures = tmp_path / "photos"
    pictures.mkdir()
    for name in ("dog", "cat-lying", "cat-chelsea"):
        shutil.copy(EXAMPLES / "photos" / f"{name}.jpg", pictures)
    with ch.PhotoIndex.of(pictures) as photos:
        photos.add(pictures, progress=False)
        cats, every = [row.id for row in photos.search(labels="cat")], photos.list()[0]

    async def run() -> None:
        words = [str(EXAMPLES / "mcp_server.py"), str(tmp_path / "photos.index")]
        server = mcp.StdioServerParameters(command=sys.executable, args=words, env=process_environment())
        async with mcp.Client(server, read_timeout_seconds=PATIENCE) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations.read_only_hint for tool in tools)
            result = await call(client, "search_photos", labels="a cat without people")
            assert [row["id"] for row in result["results"]] == cats
            result = await call(client, "similar_photos", id=cats[0], limit=1)
            assert [row["id"] for row in result["results"]] == cats[1:]
            result = await call(client, "list_photos", limit=1, offset=1)
            assert ([row["id"] for row in result["photos"]], result["total"]) == ([every[1].id], 3)
            assert (await call(client, "list_labels"))["cat"] == 2
            assert "unicorn" in await call(client, "search_photos", fails=True, labels="unicorn")
            assert "nothing" in await call(client, "similar_photos", fails=True, id="nothing")
            await call(client, "list_photos", fails=True, limit=51)

    asyncio.run(run())
