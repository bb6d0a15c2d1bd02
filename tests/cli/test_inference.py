"""The engine that runs the network can be chosen wherever pictures are read, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.networks.engines import choose_portable_engine
from centerhash.search import Index
from tests.toys import cli, refused

pytestmark = pytest.mark.usefixtures("kept_networks")
COMPILED = ["onnx", "openvino"]  # the engines of an index's model


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    return sorted((scene_folder / "images").iterdir())[:3]


@pytest.fixture(autouse=True)
def leave_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server sets them for its whole process, which here is that of all tests."""
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)


def indexed(folder: Path, run: Path, pictures: list[Path], engine: str) -> str:
    """Make an index of pictures by an engine; returns what was printed."""
    assert cli("index", "create", folder, "--model", run).code == 0
    done = cli("index", "add", folder, *pictures, "--device", "cpu", "--engine", engine)
    assert done.code == 0, done.err
    return done.text


@pytest.fixture(scope="module")
def index(image_run: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three scenes; not to be changed."""
    folder = tmp_path_factory.mktemp("inference") / "scenes.index"
    indexed(folder, image_run, pictures, "auto")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("engine", COMPILED)
def test_index_add(engine: str, image_run: Path, pictures: list[Path], index: Path, tmp_path: Path) -> None:
    text = indexed(tmp_path / "index", image_run, pictures, engine)
    assert f", features by {choose_portable_engine(engine)}" in text
    assert "items in" in text
    with Index.open(tmp_path / "index", read_only=True) as one, Index.open(index) as other:
        ids = [item.id for item in one.store.items()]
        assert [item.code.tolist() for item in one.store.get(ids)] == [
            item.code.tolist() for item in other.store.get(ids)
        ]


@pytest.mark.slow
def test_search(index: Path, pictures: list[Path]) -> None:
    done = cli("search", index, pictures[0], "--device", "cpu", "--engine", "openvino")
    assert done.code == 0, done.err
    assert "3 results, features by openvino" in done.out
    assert "features by" not in cli("search", index, "--labels", "person", "--engine", "openvino").out


@pytest.mark.slow
def test_serve(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centerhash.serve.app.run", lambda app, settings, listener: None)
    done = cli("serve", index, "--port", "0", "--device", "cpu", "--engine", "openvino")
    assert done.code == 0, done.err
    assert "(stop with Ctrl-C), features by openvino" in done.text


@pytest.mark.parametrize("words", [("index", "add"), ("search",), ("serve",)])
def test_an_unknown_engine_is_refused(words: tuple[str, ...], index: Path, pictures: list[Path]) -> None:
    images = [] if words == ("serve",) else [pictures[0]]
    port = ["--port", "0"] if words == ("serve",) else []
    text = refused(cli(*words, index, *images, *port, "--engine", "onx"))
    assert "unknown engine 'onx'. Did you mean 'onnx'?" in text
