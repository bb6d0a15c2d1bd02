"""Lanes, thumbnails, metrics, settings, the socket, the page's files."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from centerhash import serve
from centerhash.core.errors import ConfigError, ImageError
from centerhash.core.options import read_options
from centerhash.search import Index
from centerhash.serve import Settings, create_app
from centerhash.serve.app import listen
from centerhash.serve.index import (
    SIDE,
    ServedIndex,
    Thumbnail,
    ThumbnailCache,
    UnknownId,
    make_thumbnail,
)
from centerhash.serve.limits import Busy, Lane
from tests.serve.toys import ids_of, png
from tests.toys import noise_image


def test_a_lane_does_work_that_waits_before_it_closes() -> None:
    async def story() -> list[int]:
        lane, done, go = Lane("test", 1, 5), list[int](), threading.Event()
        asked = [asyncio.create_task(lane.run(lambda n=n: (go.wait(10), done.append(n)))) for n in range(4)]  # type: ignore[misc]
        await asyncio.sleep(0)
        assert lane.taken == 4
        asked[2].cancel()  # its client is gone, and it had not begun
        await asyncio.sleep(0)
        go.set()
        await asyncio.to_thread(lane.close)
        with pytest.raises(Busy, match="stopping"):
            await lane.run(lambda: None)
        await asyncio.gather(*asked, return_exceptions=True)
        assert lane.taken == 0
        return done

    assert asyncio.run(story()) == [0, 1, 3]


def test_a_thumbnail_keeps_the_shape_and_its_tag(tmp_path: Path) -> None:
    noise_image(900).crop((0, 0, 900, 300)).save(tmp_path / "wide.png")
    made = make_thumbnail(tmp_path / "wide.png")
    assert made == make_thumbnail(tmp_path / "wide.png")
    (tmp_path / "small.webp").write_bytes(made.data)
    with Image.open(tmp_path / "small.webp") as image:
        assert (image.format, image.size) == ("WEBP", (SIDE, SIDE // 3))
    (tmp_path / "torn.png").write_bytes(png()[:90])
    with pytest.raises(ImageError):
        make_thumbnail(tmp_path / "torn.png")


def test_the_cache_of_thumbnails_is_bounded_by_bytes() -> None:
    cache = ThumbnailCache(250)
    for name in "abc":
        cache.put(name, Thumbnail(bytes(100), name))
        cache.get("a")  # used last
    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]
    cache.put("a", Thumbnail(bytes(50), "new"))
    assert cache.size == 150
    cache.put("d", Thumbnail(bytes(300), "too large to keep"))
    assert cache.size == 0
    cache.forget("d")


def test_images_that_are_removed_or_gone_have_no_thumbnail(own: Index) -> None:
    served, (removed, gone, _) = ServedIndex(own, Settings()), ids_of(own)
    made = served.thumbnail(removed)
    assert made is served.thumbnail(removed)
    own.remove([removed])  # not by the server, which would forget the thumbnail
    own.image(gone).unlink()
    for id in (removed, gone):
        with pytest.raises(UnknownId):
            served.thumbnail(id)
    served.close()


def test_thumbnails_are_kept_by_browsers(reader: TestClient, pictures: Index) -> None:
    id = ids_of(pictures)[0]
    first = reader.get(f"/thumbnails/{id}")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/webp")
    assert "max-age" in first.headers["cache-control"]
    again = reader.get(f"/thumbnails/{id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_metrics_count_routes_and_never_ids(reader: TestClient) -> None:
    for path in ("/search?labels=dog", "/thumbnails/secret-id", "/nowhere/secret", "/static/app.js"):
        reader.get(path)
    text = reader.get("/metrics").text
    assert "secret" not in text
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    counted = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for sample in families["centerhash_requests"]
        if sample.name == "centerhash_requests_total"
    }
    for row in (("/search", "200"), ("/thumbnails/{id:path}", "404"), ("none", "404"), ("/static", "200")):
        assert counted[row] == 1
    assert "+Inf" in {sample.labels.get("le") for sample in families["centerhash_request_seconds"]}
    assert families["centerhash_index_size"][0].value == 20
    assert {sample.labels["lane"] for sample in families["centerhash_queue"]} == {
        sample.labels["lane"] for sample in families["centerhash_queue_places"]
    }
    assert "centerhash_thumbnail_bytes" in families


def test_requests_are_logged_on_request_without_query_or_token(
    pictures: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    for log_requests in (False, True):
        settings = Settings(log_requests=log_requests, token="hidden")
        with TestClient(create_app(pictures, settings), base_url="http://localhost") as client:
            client.get("/search", params={"labels": "dog"})
            client.delete("/images/a%0Ab?token=hidden", headers={"Authorization": "Bearer hidden"})
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"[0-9.]+ ms", "ms", line) for line in lines] == [
        "GET /search 200 ms",
        "DELETE /images/a%0Ab 404 ms",
    ]


@pytest.mark.parametrize("name", ["max_upload_mb", "queue", "timeout", "workers"])
def test_settings_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_options(Settings, {name: -1}, "serving")


def test_the_token_is_not_shown() -> None:
    assert "hidden" not in repr(Settings(token="hidden"))


def test_an_address_that_cannot_be_had_is_explained() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="`port=`"):
        listen("127.0.0.1", first.getsockname()[1])
    with pytest.raises(ConfigError, match="`host=`"):
        listen("ä..b", 0)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No inline script or style, which the policy forbids, and no address of another host."""
    folder = Path(serve.__file__).parent / "static"
    page = (folder / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.[a-z]", text), file.name
    for name in re.findall(r'(?:href|src)="static/([^"]+)"', page):
        assert (folder / name).is_file()
    for file in folder.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
            assert (folder / name).is_file()
