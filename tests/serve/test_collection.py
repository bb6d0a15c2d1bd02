"""The collection over HTTP: lists, counts, images and duplicates, without a path of this machine."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from centerhash.photos import PhotoIndex
from centerhash.serve import Settings, create_app
from centerhash.serve.collection import PREVIEW_SIDE, THUMBNAIL_SIDE, folder_names
from tests.serve.toys import error_of, upload
from tests.toys import wait_until


def id_of(photos: PhotoIndex, name: str) -> str:
    return next(item.id for item in photos.list()[0] if name in {Path(path).name for path in item.paths})


def test_list_pages(client: TestClient, photos: PhotoIndex) -> None:
    expected, total = photos.list()
    pages = [client.get("/items", params={"offset": at, "limit": 4}).json() for at in (0, 4, 8, 12)]
    assert [row["id"] for page in pages for row in page["items"]] == [item.id for item in expected]
    assert {(page["total"], page["size"]) for page in pages} == {(total, total)} == {(9, 9)}
    taken = [row["taken"] for page in pages for row in page["items"]]
    assert taken == sorted(taken, reverse=True)


@pytest.mark.parametrize(
    "query",
    [
        {"having": "cat"},
        {"having": ["cat", "dog"]},
        {"without": "cat"},
        {"after": "2024-03"},
        {"before": "2024-02-01"},
    ],
)
def test_filters(client: TestClient, photos: PhotoIndex, query: Any) -> None:
    expected, total = photos.list(**query)
    answer = client.get("/items", params=query).json()
    assert ([row["id"] for row in answer["items"]], answer["total"]) == ([row.id for row in expected], total)
    counts = client.get("/counts", params=query).json()
    assert counts["labels"] == photos.count(**query).labels


def test_folders(client: TestClient) -> None:
    # The copy of a photo in another folder counts there as well.
    assert client.get("/counts").json()["folders"] == {"pictures": 10, "pictures/below": 4}
    for name, total in (("pictures", 9), ("pictures/below", 4), ("below", 0), ("/", 0), ("..", 0)):
        assert client.get("/items", params={"under": name}).json()["total"] == total, name


def test_folder_names() -> None:
    expected = {f"/home/me/{name}": name for name in ("a", "a/b", "a/c", "a/c/d")}
    assert folder_names(["/home/me/a/b", "/home/me/a/c/d"]) == expected
    assert (folder_names(["/photos"]), folder_names([])) == ({"/photos": "photos"}, {})


def test_item(client: TestClient, photos: PhotoIndex) -> None:
    id = id_of(photos, "dog.jpg")
    item = client.get(f"/items/{id}").json()
    assert item["path"] == "dog again.jpg"
    assert item["folder"] == "pictures/below"
    assert item["paths"] == ["pictures/below/dog again.jpg", "pictures/dog.jpg"]
    assert (item["width"], item["height"], item["taken"][:10]) == (512, 512, "2024-01-03")
    assert item["probability"].keys() == item["share"].keys() == set(item["labels"]) == {"dog"}


def test_labels_and_health(client: TestClient, photos: PhotoIndex) -> None:
    rows = client.get("/labels").json()["labels"]
    assert [row["label"] for row in rows][:80] == list(photos.index.classes)
    assert {row["label"]: row["count"] for row in rows if row["count"]} == photos.labels()
    assert "puppy" in next(row["also"] for row in rows if row["label"] == "dog")
    health = client.get("/health").json()
    assert (health["size"], health["bits"], health["adding"]) == (9, photos.index.bits, 0)
    assert client.head("/health").status_code == 200


def test_originals(client: TestClient, photos: PhotoIndex, pictures: Path) -> None:
    url = f"/images/{id_of(photos, 'owl.jpg')}"
    data = (pictures / "owl.jpg").read_bytes()
    answer = client.get(url)
    assert (answer.content, answer.headers["content-type"]) == (data, "image/jpeg")
    assert answer.headers["content-disposition"].startswith("inline")
    assert client.get(url, headers={"Range": "bytes=2-9"}).content == data[2:10]
    assert "attachment" in client.get(url, params={"download": True}).headers["content-disposition"]


@pytest.mark.parametrize(("route", "side"), [("thumbnails", THUMBNAIL_SIDE), ("previews", PREVIEW_SIDE)])
def test_thumbnails(client: TestClient, photos: PhotoIndex, route: str, side: int) -> None:
    id = id_of(photos, "street.jpg")
    original = photos.get(id)
    for _ in range(2):
        with Image.open(io.BytesIO(client.get(f"/{route}/{id}").content)) as image:
            assert image.format == "WEBP"
            assert max(image.size) == min(side, max(original.width or 0, original.height or 0))


@pytest.mark.parametrize("route", ["items", "thumbnails", "previews", "images"])
@pytest.mark.parametrize("id", ["no-such", "..%2f..%2fetc%2fpasswd", "../../etc/passwd", "%00", "x" * 600])
def test_unknown_ids(client: TestClient, route: str, id: str) -> None:
    answer = client.get(f"/{route}/{id}")
    assert answer.status_code == 404
    error_of(answer)


def test_vanished_files(mine: PhotoIndex) -> None:
    owl, dog, cat = (id_of(mine, name) for name in ("owl.jpg", "dog.jpg", "cat-chelsea.jpg"))
    for name in ("owl.jpg", "dog.jpg"):
        (mine.image(owl).parent / name).unlink()
    (mine.image(owl).parent / "cat-chelsea.jpg").write_text("no image")
    with TestClient(create_app(mine), base_url="http://localhost") as client:
        assert owl not in {row["id"] for row in client.get("/items").json()["items"]}
        assert owl not in {row["id"] for row in client.get("/search?labels=bird").json()["results"]}
        assert client.get(f"/images/{dog}").status_code == 200
        for id in (owl, cat):
            for route in ("thumbnails", "previews", "images"):
                assert client.get(f"/{route}/{id}").status_code == 404


def test_no_path_of_the_machine(mine: PhotoIndex, tmp_path: Path) -> None:
    owl, dog = (id_of(mine, name) for name in ("owl.jpg", "dog.jpg"))
    mine.image(owl).write_text("no image")
    with TestClient(create_app(mine), base_url="http://localhost") as client:
        paths = [
            "/items",
            "/folders",
            "/counts",
            "/labels",
            "/health",
            "/search?labels=dog",
            "/items?under=/",
        ]
        paths += [f"/{name}/{owl}" for name in ("items", "thumbnails", "previews", "images")]
        paths += [f"/search?id={dog}", "/search?id=x", "/parse?text=owl", "/openapi.json", "/nowhere", "/"]
        answers = [client.get(path) for path in paths]
        answers.append(client.post("/search", files=upload(mine.image(dog).read_bytes())))
        answers.append(client.post("/search", files=upload(b"torn")))
        wait_until(lambda: client.get("/duplicates").json()["groups"] is not None, "duplicates")
        answers.append(client.get("/duplicates"))
        for answer in answers:
            assert str(tmp_path) not in answer.text + str(answer.headers), answer.url
            assert "Traceback" not in answer.text


def test_duplicates(client: TestClient, photos: PhotoIndex, pictures: Path) -> None:
    wait_until(lambda: client.get("/duplicates").json()["groups"] is not None, "the search has ended")
    answer = client.get("/duplicates").json()
    groups = [(group["kind"], [row["paths"][0] for row in group["items"]]) for group in answer["groups"]]
    expected = [
        (group.kind, [f"pictures/{Path(path).relative_to(pictures).as_posix()}" for path in group.paths])
        for group in photos.duplicates(progress=False)
    ]
    assert groups == expected
    assert groups[0] == ("same", ["pictures/dog.jpg", "pictures/below/dog again.jpg"])
    kind, near = groups[1]
    assert (kind, set(near)) == ("near", {"pictures/cat-lying.jpg", "pictures/below/small.png"})
    assert answer["images"] == 10
    first = answer["groups"][0]["items"][0]
    assert (first["bytes"], first["width"]) == ((pictures / "dog.jpg").stat().st_size, 512)


def test_duplicates_follow_changes(mine: PhotoIndex) -> None:
    with TestClient(create_app(mine, Settings(workers=1)), base_url="http://localhost") as client:

        def groups() -> Any:
            return client.get("/duplicates").json()["groups"]

        wait_until(lambda: groups() is not None, "the search has ended")
        assert [group["kind"] for group in groups()][:2] == ["same", "near"]
        (mine.image(id_of(mine, "dog.jpg")).parent / "dog again.jpg").unlink()
        assert [group["kind"] for group in groups()][:1] == ["near"]
        mine.remove(id_of(mine, "small.png"))
        wait_until(lambda: groups() is not None, "the second search has ended")
        assert {group["kind"] for group in groups()} <= {"similar"}
