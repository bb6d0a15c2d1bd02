"""Every command that reads pictures has an option for the engine, and prints its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.photos import PhotoIndex
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
    done = cli("photos", "add", folder, *pictures, "--model", run, "--device", "cpu", "--engine", engine)
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
def test_photos_add(engine: str, image_run: Path, pictures: list[Path], index: Path, tmp_path: Path) -> None:
    text = indexed(tmp_path / "index", image_run, pictures, engine)
    assert f", features by {engine}" in text
    with PhotoIndex.open(tmp_path / "index", read_only=True) as one, PhotoIndex.open(index) as other:
        expected = {item.id: item.code.tolist() for item in other.index}
        assert {item.id: item.code.tolist() for item in one.index} == expected


@pytest.mark.slow
def test_search(index: Path, pictures: list[Path]) -> None:
    done = cli("photos", "search", index, pictures[0], "--device", "cpu", "--engine", "openvino")
    assert done.code == 0, done.err
    assert "3 results, features by openvino" in done.out
    assert "features by" not in cli("photos", "search", index, "--labels", "star", "--engine", "openvino").out


@pytest.mark.parametrize("words", [("photos", "add"), ("photos", "search"), ("serve",)])
def test_unknown_engine(words: tuple[str, ...], index: Path, scene_folder: Path) -> None:
    images = [] if words == ("serve",) else [max((scene_folder / "images").iterdir())]
    port = ["--port", "0"] if words == ("serve",) else []
    text = refused(cli(*words, index, *images, *port, "--engine", "onx"))
    assert "unknown engine 'onx'. Did you mean 'onnx'?" in text
