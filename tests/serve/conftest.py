"""Folders of photos, their indexes and clients for the tests of the server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from centerhash.index import Index
from centerhash.photos import PhotoIndex
from centerhash.serve import create_app
from tests.browser import chromium
from tests.serve.processes import WIDE, Served, Watched, serving
from tests.serve.toys import SAMPLES

NAMES = ("dog", "cat-chelsea", "cat-lying", "street", "parrot", "owl", "boats", "astronaut")


def fill(folder: Path) -> Path:
    """Make a folder of nine photos; `below` has a copy of one, another one in small, and two more photos."""
    (folder / "below").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        target = folder / "below" if name in ("boats", "astronaut") else folder
        file = Path(shutil.copy(SAMPLES / f"{name}.jpg", target))
        when = datetime(2024, 1 + number, 3).timestamp()
        os.utime(file, (when, when))
    shutil.copy2(folder / "dog.jpg", folder / "below" / "dog again.jpg")
    with Image.open(folder / "cat-lying.jpg") as image:
        image.reduce(2).save(folder / "below" / "small.png")
    os.utime(folder / "below" / "small.png", (0, 1_600_000_000))
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos; not to be changed."""
    return fill(tmp_path_factory.mktemp("served") / "pictures")


@pytest.fixture(scope="session")
def photos(pictures: Path) -> Iterator[PhotoIndex]:
    """The index of the folder, made by the built-in model; not to be changed."""
    with PhotoIndex.of(pictures) as index:
        index.add(pictures, progress=False)
        yield index


@pytest.fixture(scope="module")
def client(photos: PhotoIndex) -> Iterator[TestClient]:
    """A client of a server without a password."""
    with TestClient(create_app(photos), base_url="http://localhost") as connected:
        yield connected


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[PhotoIndex]:
    """An index of a folder of photos, both to be changed."""
    folder = fill(tmp_path / "pictures")
    with PhotoIndex.of(folder) as index:
        index.add(folder, progress=False)
        yield index


@pytest.fixture(scope="session")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index of codes without a model."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("codes") / "codes.index"
    with Index.create(folder, bits=16, attributes={"price": float}) as index:
        labels = [["odd"] if number % 2 else ["even", "number"] for number in range(20)]
        index.add(
            codes=rng.integers(0, 256, (20, 2), dtype=np.uint8),
            labels=labels,
            attributes={"price": range(20)},
        )
        yield index


@pytest.fixture(scope="session")
def served(photos: PhotoIndex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real server of the index; its log stays without a traceback."""
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(photos.folder, log) as server:
        yield server
    assert "Traceback" not in log.read_text()


# The event loop of the browser must not run next to that of other tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Watched]:
    """The page of the server; it reports no error and sends no request elsewhere."""
    watched = Watched(browser, served.address, WIDE)
    yield watched
    watched.close()
    assert [url for url in watched.requests if not url.startswith((served.address, "blob:"))] == []
