"""The small parts behind the server: lanes, thumbnails, metrics, settings, the page's files."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from centerhash import serve
from centerhash.core.errors import ConfigError, ImageError
from centerhash.core.options import read_options
from centerhash.search import Index
from centerhash.serve import Settings
from centerhash.serve.index import ServedIndex, UnknownId
from centerhash.serve.metrics import Metrics
from centerhash.serve.process import listen
from centerhash.serve.thumbnails import SIDE, Thumbnail, ThumbnailCache, make_thumbnail
from centerhash.serve.work import Busy, Lane
from tests.serve.toys import png
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


def test_a_thumbnail_is_made_once(own: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def make(path: Path) -> Thumbnail:
        calls.append(path)
        return make_thumbnail(path)

    monkeypatch.setattr("centerhash.serve.index.make_thumbnail", make)
    served = ServedIndex(own, Settings())
    id = str(next(iter(own.store.ids())))

    async def many() -> set[str]:
        found = await asyncio.gather(*(served.thumbnail(id) for _ in range(8)))
        return {row.etag for row in (*found, await served.thumbnail(id))}

    assert len(asyncio.run(many())) == 1
    assert calls == [own.image(id)]
    served.close()


def test_a_picture_that_another_process_removed_has_no_thumbnail(own: Index) -> None:
    served, id = ServedIndex(own, Settings()), str(next(own.store.ids()))
    assert asyncio.run(served.thumbnail(id)) == served.thumbnails.get(id)
    own.remove([id])  # not by the server, which would forget the thumbnail
    with pytest.raises(UnknownId):
        asyncio.run(served.thumbnail(id))
    served.close()


def test_thumbnails_are_kept_by_browsers(reader: TestClient, pictures: Index) -> None:
    id = next(iter(pictures.store.ids()))
    first = reader.get(f"/thumbnails/{id}")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/webp")
    assert "max-age" in first.headers["cache-control"]
    again = reader.get(f"/thumbnails/{id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_picture_that_is_gone_has_no_thumbnail(own: Index) -> None:
    served = ServedIndex(own, Settings())
    id = str(next(iter(own.store.ids())))
    own.image(id).unlink()
    with pytest.raises(UnknownId, match="cannot be read"):
        asyncio.run(served.thumbnail(id))
    served.close()


def test_metrics_in_the_format_of_prometheus() -> None:
    metrics = Metrics()
    for seconds in (0.004, 0.005, 0.3, 99.0):
        metrics.count("GET", "/search", 200, seconds)
    metrics.count("GET", 'a"\\b', 404, 0.02)
    text = metrics.text({"size": ("Items.", {"": 1e6}), "queue": ("By lane.", {'lane="x"': 2.0})})
    assert 'centerhash_requests_total{method="GET",route="/search",status="200"} 4\n' in text
    assert 'route="a\\"\\\\b",status="404"} 1\n' in text
    buckets = re.findall(r'bucket\{route="/search",le="(.+)"\} (\d+)', text)
    assert [
        (bound, int(number)) for bound, number in buckets if bound in ("0.005", "0.25", "0.5", "+Inf")
    ] == [
        ("0.005", 2),
        ("0.25", 2),
        ("0.5", 3),
        ("+Inf", 4),
    ]
    assert 'centerhash_request_seconds_sum{route="/search"} 99.309000\n' in text
    assert text.endswith('size 1e+06\n# HELP queue By lane.\n# TYPE queue gauge\nqueue{lane="x"} 2\n')


def test_metrics_count_routes_and_never_ids(reader: TestClient) -> None:
    for path in ("/search?labels=dog", "/thumbnails/secret-id", "/nowhere/secret", "/static/app.js"):
        reader.get(path)
    text = reader.get("/metrics").text
    assert 'requests_total{method="GET",route="/search",status="200"} 1\n' in text
    assert 'requests_total{method="GET",route="/thumbnails/{id:path}",status="404"} 1\n' in text
    assert 'requests_total{method="GET",route="none",status="404"} 1\n' in text
    assert 'requests_total{method="GET",route="/static",status="200"} 1\n' in text
    assert "secret" not in text
    assert "centerhash_index_size 20\n" in text


def test_settings_that_cannot_be() -> None:
    for name, value in (("max_upload_mb", 0), ("queue", -1), ("timeout", 0), ("workers", 0)):
        with pytest.raises(ConfigError, match=name):
            read_options(Settings, {name: value}, "serving")
    assert "hidden" not in repr(Settings(token="hidden"))


def test_a_port_that_is_taken_is_explained() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match=r"in use.*`port=`"):
        listen("127.0.0.1", first.getsockname()[1])


def test_a_host_that_can_be_none_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on ä\.\.b, port 0: .* `host=`"):
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
