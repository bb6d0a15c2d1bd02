"""`centerhash doctor`: versions, engines, and an index with its model."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from tests.toys import cli, refused


def test_versions_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: ["numpy>=2", "no-such-library>=1; extra == 'fast'", "pytest>=8 ; extra == 'dev'"],
    )
    report = cli("doctor", "--json").json
    assert report["versions"]["numpy"] == metadata.version("numpy")
    assert report["versions"]["no-such-library"] == "not installed"
    assert "pytest" not in report["versions"]
    assert set(report["engines"]) == {"torch", "onnx", "openvino"}
    assert report["problems"] == []
    assert "no problems" in cli("doctor").out


def test_check_index(tmp_path: Path) -> None:
    index = tmp_path / "photos.index"
    assert cli("index", "create", index).code == 0
    report = cli("doctor", index, "--json").json
    assert report["index"]["bits"] == "64"
    model = index / "model" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1])
    done = cli("doctor", index)
    assert done.code == 1
    assert "model.onnx" in done.out


def test_folder_without_index(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(cli("doctor", tmp_path))
