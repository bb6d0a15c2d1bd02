"""Engines: their choice, features equal to PyTorch's, and the cache of converted networks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.codes import binarize
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.networks import encoder as encoder_module
from centerhash.networks import engines
from centerhash.networks.backbones import BACKBONES, Backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import ENGINES, choose_engine, open_engine
from tests.networks.toys import colors, pictures, small_backbone
from tests.toys import names, write_images

COMPILED = ["openvino", "onnx"]
DEVICES = ("cuda", "cuda:1", "mps", torch.device("cuda", 0))


def only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """Pretend that only these libraries are installed."""
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if name in installed else None)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [(("openvino", "onnxruntime"), "openvino"), (("onnxruntime",), "onnx"), ((), "torch")],
)
def test_choose_engine(monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], expected: str) -> None:
    only(monkeypatch, *installed)
    assert choose_engine("auto", "cpu") == choose_engine("auto", torch.device("cpu")) == expected
    assert {choose_engine("auto", device) for device in DEVICES} == {"torch"}


@pytest.mark.parametrize(
    ("name", "device", "named"),
    [
        ("openvino", "cpu", r"openvino.*centerhash\[fast\]"),
        ("onnx", "cpu", r"onnxruntime.*centerhash\[fast\]"),
        ("opnvino", "cpu", "openvino"),
        ("onnx", "cuda", "'onnx'"),
    ],
)
def test_choose_engine_rejects(monkeypatch: pytest.MonkeyPatch, name: str, device: str, named: str) -> None:
    only(monkeypatch)
    with pytest.raises(ConfigError, match=named):
        choose_engine(name, device)


# One contract for all engines


@pytest.fixture(scope="module")
def small() -> Backbone:
    return small_backbone()


@pytest.mark.parametrize("name", COMPILED)
def test_features_equal_torch(small: Backbone, name: str) -> None:
    pixels = pictures(small, 5)
    expected = open_engine(small, "torch").features(pixels)
    engine = open_engine(small, name)
    assert (engine.name, engine.warnings) == (name, ())
    features = engine.features(pixels)
    assert features.dtype == np.float32
    assert len(np.unique(features.round(5), axis=0)) == 5
    np.testing.assert_allclose(features, expected, atol=1e-5 * np.abs(expected).max())
    alone = np.concatenate([engine.features(pixels[row : row + 1]) for row in range(5)])
    np.testing.assert_array_equal(features, alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_codes_equal_torch(name: str) -> None:
    """Random hyperplanes through the mean: bits turn only where a value is nearly 0."""
    lite = BACKBONES["efficientnet-lite0"]
    pixels = pictures(lite, 4)
    expected = open_engine(lite, "torch").features(pixels)
    features = open_engine(lite, name).features(pixels)
    planes = np.random.default_rng(0).normal(size=(lite.features, 64))
    values = (expected - expected.mean(axis=0)) @ planes
    sure = np.abs(values) > 1e-4 * np.abs(values).max()
    assert sure.mean() > 0.99
    codes = binarize((features - expected.mean(axis=0)) @ planes)
    np.testing.assert_array_equal(codes[sure], binarize(values)[sure])


@pytest.mark.parametrize("name", list(ENGINES))
def test_features_in_many_threads(name: str) -> None:
    backbone = colors()
    engine, pixels = open_engine(backbone, name), pictures(backbone, 24)
    expected = engine.features(pixels)
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(lambda row: engine.features(pixels[row : row + 1]), range(24)))
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-6)


@pytest.mark.parametrize("name", list(ENGINES))
@pytest.mark.parametrize(
    "pixels",
    [np.zeros((1, 16, 16, 3)), np.zeros((16, 16, 3), np.uint8), np.zeros((1, 8, 16, 3), np.uint8)],
)
def test_check_pixels(name: str, pixels: NDArray[np.uint8]) -> None:
    engine = open_engine(colors(), name)
    with pytest.raises(InputError):
        engine.features(pixels)


# Networks that cannot be converted


def unknown_operator(color: Tensor) -> Tensor:
    return torch.linalg.eigh(color[:, :, None] * color[:, None, :]).eigenvalues


def two_paths(color: Tensor) -> Tensor:
    """Tracing, which sees black images, follows only the first path."""
    return color if bool(color.max() < -0.9) else color + 1


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize(
    ("change", "reason"), [(unknown_operator, "linalg_eigh"), (two_paths, "differ from PyTorch's")]
)
def test_unconvertible_network(
    monkeypatch: pytest.MonkeyPatch, change: object, reason: str, name: str
) -> None:
    backbone = colors(change)  # type: ignore[arg-type]
    only(monkeypatch, ENGINES[name])
    engine = open_engine(backbone)
    assert engine.name == "torch"
    (warning,) = engine.warnings
    assert name in warning
    assert reason in warning
    assert engine.features(pictures(backbone, 2)).shape == (2, 3)
    with pytest.raises(ConfigError, match="engine="):
        open_engine(backbone, name)


def test_open_engine_without_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.pth"):
        open_engine(colors(weights=tmp_path / "gone.pth"), folder=tmp_path)


# Converted networks are kept


@pytest.fixture
def backbone(tmp_path: Path) -> Backbone:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"stand for weights")
    return colors(weights=weights)


@pytest.mark.parametrize("name", COMPILED)
def test_second_start_converts_nothing(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "networks"
    expected = open_engine(backbone, name, folder=folder).features(pictures(backbone, 2))
    monkeypatch.setattr(engines, "traced", lambda *_: pytest.fail("the network was converted again"))
    monkeypatch.setattr(Backbone, "load", lambda *_: pytest.fail("the network was loaded"))
    engine = open_engine(backbone, name, folder=folder)
    assert engine.name == name
    np.testing.assert_array_equal(engine.features(pictures(backbone, 2)), expected)


def test_files_by_engine_and_weights(backbone: Backbone, tmp_path: Path) -> None:
    folder = tmp_path / "networks"
    (tmp_path / "other.pth").write_bytes(b"other weights")
    for name in COMPILED:
        open_engine(backbone, name, folder=folder)
    open_engine(colors(weights=tmp_path / "other.pth"), "onnx", folder=folder)
    assert len(names(folder)) == 3
    assert all(name.startswith("colors-16-16-") and "-torch" in name for name in names(folder))


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_damaged_file_is_converted_again(backbone: Backbone, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "networks"
    expected = open_engine(backbone, "onnx", folder=folder).features(pictures(backbone, 2))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    file.write_bytes({"cut": whole[:middle], "empty": b"", "flipped": flipped}[damage])
    engine = open_engine(backbone, "onnx", folder=folder)
    np.testing.assert_array_equal(engine.features(pictures(backbone, 2)), expected)
    assert engine.warnings == ()
    assert len(file.read_bytes()) == len(whole)


def test_random_networks_are_not_kept(tmp_path: Path) -> None:
    open_engine(colors(), "onnx", folder=tmp_path / "networks")
    assert not (tmp_path / "networks").exists()


def test_unwritable_folder(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    engine = open_engine(backbone, "onnx", folder=tmp_path / "file" / "networks")
    assert engine.name == "onnx"
    assert len(engine.warnings) == 1


# The encoder


@pytest.mark.parametrize("name", [*COMPILED, "torch"])
def test_encoder_by_engine(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "default"))
    paths = write_images(tmp_path / "pictures", 3)
    encoder = Encoder(backbone, device="cpu", engine=name)
    assert encoder.used_engine is None
    first = encoder.table(paths, tmp_path / "cache")
    assert encoder.used_engine is not None
    assert (encoder.used_engine.name, first.computed) == (name, 3)
    assert (tmp_path / "default" / "networks").exists() == (name != "torch")
    again = Encoder(backbone, device="cpu", engine="torch")
    assert again.table(paths, tmp_path / "cache").computed == 0
    assert again.used_engine is None
    np.testing.assert_allclose(first.features, again.table(paths).features, atol=1e-6)


def test_open_engine_is_used(backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(backbone, "onnx")
    monkeypatch.setattr(encoder_module, "open_engine", lambda *_: pytest.fail("another engine was opened"))
    encoder = Encoder(backbone, device="cpu", engine=engine)
    assert encoder.table(write_images(tmp_path / "pictures", 2)).computed == 2
    assert encoder.engine is engine


BATCH = 4


class CountingEngine:
    """Notes how many pictures were decoded when it was called, and may first wait for the decoding to go on."""

    name = "counting"
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.decoded = 0
        self.begun = threading.Condition()
        self.seen: list[int] = []  # pictures decoded by the time of each call
        self.waits_for = 0

    def decode(self, encoder: Encoder, image: object) -> NDArray[np.uint8]:
        with self.begun:
            self.decoded += 1
            self.begun.notify_all()
        return np.zeros((encoder.backbone.crop, encoder.backbone.crop, 3), dtype=np.uint8)

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self.begun:
            assert self.begun.wait_for(lambda: self.decoded >= self.waits_for, timeout=120)
            self.seen.append(self.decoded)
        return np.ones((len(pixels), 3), dtype=np.float32)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    counting = CountingEngine()
    monkeypatch.setattr(Encoder, "pixels", lambda encoder, image: counting.decode(encoder, image))
    monkeypatch.setattr(encoder_module, "BATCH_SIZE", BATCH)
    return counting


def test_three_batches_are_held(engine: CountingEngine, tmp_path: Path) -> None:
    paths = write_images(tmp_path, 10 * BATCH, size=8)
    table = Encoder(colors(), device="cpu", engine=engine).table(paths)
    assert table.features.all()
    assert len(engine.seen) == 10
    assert all(decoded <= BATCH * (call + 3) for call, decoded in enumerate(engine.seen))


def test_decoding_during_network(engine: CountingEngine, tmp_path: Path) -> None:
    """The first batch is in the network until the next two are decoded."""
    engine.waits_for = 3 * BATCH
    paths = write_images(tmp_path, 4 * BATCH, size=8)
    Encoder(colors(), device="cpu", engine=engine).table(paths)
    assert engine.seen[0] == 3 * BATCH
