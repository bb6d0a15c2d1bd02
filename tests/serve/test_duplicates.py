"""Duplicates on the server and on its page: groups, the choice of what to keep, moving and moving back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from centerhash.data.images import content_key
from centerhash.search import Index
from centerhash.search.items import File
from centerhash.serve import Settings, create_app
from tests.search.test_pixels import scene
from tests.serve.processes import WIDE, Watched, serving
from tests.serve.toys import BEARER, TOKEN, colour_index
from tests.toys import cli, refused, wait_until


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A photo in two folders, another one with a small copy, which has a sidecar file, and a third one."""
    root = tmp_path / "photos"
    for name in ("album", "phone"):
        (root / name).mkdir(parents=True)
    scene(0).save(root / "album/beach.png")
    shutil.copy(root / "album/beach.png", root / "phone/IMG_1.png")
    scene(1).save(root / "album/dog.png")
    scene(1).resize((90, 90)).save(root / "phone/small.jpg")
    (root / "phone/small.xmp").write_text("<edits>")
    scene(2).save(root / "album/tree.png")
    return root


@pytest.fixture
def folder(tmp_path: Path, feature_run: Path, photos: Path) -> Path:
    """An index of the photos."""
    with colour_index(tmp_path / "own.index", feature_run) as index:
        files = sorted(photos.rglob("*.png")) + sorted(photos.rglob("*.jpg"))
        paths: dict[str, Path] = {}
        for file in files:
            paths.setdefault(content_key(file)[:16], file)
        width = (index.model_info.bits + 7) // 8
        index.add_codes(
            np.zeros((len(paths), width), np.uint8), list(paths), paths=list(map(str, paths.values()))
        )
        index.store.change_files([(content_key(file)[:16], File.at(str(file))) for file in files])
    return tmp_path / "own.index"


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(token=TOKEN, duplicates_to=tmp_path / "moved")
    with (
        Index.open(folder) as index,
        TestClient(create_app(index, settings), base_url="http://localhost") as made,
    ):
        yield made


def groups(client: TestClient) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []

    def there() -> bool:
        answers.append(client.get("/duplicates").json())
        return answers[-1].get("groups") is not None

    wait_until(there, "the groups are there")
    return answers[-1]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_groups_have_files_with_names_sizes_and_the_rule(client: TestClient, photos: Path) -> None:
    answer = groups(client)
    assert (answer["images"], answer["movable"], answer["undo"]) == (5, True, 0)
    same, near = answer["groups"]
    assert (same["kind"], same["rule"]) == ("same", "name")
    assert {(item["folder"], item["path"]) for item in same["items"]} == {
        ("photos/album", "beach.png"),
        ("photos/phone", "IMG_1.png"),
    }
    assert (near["kind"], near["rule"]) == ("near", "resolution")
    assert [(item["path"], item["width"]) for item in near["items"]] == [("dog.png", 200), ("small.jpg", 90)]
    assert near["items"][1]["bytes"] == (photos / "phone/small.jpg").stat().st_size
    assert str(photos) not in client.get("/duplicates").text


def test_files_are_moved_and_moved_back_only_with_the_token(
    client: TestClient, photos: Path, tmp_path: Path
) -> None:
    before = files(photos)
    _, near = groups(client)["groups"]
    keep, other = (item["file"] for item in near["items"])
    wanted = {"keep": other, "others": [keep]}  # the small one is kept, against the rule
    assert client.post("/duplicates/move", json=wanted).status_code == 401
    assert client.post("/duplicates/undo").status_code == 401
    assert client.post("/duplicates/undo", headers=BEARER).status_code == 400
    for bad in ({"keep": keep, "others": [keep]}, {"keep": "nothing", "others": [other]}):
        assert client.post("/duplicates/move", json=bad, headers=BEARER).status_code == 400
    moved = client.post("/duplicates/move", json=wanted, headers=BEARER)
    assert moved.json() == {"photos": 1, "sidecars": 0, "skipped": 0}
    assert before - files(photos) == {"album/dog.png"}
    assert (tmp_path / "moved/album/dog.png").exists()
    answer = groups(client)
    assert ([group["kind"] for group in answer["groups"]], answer["undo"]) == (["same"], 1)
    assert client.post("/duplicates/undo", headers=BEARER).json()["photos"] == 1
    assert files(photos) == before
    answer = groups(client)
    assert ([group["kind"] for group in answer["groups"]], answer["undo"]) == (["same", "near"], 0)
    (photos / "phone/small.jpg").write_bytes(b"edited meanwhile")
    wanted = {"keep": keep, "others": [other]}
    moved = client.post("/duplicates/move", json=wanted, headers=BEARER)
    assert moved.json() == {"photos": 0, "sidecars": 0, "skipped": 1}


def test_a_server_without_such_a_folder_moves_nothing(folder: Path, tmp_path: Path) -> None:
    with Index.open(folder) as index:
        app = create_app(index, Settings(token=TOKEN))
        with TestClient(app, base_url="http://localhost") as client:
            answer = groups(client)
            assert not answer["movable"]
            first, second = (item["file"] for item in answer["groups"][0]["items"])
            wanted = {"keep": first, "others": [second]}
            refusal = client.post("/duplicates/move", json=wanted, headers=BEARER)
            assert (refusal.status_code, "--duplicates-to" in refusal.json()["error"]) == (400, True)
    assert "--token" in refused(cli("serve", folder, "--duplicates-to", tmp_path / "to"))


@pytest.mark.slow
def test_choose_move_and_undo_on_the_page(browser: Any, folder: Path, photos: Path, tmp_path: Path) -> None:
    before = files(photos)
    target = tmp_path / "moved"
    with serving(folder, tmp_path / "log", "--duplicates-to", str(target)) as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        page.locator("#to-duplicates").click()
        page.locator(".group").first.wait_for()
        assert page.locator(".group").count() == 2
        near = page.locator(".group", has_text="dog.png")
        assert "Kept because of: resolution" in near.inner_text()
        assert "photos/phone" in near.inner_text()
        assert "200 × 200" in near.inner_text()
        assert near.locator(".kept").inner_text().startswith("dog.png")
        near.locator("li", has_text="small.jpg").locator(".keep").click()
        assert near.locator(".kept").inner_text().startswith("small.jpg")
        near.locator("li", has_text="dog.png").locator(".keep").click()
        near.locator(".move").click()
        page.fill("#token", "wrong")
        page.locator("#token-use").click()
        page.locator("#token-problem", has_text="not the token").wait_for()
        assert files(photos) == before
        page.fill("#token", TOKEN)
        page.locator("#token-use").click()
        watched.until_here(lambda: page.locator(".group").count() == 1, "the group is gone")
        assert before - files(photos) == {"phone/small.jpg", "phone/small.xmp"}
        assert (target / "phone/small.xmp").exists()
        page.locator("#duplicates-undo", has_text="Move 1 back").click()
        watched.until_here(lambda: page.locator(".group").count() == 2, "the group is there again")
        assert files(photos) == before
        watched.until("document.getElementById('duplicates-undo').hidden")
        assert watched.complaints == []
        page.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_the_page_follows_changes_of_the_photos(
    browser: Any, folder: Path, photos: Path, tmp_path: Path
) -> None:
    with serving(folder, tmp_path / "log", "--duplicates-to", str(tmp_path / "moved")) as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        page.evaluate(f"sessionStorage.setItem('centerhash-token', '{TOKEN}')")
        page.locator("#to-duplicates").click()
        page.locator(".group").first.wait_for()
        near = page.locator(".group", has_text="dog.png")
        near.locator("li", has_text="small.jpg").locator(".keep").click()
        scene(2).save(photos / "phone/tree.jpg")
        with Index.open(folder, shared=True) as index:  # another process would do the same
            id, code = (
                content_key(photos / "phone/tree.jpg")[:16],
                np.zeros((1, index.model_info.bits // 8), np.uint8),
            )
            index.add_codes(code, [id], paths=[str(photos / "phone/tree.jpg")])
        watched.until_here(lambda: page.locator(".group").count() == 3, "the new pair is there")
        assert near.locator(".kept").inner_text().startswith("small.jpg")  # as was chosen before
        page.locator(".group", has_text="beach.png").locator(".result").first.click()
        page.locator("#remove").click()
        watched.until_here(lambda: page.locator("#groups", has_text="beach.png").count() == 0, "it is gone")
        page.locator("#undo").click()
        watched.until_here(lambda: page.locator(".group").count() == 3, "it is back")
        assert watched.complaints == []
        page.close()
    assert "Traceback" not in (tmp_path / "log").read_text()
