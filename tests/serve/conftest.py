"""Collections and servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from centerhash.codes import pack
from centerhash.data.images import content_key
from centerhash.model.model import HashModel
from centerhash.search import Index
from centerhash.serve import Settings, create_app
from tests.browser import chromium
from tests.serve.processes import WIDE, Served, Watched, serving
from tests.serve.toys import TOKEN, colour_index


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, feature_run: Path) -> Iterator[Index]:
    """An index of twenty pictures; not to be changed."""
    with colour_index(tmp_path_factory.mktemp("serve") / "pictures", feature_run, 20) as index:
        yield index


@pytest.fixture
def own(tmp_path: Path, feature_run: Path) -> Iterator[Index]:
    """An index of three pictures, to be changed."""
    with colour_index(tmp_path / "own", feature_run, 3) as index:
        yield index


@pytest.fixture(scope="module")
def reader(pictures: Index) -> Iterator[TestClient]:
    """A client of a server that takes no changes, one for all tests of a file."""
    with TestClient(create_app(pictures), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def writer(own: Index) -> Iterator[TestClient]:
    """A client of a server that takes changes."""
    with TestClient(create_app(own, Settings(token=TOKEN)), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="session")
def scene_index(
    scene_folder: Path, image_run: Path, feature_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Makes a new index of the first emoji scenes, with the model that was trained on them."""
    model = HashModel.load(image_run)

    def make(count: int) -> Path:
        folder = tmp_path_factory.mktemp("served") / "scenes.index"
        files = sorted((scene_folder / "images").iterdir())[:count]
        with Index.create(folder, image_run) as index:
            if files:  # as `Index.add` does, but with the features that training has left in the cache
                features = model.features_of(files, cache=feature_cache, device="cpu")
                names = [
                    [model.classes[c] for c in row.nonzero()[0]] for row in model.predict_labels(features)
                ]
                ids = [content_key(file)[:16] for file in files]
                paths = [str(file) for file in files]
                index.add_codes(pack(model.encode_features(features)), ids, names, paths)
        return folder

    return make


@pytest.fixture(scope="session")
def served(scene_index: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real server of forty emoji scenes; nothing that it answers is a traceback, and its log holds none."""
    log = tmp_path_factory.mktemp("served") / "log"
    with serving(scene_index(40), log) as server:
        yield server
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")  # its event loop must not run beside that of other tests
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Watched]:
    watched = Watched(browser, served.address, WIDE)
    yield watched
    watched.page.close()
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((served.address, "blob:"))] == []


@pytest.fixture(scope="session")
def photo(scene_folder: Path) -> Path:
    return sorted((scene_folder / "images").iterdir())[3]
