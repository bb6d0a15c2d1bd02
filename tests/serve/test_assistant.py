"""The tools for assistants, by the SDK's own client over a real process."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from centerhash.search import Index
from tests.serve.toys import ids_of
from tests.toys import PATIENCE, process_environment

mcp = pytest.importorskip("mcp")
pytestmark = pytest.mark.slow

TOOLS = ["get_photo", "list_duplicates", "list_labels", "list_photos", "search_photos", "similar_photos"]


def converse(folder: Path, ask: Callable[[Any], Awaitable[None]]) -> None:
    """Start `centerhash mcp` and let a client ask it."""

    async def run() -> None:
        words = ["-m", "centerhash", "mcp", str(folder)]
        server = mcp.StdioServerParameters(command=sys.executable, args=words, env=process_environment())
        async with mcp.Client(server, read_timeout_seconds=PATIENCE) as client:
            await ask(client)

    asyncio.run(run())


async def answer(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert not found.is_error, found.content
    return dict(json.loads(found.content[0].text))


async def refusal(client: Any, tool: str, **arguments: Any) -> str:
    found = await client.call_tool(tool, arguments)
    assert found.is_error
    return str(found.content[0].text)


def test_an_assistant_searches_an_index(pictures: Index) -> None:
    ids = ids_of(pictures)
    before = sorted(path.name for path in pictures.folder.iterdir())

    async def ask(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == TOOLS
        assert all(tool.annotations.read_only_hint for tool in tools.values())

        found = await answer(client, "similar_photos", photo=ids[0], limit=3)
        expected = [row.id for row in pictures.search(id=ids[0], k=3)]
        assert [row["id"] for row in found["photos"]] == expected
        path = str(pictures.image(ids[0]))
        assert await answer(client, "similar_photos", photo=path, limit=3) == found

        found = await answer(client, "search_photos", words="cat, dog:0.2", limit=4)
        expected = [row.id for row in pictures.search(labels="cat, dog:0.2", k=4)]
        assert [row["id"] for row in found["photos"]] == expected

        found = await answer(client, "list_photos", limit=5, offset=2)
        assert found["total"] == len(pictures)
        assert [row["id"] for row in found["photos"]] == [row.id for row in pictures.newest(2, 5)[0]]
        assert (await answer(client, "list_labels"))["labels"].items() >= pictures.labels().items()

        shown = await client.call_tool("get_photo", {"photo": ids[0]})
        facts, image = shown.content
        assert json.loads(facts.text)["id"] == ids[0]
        assert max(Image.open(io.BytesIO(base64.b64decode(image.data))).size) <= 512

    converse(pictures.folder, ask)
    assert sorted(path.name for path in pictures.folder.iterdir()) == before


def test_an_assistant_lists_duplicates(tmp_path: Path) -> None:
    folder = tmp_path / "photos.index"
    with Index.create(folder) as index:
        samples = sorted((files("centerhash.model") / "sample_photos").iterdir(), key=str)
        photo = tmp_path / "photo.jpg"
        photo.write_bytes(samples[0].read_bytes())
        Image.open(photo).reduce(2).save(tmp_path / "small.jpg")
        index.add([photo, tmp_path / "small.jpg"], progress=False)

    async def ask(client: Any) -> None:
        found = await answer(client, "list_duplicates", limit=1)
        assert [found["total"], *found["groups"]] == [
            1,
            {"kind": "near", "keep": str(photo), "others": [str(tmp_path / "small.jpg")]},
        ]

    converse(folder, ask)


def test_an_assistant_gets_bounded_answers_and_only_files_of_the_index(
    pictures: Index, tmp_path: Path
) -> None:
    other = tmp_path / "secret.png"
    Image.new("RGB", (8, 8)).save(other)

    async def ask(client: Any) -> None:
        assert "secret" in await refusal(client, "get_photo", photo=str(other))
        assert "secret" in await refusal(client, "similar_photos", photo=str(other))
        assert "images" in await refusal(client, "get_photo", photo=str(pictures.folder / "images"))
        assert "unicorn" in await refusal(client, "search_photos", words="unicorn")
        assert "limit" in await refusal(client, "list_photos", limit=51)
        assert "offset" in await refusal(client, "list_photos", offset=-1)
        assert "words" in await refusal(client, "search_photos", words="cat " * 500)

    converse(pictures.folder, ask)
