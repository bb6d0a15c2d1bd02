"""Searching over HTTP gives what the index gives, in documented words."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from centerhash.model.base import FILTERED
from centerhash.search import Index, Results
from tests.serve.toys import ids_of, png, upload
from tests.toys import CLASSES


def same(body: Any, found: Results) -> bool:
    """Whether an answer holds these results, in their order."""
    return [(row["id"], row["distance"]) for row in body["results"]] == [
        (row.id, row.distance) for row in found
    ]


def test_an_uploaded_picture_finds_itself(reader: TestClient, pictures: Index) -> None:
    answered = reader.post("/search", params={"k": 5}, files=upload(png(7)))
    assert answered.status_code == 200
    body = answered.json()
    assert body["results"][0]["distance"] == 0
    found = pictures.search(png(7), k=5)
    assert same(body, found)
    assert (body["bits"], body["size"]) == (16, 20)
    assert [row["label"] for row in body["labels"]] == [row.label for row in found.labels]


def test_by_id_leaves_the_picture_itself_out(reader: TestClient, pictures: Index) -> None:
    id = ids_of(pictures)[0]
    body = reader.get("/search", params={"id": id, "k": 30}).json()
    assert len(body["results"]) == 19
    assert id not in {row["id"] for row in body["results"]}
    assert same(body, pictures.search(id=id, k=30))


def test_by_labels_with_and_without_weights(reader: TestClient, pictures: Index) -> None:
    body = reader.get("/search", params={"labels": "dog:3, cat", "k": 4}).json()
    assert same(body, pictures.search(labels={"dog": 0.75, "cat": 0.25}, k=4))
    assert [(row["label"], row["weight"]) for row in body["labels"]] == [("dog", 0.75), ("cat", 0.25)]


def test_searches_by_the_semantic_code_and_by_what_is_not_there(reader: TestClient, pictures: Index) -> None:
    own = ids_of(pictures)[0]
    whole = reader.get("/search", params={"id": own, "k": 20}).json()["results"]
    assert reader.get("/search", params={"id": own, "by": "semantic", "k": 20}).json()["results"] == whole
    assert "no visual code" in reader.get("/search", params={"id": own, "by": "visual"}).json()["error"]
    assert all(set(row["probability"]) <= set(row["labels"]) for row in whole)
    name = next(label for row in whole for label in row["labels"])
    with_it, others = (
        reader.get("/search", params={"id": own, way: name, "k": 20}).json()["results"]
        for way in ("having", "without")
    )
    assert 0 < len(with_it) < 19
    assert others == [row for row in whole if row not in with_it]
    assert not any(name in row["labels"] for row in others)
    assert reader.get("/search", params={"id": own, "under": "/no/such/folder"}).json()["results"] == []
    assert reader.get("/search", params={"id": own, "by": "smell"}).status_code == 422


def test_filter_by_labels_and_distance(reader: TestClient) -> None:
    by_code = {"labels": "dog", "by": "semantic", "k": 20}
    everything = reader.get("/search", params=by_code).json()["results"]
    wanted = [
        row for row in everything if "dog" in row["labels"] or row["probability"].get("dog", 0) >= FILTERED
    ]
    assert 0 < len(wanted) < 20
    assert reader.get("/search", params=by_code | {"having": "dog"}).json()["results"] == wanted
    near = everything[5]["distance"]
    body = reader.get("/search", params=by_code | {"within": near}).json()
    assert body["results"] == [row for row in everything if row["distance"] <= near]
    assert not reader.get("/search", params={"labels": "dog", "by": "semantic", "having": "no such"}).json()[
        "results"
    ]
    both = by_code | {"having": ["dog", "no such"]}  # a name that comes twice is a list
    assert not reader.get("/search", params=both).json()["results"]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({}, 400, "either id"),
        ({"id": "x", "labels": "dog"}, 400, "either id"),
        ({"id": "nothing"}, 404, "no image of this id"),
        ({"labels": "dgo"}, 400, "Did you mean 'dog'?"),
        ({"labels": "dog:-1"}, 400, "positive"),
        ({"labels": "dog:nan"}, 400, "positive"),
        ({"labels": ""}, 400, "no label"),
        ({"labels": "dog", "k": "0"}, 422, "k: "),
        ({"labels": "dog", "k": "1001"}, 422, "k: "),
        ({"labels": "dog", "k": "many"}, 422, "k: "),
        ({"labels": "dog", "within": "17"}, 400, "0 to 16"),
        ({"labels": "dog", "within": "-1"}, 422, "within: "),
    ],
)
def test_what_cannot_be_asked(reader: TestClient, query: dict[str, str], status: int, words: str) -> None:
    answered = reader.get("/search", params=query)
    assert answered.status_code == status
    assert list(answered.json()) == ["error"]
    assert words in answered.json()["error"]


def test_forms_that_hold_no_picture(reader: TestClient) -> None:
    assert reader.post("/search", content=png()).status_code == 415
    assert reader.post("/search", data={"image": "text"}).status_code == 415
    other = reader.post("/search", files={"photo": ("a.png", png())})
    assert (other.status_code, "'image'" in other.json()["error"]) == (400, True)
    many = [("image", ("a.png", png())), ("image", ("b.png", png()))]
    assert reader.post("/search", files=many).status_code == 400
    torn = {"content-type": "multipart/form-data"}
    assert reader.post("/search", content=b"--x", headers=torn).status_code == 400


def test_rotated_copies_are_searched_for_only_if_asked(
    reader: TestClient, pictures: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, search = list[bool](), pictures.search

    def remember(*given: Any, rotations: bool = True, **query: Any) -> Results:
        asked.append(rotations)
        return search(*given, rotations=rotations, **query)

    monkeypatch.setattr(pictures, "search", remember)
    for query in ({}, {"rotations": "true"}, {"rotations": "false"}):
        assert reader.post("/search", params=query, files={"image": png()}).status_code == 200
    assert asked == [False, True, False]
    wrong = reader.post("/search", params={"rotations": "perhaps"}, files={"image": png()})
    assert (wrong.status_code, wrong.json()["error"].partition(":")[0]) == (422, "rotations")


def test_labels_of_the_model_with_their_counts(reader: TestClient, pictures: Index) -> None:
    rows = reader.get("/labels").json()["labels"]
    assert [row["label"] for row in rows] == list(CLASSES)
    counts = pictures.labels()
    assert {row["label"]: row["count"] for row in rows} == {name: counts.get(name, 0) for name in CLASSES}
    assert all(row["center"] for row in rows)


def test_health_says_what_is_served(reader: TestClient) -> None:
    body = reader.get("/health").json()
    assert body["status"] == "ok"
    assert (body["index"], body["size"], body["bits"], body["writable"]) == ("pictures", 20, 16, False)
    assert reader.head("/health").status_code == 200


def test_openapi_documents_every_field_and_gives_examples(reader: TestClient) -> None:
    described = reader.get("/openapi.json").json()
    routes = (
        "search images images/{id} items items/{id} folders months counts cameras token duplicates duplicates/move "
        "duplicates/undo thumbnails/{id} previews/{id} labels typed taught suggestions health metrics"
    )
    assert {f"/{route}" for route in routes.split()} == set(described["paths"])
    search = described["components"]["schemas"]["SearchAnswer"]
    assert set(search["properties"]) == {"labels", "results", "bits", "size"}
    assert described["components"]["schemas"]["Result"]["properties"]["id"]["examples"]
    parameters = {one["name"]: one for one in described["paths"]["/search"]["get"]["parameters"]}
    assert {"id", "labels", "k", "by", "within", "having", "without", "under"} <= set(parameters)
    assert parameters["k"]["schema"]["maximum"] == 1000
    assert parameters["having"]["schema"]["type"] == "array"
    assert all(one["in"] == "query" and one["description"] for one in parameters.values())
    for path in described["paths"].values():
        assert all(operation["description"] for operation in path.values())
    assert described["paths"]["/images"]["post"]["security"] == [{"bearer": []}]
    assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert reader.get("/docs").status_code == 404  # it would load scripts from elsewhere
