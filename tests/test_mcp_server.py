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


async def answer(client: Any, tool: str, **arguments: Any) -> Any:
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    return json.loads(done.content[0].text)


async def refusal(client: Any, tool: str, **arguments: Any) -> str:
    done = await client.call_tool(tool, arguments)
    assert done.is_error
    return str(done.content[0].text)


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
            found = await answer(client, "search_photos", labels="a cat without people")
            assert [row["id"] for row in found["results"]] == cats
            found = await answer(client, "similar_photos", id=cats[0], limit=1)
            assert [row["id"] for row in found["results"]] == cats[1:]
            found = await answer(client, "list_photos", limit=1, offset=1)
            assert ([row["id"] for row in found["photos"]], found["total"]) == ([every[1].id], 3)
            assert (await answer(client, "list_labels"))["cat"] == 2
            assert "unicorn" in await refusal(client, "search_photos", labels="unicorn")
            assert "nothing" in await refusal(client, "similar_photos", id="nothing")
            await refusal(client, "list_photos", limit=51)

    asyncio.run(run())
