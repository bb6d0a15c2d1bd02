"""Searches over HTTP answer as the index does."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from centerhash.index import Index
from centerhash.photos import PhotoIndex
from centerhash.serve import create_app
from tests.serve.toys import encoded, error_of, upload

ROOT = Path(__file__).parents[2]


def ids(answer: Any) -> list[str]:
    return [row["id"] for row in answer.json()["results"]]


def test_search_by_upload(client: TestClient, photos: PhotoIndex, pictures: Path) -> None:
    data = (pictures / "dog.jpg").read_bytes()
    answer = client.post("/search", files=upload(data), params={"k": 4}).json()
    expected = photos.search(data, k=4, rotations=False)
    assert [(row["id"], row["distance"], row["general"]) for row in answer["results"]] == [
        (row.id, row.distance, row.general) for row in expected
    ]
    assert [row["label"] for row in answer["labels"]] == [row.label for row in expected.labels]
    assert (answer["bits"], answer["size"]) == (photos.index.bits, len(photos))
    first = answer["results"][0]
    assert first["distance"] == first["general"] == 0
    assert first["labels"] == ["dog"]
    assert first["paths"] == ["pictures/below/dog again.jpg", "pictures/dog.jpg"]


def test_search_by_rotated_upload(client: TestClient, photos: PhotoIndex, pictures: Path) -> None:
    with Image.open(pictures / "parrot.jpg") as image:
        data = encoded(image.transpose(Image.Transpose.ROTATE_90))
    for rotations in (False, True):
        answer = client.post("/search", files=upload(data), params={"rotations": rotations})
        assert ids(answer) == [row.id for row in photos.search(data, rotations=rotations)]
    assert answer.json()["results"][0]["path"] == "parrot.jpg"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "HEIF"])
def test_upload_formats(client: TestClient, pictures: Path, kind: str) -> None:
    data = io.BytesIO()
    with Image.open(pictures / "owl.jpg") as image:
        if kind == "HEIF":
            pillow_heif.from_pillow(image).save(data)
        else:
            image.save(data, kind)
    answer = client.post("/search", files=upload(data.getvalue()), params={"k": 1})
    assert answer.json()["results"][0]["path"] == "owl.jpg"


def test_search_by_id(client: TestClient, photos: PhotoIndex) -> None:
    (id,) = (item.id for item in photos.list()[0] if item.name == "cat-lying.jpg")
    answer = client.get("/search", params={"id": id, "k": 3})
    assert ids(answer) == [row.id for row in photos.search(id=id, k=3)]
    assert answer.json()["results"][0]["path"] == "small.png"


@pytest.mark.parametrize("labels", ["cat", "bird:0.8", "a bird without people"])
def test_search_by_labels(client: TestClient, photos: PhotoIndex, labels: str) -> None:
    answer = client.get("/search", params={"labels": labels})
    expected = photos.search(labels=labels)
    assert ids(answer) == [row.id for row in expected] != []
    assert answer.json()["labels"] == [vars(row) for row in expected.labels]


@pytest.mark.parametrize(
    "query",
    [
        {"having": "cat"},
        {"without": ["cat", "dog"]},
        {"by": "semantic"},
        {"by": "general"},
        {"within": 20},
        {"after": "2024-03", "before": "2024-06-01"},
        {"having": "unicorn"},
    ],
)
def test_search_filters(client: TestClient, photos: PhotoIndex, pictures: Path, query: Any) -> None:
    data = (pictures / "cat-chelsea.jpg").read_bytes()
    answer = client.post("/search", files=upload(data), params=query)
    assert ids(answer) == [row.id for row in photos.search(data, rotations=False, **query)]


def test_search_in_folder(client: TestClient, photos: PhotoIndex, pictures: Path) -> None:
    answer = client.get("/search", params={"labels": "dog", "under": "pictures/below"})
    assert ids(answer) == [row.id for row in photos.search(labels="dog", under=pictures / "below")]
    for folder in ("below", "elsewhere", str(pictures), "pictures/../pictures"):
        assert ids(client.get("/search", params={"labels": "dog", "under": folder})) == []


def test_parse(client: TestClient) -> None:
    answer = client.get("/parse", params={"text": "two cats and a bicyle without people"}).json()
    assert answer == {"labels": {"cat": 1.0}, "without": ["person"], "unknown": {"bicyle": ["bicycle"]}}


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({}, 400, "id"),
        ({"id": "1", "labels": "dog"}, 400, "labels"),
        ({"id": "1"}, 404, "id"),
        ({"labels": "unicorn"}, 400, "unicorn"),
        ({"labels": "dog", "k": 0}, 422, "k"),
        ({"labels": "dog", "k": 1001}, 422, "k"),
        ({"labels": "dog", "by": "look"}, 422, "by"),
        ({"labels": "dog", "within": 65}, 400, "within"),
        ({"labels": "dog", "after": "yesterday"}, 400, "yesterday"),
        ({"labels": "x" * 2000}, 400, "letters"),
    ],
)
def test_search_errors(client: TestClient, query: dict[str, Any], status: int, words: str) -> None:
    answer = client.get("/search", params=query)
    assert answer.status_code == status
    assert words in error_of(answer)
    assert "image" in error_of(client.post("/search", files={"photo": b"x"}))


def test_index_of_codes(codes: Index) -> None:
    with TestClient(create_app(codes), base_url="http://localhost") as client:
        answer = client.get("/search", params={"id": "3", "k": 4, "having": "odd"})
        expected = codes.search(id="3", k=4, having="odd")
        assert [(row["id"], row["distance"], row["attributes"]) for row in answer.json()["results"]] == [
            (row.id, row.distance, row.attributes) for row in expected
        ]
        items = client.get("/items", params={"limit": 3}).json()
        assert [row["id"] for row in items["items"]] == ["19", "18", "17"]
        assert (items["items"][0]["attributes"], items["total"]) == ({"price": 19.0}, 20)
        assert client.get("/counts").json() == {"labels": codes.labels(), "folders": {}}
        assert client.get("/health").json()["method"] is None
        assert "<pre>" in client.get("/").text
        for path, status in (
            ("/items?under=x", 400),
            ("/search?labels=odd", 400),
            ("/duplicates", 400),
            ("/thumbnails/3", 404),
            ("/images/3", 404),
        ):
            assert client.get(path).status_code == status, path
        assert client.post("/search", files=upload(b"x")).status_code == 400


def test_reference_lists_all_routes(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    reference = (ROOT / "docs" / "reference" / "http.md").read_text()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert f"`{method.upper()} {path}`" in reference
            assert operation["description"]
