"""Which engine is taken, and that all of them compute what PyTorch does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash.codes import binarize
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data.images import squash_and_crop
from centerhash.networks.backbones import BACKBONES, Backbone
from centerhash.networks.engines import ENGINES, choose_engine, open_engine
from centerhash.networks.engines import table as engines
from reproduction.scenes import render_scene
from tests.networks.engines.toys import colours, pictures, small_backbone

COMPILED = ["openvino", "onnx"]


def only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """Let it look as if only these libraries were installed."""
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if name in installed else None)


# --- choosing


@pytest.mark.parametrize(
    ("installed", "expected"),
    [(("openvino", "onnxruntime"), "openvino"), (("onnxruntime",), "onnx"), ((), "torch")],
)
def test_the_fastest_engine_present_is_taken(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], expected: str
) -> None:
    only(monkeypatch, *installed)
    assert choose_engine("auto", "cpu") == expected
    assert choose_engine("auto", torch.device("cpu")) == expected


def test_a_gpu_is_used_by_torch() -> None:
    for device in ("cuda", "cuda:1", "mps", torch.device("cuda", 0)):
        assert choose_engine("auto", device) == "torch"
        assert choose_engine("torch", device) == "torch"
        with pytest.raises(ConfigError, match=r"'onnx' computes on the processor, .*`device="):
            choose_engine("onnx", device)


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError):
        choose_engine("opnvino")


@pytest.mark.parametrize(("name", "library"), [("openvino", "openvino"), ("onnx", "onnxruntime")])
def test_a_missing_library_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    only(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        choose_engine(name)
    assert str(caught.value) == (
        f"engine '{name}' needs {library}, which is not installed: pip install 'centerhash[fast]', or pass "
        '`engine="auto"`.'
    )


# --- agreement


@pytest.fixture(scope="module")
def small() -> Backbone:
    return small_backbone()


@pytest.mark.parametrize("name", COMPILED)
def test_features_are_those_of_torch_whatever_the_batch(small: Backbone, name: str) -> None:
    pixels = pictures(small, 5)
    expected = open_engine(small, "torch").features(pixels)
    engine = open_engine(small, name)
    assert (engine.name, engine.warnings) == (name, ())
    found = engine.features(pixels)
    assert found.dtype == np.float32
    assert len(np.unique(found.round(5), axis=0)) == 5
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    alone = np.concatenate([engine.features(pixels[row : row + 1]) for row in range(5)])
    np.testing.assert_array_equal(found, alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_codes_of_scenes_are_those_of_torch(name: str) -> None:
    """Random hyperplanes through the mean: bits turn only where a value is nearly 0."""
    lite = BACKBONES["efficientnet-lite0"]
    pixels = np.stack(
        [squash_and_crop(render_scene(number).image, lite.resize, lite.crop) for number in range(4)]
    )
    expected = open_engine(lite, "torch").features(pixels)
    found = open_engine(lite, name).features(pixels)
    planes = np.random.default_rng(0).normal(size=(lite.features, 64))
    values = (expected - expected.mean(axis=0)) @ planes
    sure = np.abs(values) > 1e-4 * np.abs(values).max()
    assert sure.mean() > 0.99
    codes = binarize((found - expected.mean(axis=0)) @ planes)
    np.testing.assert_array_equal(codes[sure], binarize(values)[sure])


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_engine_serves_many_threads(name: str) -> None:
    backbone = colours()
    engine = open_engine(backbone, name)
    pixels = pictures(backbone, 24)
    expected = engine.features(pixels)
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(lambda row: engine.features(pixels[row : row + 1]), range(24)))
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)


@pytest.mark.parametrize("name", list(ENGINES))
def test_pixels_are_checked(name: str) -> None:
    engine = open_engine(colours(), name)
    assert engine.features(np.zeros((0, 16, 16, 3), dtype=np.uint8)).shape == (0, 3)
    for wrong in (
        np.zeros((1, 16, 16, 3)),
        np.zeros((16, 16, 3), np.uint8),
        np.zeros((1, 8, 16, 3), np.uint8),
    ):
        with pytest.raises(InputError, match=r"pixels must be uint8 of shape \(B, 16, 16, 3\), got"):
            engine.features(wrong)


# --- networks that cannot be converted


def unknown_operator(colour: Tensor) -> Tensor:
    return torch.linalg.eigh(colour[:, :, None] * colour[:, None, :]).eigenvalues


def two_paths(colour: Tensor) -> Tensor:
    """Tracing, which sees black images, follows only the first path."""
    return colour if bool(colour.max() < -0.9) else colour + 1


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize(
    ("change", "reason"),
    [(unknown_operator, "linalg_eigh"), (two_paths, "features differ from PyTorch's by")],
)
def test_what_cannot_be_converted_runs_in_torch_and_says_why(
    monkeypatch: pytest.MonkeyPatch, change: object, reason: str, name: str
) -> None:
    backbone = colours(change)  # type: ignore[arg-type]
    library = ENGINES[name].library
    only(monkeypatch, *([library] if library else []))
    engine = open_engine(backbone)
    assert engine.name == "torch"
    (warning,) = engine.warnings
    assert warning.startswith(f"colours cannot be run by engine '{name}' (")
    assert reason in warning
    assert warning.endswith('`engine="torch"` saves the attempt.')
    assert engine.features(pictures(backbone, 2)).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"cannot be run by engine .*: pass `engine="):
        open_engine(backbone, name)


def test_missing_weights_are_said_not_taken_for_a_failed_conversion(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.pth"):
        open_engine(colours(weights=tmp_path / "gone.pth"), folder=tmp_path)
