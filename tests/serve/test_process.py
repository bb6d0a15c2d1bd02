"""Real processes: one that follows a folder, and two workers of uvicorn."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from centerhash.photos import PhotoIndex, verify_photos
from tests.serve.conftest import fill
from tests.serve.processes import Served, serving, started
from tests.serve.toys import BEARER, PASSWORD, upload
from tests.toys import PATIENCE, wait_until

pytestmark = pytest.mark.slow


def test_folder_until_sigterm(tmp_path: Path) -> None:
    folder, log = fill(tmp_path / "pictures"), tmp_path / "log"
    with serving(folder, log) as server, server.client() as client:
        wait_until(lambda: client.get("/health").json()["adding"] == 0, "all photos are added")
        assert client.get("/items").json()["total"] == 9
        answer = client.post("/search", files=upload((folder / "owl.jpg").read_bytes()))
        assert answer.json()["results"][0]["path"] == "owl.jpg"
        # Both servers of a folder work, but only one adds photos.
        with serving(folder, tmp_path / "second") as second, second.client() as other:
            assert other.get("/items").json()["total"] == 9
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert "Traceback" not in log.read_text()
    index = tmp_path / "pictures.index"
    assert verify_photos(index) == []
    with PhotoIndex.open(index) as photos:
        assert len(photos) == 9


def test_two_workers(photos: PhotoIndex, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["-m", "uvicorn", "--factory", "centerhash.serve:create_app", "--workers", "2", "--port", "0"]
    environment = {"CENTERHASH_INDEX": str(photos.folder), "CENTERHASH_PASSWORD": PASSWORD}
    with started(words, log, **environment) as process:
        wait_until(lambda: log.read_text().count("startup complete") == 2, "both workers are ready")
        address = re.search(r"http://[\w.:]+", log.read_text())
        assert address is not None
        with Served(address.group(), process).client() as client:
            for _ in range(8):
                assert client.get("/items").status_code == 401
                answer = client.get("/search", params={"labels": "dog"}, headers=BEARER)
                assert answer.json()["results"][0]["path"] == "dog again.jpg"
            # The session of one worker is valid for the other.
            client.post("/login", data={"password": PASSWORD})
            assert {client.get("/items").status_code for _ in range(8)} == {200}
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    assert "Traceback" not in log.read_text()
