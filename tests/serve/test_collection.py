"""The collection: listed by time and folder, each image as it is, nothing outside of it; added to and removed from."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from centerhash.codes import pack
from centerhash.core.errors import DataError
from centerhash.search import Index
from centerhash.serve import Settings, create_app
from centerhash.serve.background import DuplicateSearch
from centerhash.serve.index import named_folders
from tests.serve.toys import BEARER, TOKEN, encoded, error_of, ids_of, png, upload
from tests.toys import noise_image, wait_until


@pytest.fixture
def filed(own: Index, tmp_path: Path) -> Index:
    """An index of three uploads and four files in folders, of known dates and shapes."""
    for number, (name, size) in enumerate(
        {"2023/a": (40, 20), "2023/b": (20, 40), "2024/may/c": (30, 30), "2024/d": (10, 30)}.items()
    ):
        file = tmp_path / "photos" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        noise_image(64, 90 + number).crop((0, 0, *size)).save(file)
        os.utime(file, (1000 + number, 1000 + number))
        features = own.encoder().features([file.read_bytes()])
        labels = [["dog"] if number % 2 else ["cat"]]
        own.add_codes(pack(own.model.encode_features(features)), [name[-1]], labels, [str(file)])
    return own


@pytest.fixture
def client(filed: Index) -> Iterator[TestClient]:
    with TestClient(create_app(filed), base_url="http://localhost") as opened:
        yield opened


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["items"]]


def test_the_newest_come_first_page_by_page(client: TestClient, filed: Index) -> None:
    body = client.get("/items").json()
    assert (body["total"], body["size"]) == (7, 7)
    order = [row["id"] for row in body["items"]]
    assert order[3:] == ["d", "c", "b", "a"]  # uploads are of today
    assert sorted(order) == ids_of(filed)
    assert ids(client.get("/items", params={"offset": 2, "limit": 3})) == order[2:5]
    assert ids(client.get("/items", params={"offset": 9})) == []
    assert client.get("/items", params={"limit": 1001}).status_code == 422


def test_an_item_says_what_its_file_says(client: TestClient) -> None:
    body = client.get("/items/b").json()
    assert {
        name: body[name] for name in ("path", "folder", "paths", "taken", "width", "height", "labels")
    } == {
        "path": "b.png",
        "folder": "photos/2023",
        "paths": ["photos/2023/b.png"],
        "taken": datetime.fromtimestamp(1001).isoformat(),
        "width": 20,
        "height": 40,
        "labels": ["dog"],
    }
    assert client.get("/items/nothing").status_code == 404
    found = client.get("/search", params={"id": "a", "k": 7}).json()["results"]
    assert {row["id"]: row["folder"] for row in found}["c"] == "photos/2024/may"
    assert {row["folder"] for row in found if len(row["id"]) > 1} == {"uploads"}


def test_filters_of_the_collection(client: TestClient) -> None:
    assert ids(client.get("/items", params={"having": "dog", "under": "photos"})) == ["d", "b"]
    assert ids(client.get("/items", params={"without": "cat", "under": "photos/2023"})) == ["b"]
    assert ids(client.get("/items", params={"under": "photos/2024/"})) == ["d", "c"]
    assert len(ids(client.get("/items", params={"under": "uploads"}))) == 3
    assert client.get("/folders").json()["folders"] == [
        {"folder": "photos", "count": 4},
        {"folder": "photos/2023", "count": 2},
        {"folder": "photos/2024", "count": 2},
        {"folder": "photos/2024/may", "count": 1},
        {"folder": "uploads", "count": 3},
    ]
    nearest = client.get("/search", params={"labels": "dog", "under": "photos/2024", "k": 9}).json()[
        "results"
    ]
    assert {row["id"] for row in nearest} == {"c", "d"}


def test_no_folder_outside_the_index_can_be_tested_for(
    client: TestClient, filed: Index, tmp_path: Path
) -> None:
    """Links, relative ways and real folders get the answer of a folder that does not exist."""
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    tried = [
        "/no/such",
        "/",
        "/tmp",
        "link",
        "..",
        ".",
        "photos/..",
        "photos/2023/../2023",
        "~",
        "/proc/self/cwd",
    ]
    tried += [str(tmp_path / name) for name in ("", "link", "photos", "photos/2023")]
    for query in ({"labels": "dog"}, {"id": "a"}):
        answers = [client.get("/search", params=query | {"under": under}) for under in tried]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert answers[0].json()["results"] == []
    listed = [client.get("/items", params={"under": under}) for under in tried]
    assert {(answer.status_code, answer.text) for answer in listed} == {
        (200, '{"items":[],"total":0,"size":7}')
    }


def test_codes_without_images_are_not_listed(client: TestClient, filed: Index) -> None:
    filed.add_codes(next(iter(filed)).code[None], ["bare"])
    assert "bare" in filed
    assert client.get("/items").json()["total"] == 7


def test_names_of_folders() -> None:
    def named(*folders: str) -> dict[str, str]:
        return named_folders(dict.fromkeys(folders, 1), "/index/images").names

    assert named() == {}
    assert named("/me/photos", "/index/images") == {"/me/photos": "photos", "/index/images": "uploads"}
    assert named("/a/b/c/d", "/a/b/e") == dict(
        zip(["/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e"], ["b", "b/c", "b/c/d", "b/e"], strict=True)
    )
    assert set(named("/a", "/b/c")) == {"/", "/a", "/b", "/b/c"}


def test_an_image_is_sent_as_it_is(client: TestClient, filed: Index) -> None:
    data = filed.image("a").read_bytes()
    answered = client.get("/images/a")
    assert (answered.status_code, answered.content) == (200, data)
    assert answered.headers["content-type"] == "image/png"
    assert answered.headers["content-disposition"] == 'inline; filename="a.png"'
    saved = client.get("/images/a", params={"download": True})
    assert saved.headers["content-disposition"] == 'attachment; filename="a.png"'
    part = client.get("/images/a", headers={"range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, data[2:6])
    assert part.headers["content-range"] == f"bytes 2-5/{len(data)}"
    assert client.get("/images/a", headers={"range": "bytes=99999999-"}).status_code == 416


def test_what_is_no_image_is_not_sent(client: TestClient, filed: Index) -> None:
    """An index knows paths; the files there may have become something else."""
    filed.image("a").write_bytes(encoded(noise_image(20), "JPEG"))  # still called .png
    assert client.get("/images/a").headers["content-type"] == "image/jpeg"
    for content in (b"<script>alert(1)</script>", b"#!/bin/sh", b"<svg xmlns='x'/>", b"", None):
        filed.image("a").write_bytes(content) if content is not None else filed.image("a").unlink()
        answered = client.get("/images/a")
        assert answered.status_code == 404, content
        assert str(filed.image("a").parent) not in error_of(answered)


def test_duplicates_are_found_in_the_background(filed: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    go, calls = threading.Event(), []

    def slow(*, progress: Any) -> Any:
        calls.append(1)
        progress("pixels", 3, 7)
        assert go.wait(60)
        return []

    monkeypatch.setattr(filed, "duplicates", slow)
    finding = DuplicateSearch(filed, lambda: len(filed))
    assert finding.result() is None
    wait_until(lambda: finding.progress == (3, 7), "the work says how far it is")
    assert finding.result() is None
    go.set()
    wait_until(lambda: finding.result() == [], "the groups are there")
    assert finding.result() == []
    assert len(calls) == 1
    filed.remove(["a"])
    wait_until(lambda: finding.result() == [] and len(calls) == 2, "it was looked for again")
    finding.close()


def test_an_index_of_one_image_has_no_duplicates(client: TestClient, filed: Index) -> None:
    filed.remove([item.id for item in filed][1:])
    with pytest.raises(DataError):
        filed.duplicates(progress=False)
    wait_until(lambda: client.get("/duplicates").status_code == 400, "the answer is no")


# --- adding and removing: only with the token, only by id, and for good


def test_added_pictures_are_found_and_stay(writer: TestClient, own: Index) -> None:
    added = writer.post("/images", files=upload(png(50)), headers=BEARER)
    assert added.status_code == 201
    assert (added.json()["size"], added.json()["new"]) == (4, True)
    assert added.json()["id"] in ids(writer.get("/items"))
    assert not writer.post("/images", files=upload(png(50)), headers=BEARER).json()["new"]
    body = writer.post("/search", files=upload(png(50))).json()
    assert (body["results"][0]["id"], body["results"][0]["distance"]) == (added.json()["id"], 0)
    with Index.open(own.folder, read_only=True) as other:
        assert added.json()["id"] in other


def test_a_broken_picture_is_not_added(writer: TestClient) -> None:
    assert writer.post("/images", files=upload(png()[:80]), headers=BEARER).status_code == 400
    assert writer.get("/health").json()["size"] == 3


def test_removed_pictures_are_gone_with_their_thumbnails(writer: TestClient, own: Index) -> None:
    id = ids_of(own)[0]
    assert writer.get(f"/thumbnails/{id}").status_code == 200
    removed = writer.delete(f"/images/{id}", headers=BEARER)
    assert (removed.status_code, removed.json()) == (200, {"id": id, "size": 2})
    assert id not in ids(writer.get("/items"))
    assert writer.get(f"/thumbnails/{id}").status_code == 404
    assert writer.get("/search", params={"id": id}).status_code == 404
    assert writer.delete(f"/images/{id}", headers=BEARER).status_code == 404


def test_nothing_is_removed_by_its_path(writer: TestClient, own: Index) -> None:
    """The index itself takes paths and folders; a request must not."""
    for path in (own.image(ids_of(own)[0]), own.folder / "images", Path("/")):
        assert own.find([path])[str(path)]  # the index would know it
        assert writer.delete(f"/images/{path}", headers=BEARER).status_code == 404
    assert len(own) == 3


def test_without_the_token_nothing_changes(writer: TestClient, own: Index) -> None:
    id = ids_of(own)[0]
    for given in ("", "Bearer", f"Basic {TOKEN}", "Bearer wrong", f"Bearer {TOKEN}x", TOKEN, "Bearer ü"):
        headers = {"Authorization": given.encode("latin-1")} if given else {}
        for answered in (
            writer.post("/images", files=upload(png(60)), headers=headers),
            writer.delete(f"/images/{id}", headers=headers),
        ):
            assert answered.status_code == 401, given
            assert answered.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer TOKEN" in answered.json()["error"]
    assert len(own) == 3


@pytest.mark.parametrize(
    ("settings", "word"),
    [({}, "CENTERHASH_TOKEN"), ({"token": TOKEN, "read_only": True}, "read-only")],
)
def test_a_server_that_allows_no_changes_says_why(own: Index, settings: dict[str, Any], word: str) -> None:
    with TestClient(create_app(own, Settings(**settings))) as client:
        answered = client.delete("/images/x", headers=BEARER)
    assert (answered.status_code, word in error_of(answered)) == (403, True)


def test_an_empty_token_opens_nothing(own: Index) -> None:
    with TestClient(create_app(own, Settings(token=""))) as client:
        for headers in ({}, {"authorization": "Bearer "}):
            assert client.delete("/images/x", headers=headers).status_code == 401


def test_a_reader_sees_what_a_writer_adds(own: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centerhash.serve.index._REFRESH_SECONDS", 0.01)
    with (
        Index.open(own.folder, read_only=True) as copy,
        TestClient(create_app(copy), base_url="http://localhost") as client,
    ):
        id = own.add_bytes(png(70)).id
        known = functools.partial(client.get, "/search", params={"id": id})
        wait_until(lambda: known().status_code == 200, "the reader knows the new picture")
        assert client.get("/health").json()["size"] == 4
        assert client.get(f"/thumbnails/{id}").status_code == 200
