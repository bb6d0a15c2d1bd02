"""Images that are added while their index is served."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from centerhash.core.errors import OutputError
from centerhash.data import content_key
from centerhash.networks.encoder import Encoder
from centerhash.search import Added, Index
from centerhash.serve import create_app
from centerhash.serve.background import Filling
from tests.serve.processes import serving
from tests.serve.toys import BEARER, colour_index
from tests.toys import PATIENCE, cli, noise_image, wait_until, write_images


class Gate:
    """A network that answers when it is let."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.width = 0

    def of(self, encoder: Encoder) -> Gate:
        self.width = encoder.backbone.features
        return self

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.reached.set()
        assert self.open.wait(PATIENCE)
        return (
            np.array([np.resize(image[::20, ::20].ravel(), self.width) for image in pixels], np.float32) / 255
        )


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(Encoder, "engine", property(made.of))
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", 70)
    return tmp_path / "photos"


def test_the_server_answers_while_images_come(
    gate: Gate, photos: Path, image_run: Path, tmp_path: Path
) -> None:
    done: list[Added] = []
    with Index.create(tmp_path / "index", image_run) as index:
        filling = Filling(index, [photos], done.append)
        app = create_app(index, adding=lambda: filling.left)
        with TestClient(app, base_url="http://localhost") as client, filling:
            assert gate.reached.wait(PATIENCE)
            facts = client.get("/health").json()
            assert (facts["size"], facts["writable"]) == (0, False)
            assert facts["adding"] > 0
            gate.open.set()
            wait_until(lambda: done, "the images are added")
            facts = client.get("/health").json()
            assert (facts["size"], facts["adding"]) == (70, 0)
    assert done[0].added == 70


def test_a_stop_keeps_what_is_stored_and_the_next_one_resumes(
    gate: Gate, photos: Path, image_run: Path, tmp_path: Path
) -> None:
    done: list[Added] = []
    with Index.create(tmp_path / "index", image_run) as index:
        with Filling(index, [photos], done.append) as filling:
            assert gate.reached.wait(PATIENCE)
            filling._watch.stop.set()
            gate.open.set()
        assert done == []
        before = len(index)
        assert before < 70
        with Filling(index, [photos], done.append):
            wait_until(lambda: done, "the rest is added")
        assert (done[0].added, done[0].known, len(index)) == (70 - before, before, 70)


def test_a_folder_that_is_missing_is_added_when_it_comes(image_run: Path, tmp_path: Path) -> None:
    done: list[Added] = []
    with (
        Index.create(tmp_path / "index", image_run) as index,
        Filling(index, [tmp_path / "drive"], done.append) as filling,
    ):
        wait_until(lambda: done and filling.left == 0, "it was looked for")
        write_images(tmp_path / "new", 2)
        (tmp_path / "new").rename(tmp_path / "drive")
        wait_until(lambda: len(index) == 2, "its images are added")
        (tmp_path / "drive" / "000.png").unlink()
        wait_until(lambda: len(index) == 1, "one is hidden")


def test_what_goes_wrong_is_logged_and_the_server_lives(
    image_run: Path,
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(*given: object, **options: object) -> None:
        raise OutputError("the disk is full")

    with Index.create(tmp_path / "index", image_run) as index:
        monkeypatch.setattr(Index, "add", damaged)
        with Filling(index, [photos], lambda done: None) as filling:
            wait_until(lambda: filling.left == 0, "the thread has ended")
    assert "the disk is full" in caplog.text


def test_files_that_are_gone_are_told_at_the_start(
    tmp_path: Path, feature_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with colour_index(tmp_path / "own", feature_run, 2) as index:
        next((tmp_path / "own" / "images").iterdir()).unlink()
        with TestClient(create_app(index), base_url="http://localhost"):
            wait_until(lambda: "are missing" in caplog.text, "the warning is there")
    assert "the files of 1 images are missing" in caplog.text


@pytest.mark.slow
def test_a_folder_of_images_is_served_by_one_command(image_run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 3)
    served = serving(tmp_path / "photos", tmp_path / "log", "--model", str(image_run))
    with served as server, server.client() as client:
        wait_until(lambda: client.get("/health").json()["size"] == 3, "all are there")
    with Index.open(tmp_path / "photos.index", read_only=True) as index:
        assert len(index) == 3
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_folders_are_followed_with_a_token_and_removed_photos_stay_removed(
    image_run: Path, tmp_path: Path
) -> None:
    home, made = tmp_path / "photos", tmp_path / "photos.index"
    write_images(home, 3)

    def names(client: httpx.Client) -> set[str]:
        shown = {item["id"] for item in client.get("/items").json()["items"]}
        return {path.name for path in home.iterdir() if content_key(path)[:16] in shown}

    def until(client: httpx.Client, expected: set[str]) -> None:
        wait_until(lambda: names(client) == expected, f"the photos are {sorted(expected)}")

    with (
        serving(home, tmp_path / "log", "--model", str(image_run)) as server,
        server.client() as client,
    ):
        until(client, {"000.png", "001.png", "002.png"})
        id = content_key(home / "001.png")[:16]
        assert client.delete(f"/images/{id}", headers=BEARER).status_code == 200
        os.utime(home / "001.png")  # the watch looks at it again
        noise_image(seed=40).save(home / "new.png")
        until(client, {"000.png", "002.png", "new.png"})
    with serving(made, tmp_path / "log2") as server, server.client() as client:  # scans at its start
        noise_image(seed=41).save(home / "newer.png")
        until(client, {"000.png", "002.png", "new.png", "newer.png"})
        added = cli("index", "add", made, home)
        assert "1 removed before, left out" in added.out
        assert names(client) == {"000.png", "002.png", "new.png", "newer.png"}
        assert cli("index", "add", made, home / "001.png").code == 0
        until(client, {"000.png", "001.png", "002.png", "new.png", "newer.png"})
    with serving(made, tmp_path / "log3", "--no-watch") as server, server.client() as client:
        assert len(names(client)) == 5
    for log in ("log", "log2", "log3"):
        assert "Traceback" not in (tmp_path / log).read_text()
