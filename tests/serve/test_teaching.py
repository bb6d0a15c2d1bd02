"""Taught labels over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from centerhash.search import Index
from centerhash.serve import Settings, create_app
from tests.serve.toys import BEARER, TOKEN, ids_of, png


@pytest.fixture
def taught(own: Index) -> Iterator[TestClient]:
    """A server of twelve pictures that takes changes."""
    for seed in range(3, 12):
        own.add_bytes(png(seed))
    with TestClient(create_app(own, Settings(token=TOKEN)), base_url="http://localhost") as client:
        yield client


def test_teach_list_search_suggest_rename_and_forget(taught: TestClient, own: Index) -> None:
    first, second, third, *_ = ids_of(own)
    assert taught.get("/taught").json() == {"labels": []}
    body = {"name": "Bella", "like": [first, second], "unlike": [third]}
    label = taught.post("/taught", json=body, headers=BEARER).json()
    assert (label["name"], label["like"], label["unlike"]) == ("Bella", [first, second], [third])
    assert taught.get("/taught").json() == {"labels": [label]}

    row = next(row for row in taught.get("/labels").json()["labels"] if row["label"] == "Bella")
    assert (row["taught"], row["center"], row["count"]) == (True, True, label["items"])
    assert not any(row["taught"] for row in taught.get("/labels").json()["labels"] if row["label"] != "Bella")
    found = taught.get("/search", params={"labels": "Bella"}).json()["results"]
    assert {row["id"] for row in found[:2]} == {first, second}
    assert found[0]["probability"] == {"Bella": 1.0}
    carrying = taught.get("/items", params={"having": "Bella"}).json()
    assert carrying["total"] == label["items"]
    assert "Bella" in taught.get(f"/items/{first}").json()["labels"]

    offered = taught.get("/suggestions", params={"name": "Bella", "k": 4}).json()
    ids = [row["id"] for row in (*offered["likely"], *offered["uncertain"])]
    assert len(ids) == len(set(ids)) == 4
    assert not set(ids) & {first, second, third}
    more = taught.post("/taught", json={"name": "bella", "unlike": ids[:1]}, headers=BEARER).json()
    assert more["unlike"] == [third, ids[0]]

    renamed = taught.patch("/taught", json={"name": "Bella", "new": "our dog"}, headers=BEARER).json()
    assert [row["name"] for row in renamed["labels"]] == ["our dog"]
    assert taught.delete("/taught", params={"name": "our dog"}, headers=BEARER).json() == {"labels": []}


def test_changes_need_the_token_and_ids(taught: TestClient, own: Index, reader: TestClient) -> None:
    first = ids_of(own)[0]
    body = {"name": "Bella", "like": [first]}
    assert taught.post("/taught", json=body).status_code == 401
    assert taught.patch("/taught", json={"name": "a", "new": "b"}).status_code == 401
    assert taught.delete("/taught", params={"name": "a"}).status_code == 401
    assert reader.post("/taught", json=body, headers=BEARER).status_code == 403
    for path in ("nothing", str(own.folder), str(own.image(first))):  # no path comes from a request
        answer = taught.post("/taught", json={"name": "Bella", "like": [path]}, headers=BEARER)
        assert (answer.status_code, str(own.folder) in answer.text) == (404, False)
    assert own.taught() == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "Bella"}, 400),
        ({"name": ""}, 400),
        ({"name": "dog", "like": ["FIRST"]}, 400),
        ({"name": "Bella", "like": "FIRST"}, 422),
        ({"like": ["FIRST"]}, 422),
        ({"name": "Bella", "like": ["x"] * 1001}, 422),
    ],
)
def test_bad_requests(taught: TestClient, own: Index, body: dict[str, object], status: int) -> None:
    first = ids_of(own)[0]
    like = body.get("like")
    sent = {**body, "like": [first]} if like == ["FIRST"] else body
    answer = taught.post("/taught", json=sent, headers=BEARER)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert taught.get("/suggestions", params={"name": "unknown"}).status_code == 400
    assert taught.delete("/taught", params={"name": "unknown"}, headers=BEARER).status_code == 400
    assert own.taught() == {}
