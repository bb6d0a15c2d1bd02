"""Converted networks are kept, found again, and made again when they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import ConfigError
from centerhash.networks import encoder as encoder_module
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import compiled, open_engine
from tests.networks.engines.toys import colours, pictures
from tests.toys import names, write_images

COMPILED = ["openvino", "onnx"]


@pytest.fixture
def backbone(tmp_path: Path) -> Backbone:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"stand for weights")
    return colours(weights=weights)


def forbid_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "converted", lambda *_: pytest.fail("the network was converted again"))


@pytest.mark.parametrize("name", COMPILED)
def test_the_second_start_neither_converts_nor_loads_the_network(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "networks"
    expected = open_engine(backbone, name, folder=folder).features(pictures(backbone, 2))
    forbid_conversion(monkeypatch)
    monkeypatch.setattr(Backbone, "load", lambda *_: pytest.fail("the network was loaded"))
    engine = open_engine(backbone, name, folder=folder)
    assert engine.name == name
    np.testing.assert_array_equal(engine.features(pictures(backbone, 2)), expected)


def test_engines_and_weights_have_files_of_their_own(backbone: Backbone, tmp_path: Path) -> None:
    folder = tmp_path / "networks"
    for name in COMPILED:
        open_engine(backbone, name, folder=folder)
    assert len(names(folder)) == 2
    assert all(name.startswith("colours-16-16-") and "-torch" in name for name in names(folder))
    (tmp_path / "other.pth").write_bytes(b"other weights")
    open_engine(colours(weights=tmp_path / "other.pth"), "onnx", folder=folder)
    assert len(names(folder)) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped"])
def test_a_damaged_file_is_made_again(backbone: Backbone, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "networks"
    expected = open_engine(backbone, "onnx", folder=folder).features(pictures(backbone, 2))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(
        {
            "cut": whole[:middle],
            "empty": b"",
            "text": b"not a network",
            "flipped": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        }[damage]
    )
    engine = open_engine(backbone, "onnx", folder=folder)
    np.testing.assert_array_equal(engine.features(pictures(backbone, 2)), expected)
    assert engine.warnings == ()
    assert len(file.read_bytes()) == len(whole)


def test_random_networks_are_not_kept(tmp_path: Path) -> None:
    open_engine(colours(), "onnx", folder=tmp_path / "networks")
    assert not (tmp_path / "networks").exists()


def test_a_folder_that_cannot_be_written_costs_only_time(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    engine = open_engine(backbone, "onnx", folder=tmp_path / "file" / "networks")
    assert engine.name == "onnx"
    (warning,) = engine.warnings
    assert "is not kept, so that the next start converts it again: cannot write" in warning


# --- the encoder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "default"))
    return tmp_path / "default"


@pytest.mark.parametrize("name", [*COMPILED, "torch"])
def test_an_encoder_names_the_engine_that_it_used(
    backbone: Backbone, tmp_path: Path, own_cache: Path, name: str
) -> None:
    paths = write_images(tmp_path / "pictures", 3)
    encoder = Encoder(backbone, device="cpu", engine=name)
    assert encoder.used_engine is None
    first = encoder.table(paths, tmp_path / "cache")
    assert encoder.used_engine is not None
    assert (encoder.used_engine.name, first.computed) == (name, 3)
    assert (own_cache / "networks").exists() == (name != "torch")
    expected = Encoder(backbone, device="cpu", engine="torch").table(paths).features
    np.testing.assert_allclose(first.features, expected, atol=1e-6)


def test_engines_share_the_feature_cache(backbone: Backbone, tmp_path: Path, own_cache: Path) -> None:
    paths = write_images(tmp_path / "pictures", 2)
    Encoder(backbone, device="cpu", engine="openvino").table(paths, tmp_path / "cache")
    again = Encoder(backbone, device="cpu", engine="torch")
    assert again.table(paths, tmp_path / "cache").computed == 0
    assert again.used_engine is None


def test_an_open_engine_is_used_as_it_is(backbone: Backbone, tmp_path: Path) -> None:
    engine = open_engine(backbone, "onnx")
    paths = write_images(tmp_path / "pictures", 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoder_module, "open_engine", lambda *_: pytest.fail("another engine was opened"))
        encoder = Encoder(backbone, device="cpu", engine=engine)
        assert encoder.table(paths).computed == 2
        assert encoder.engine is engine


def test_an_unknown_engine_is_refused_before_any_image_is_read(backbone: Backbone) -> None:
    with pytest.raises(ConfigError):
        Encoder(backbone, device="cpu", engine="tensorflow")
