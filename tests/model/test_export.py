"""A model as one ONNX file: equal codes, complete metadata, and what is rejected."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import typer
from PIL import ExifTags, Image
from torch import nn
from typer.testing import CliRunner

from centerhash.cli.training import export as export_command
from centerhash.codes import binarize, pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.methods.shallow.projections import Lsh
from centerhash.model import export as module
from centerhash.model.export import (
    CodeComparison,
    Deployed,
    Hyperplanes,
    compare_codes,
    export_model,
    fix_padding,
    image_sample,
)
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from centerhash.networks.backbones import BACKBONES
from centerhash.networks.heads import Head
from centerhash.training.run import train
from tests.networks.toys import pictures, small_backbone, untrained_model
from tests.toys import CLASSES, feature_dataset, toy_config, write_images

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"


@pytest.fixture(scope="module")
def model() -> HashModel:
    return untrained_model()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder, 10, size=96)
    return folder


@pytest.fixture(scope="module")
def file(model: HashModel, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_model(model, path, images=[photos])
    return path


# The file


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 5])
def test_logits_and_codes_are_those_of_the_model(model: HashModel, file: Path, batch: int) -> None:
    backbone = small_backbone()
    pixels = pictures(backbone, batch)
    logits, code = onnxruntime.InferenceSession(file).run(["logits", "code"], {"pixels": pixels})
    with torch.inference_mode():
        expected = model.logits(backbone.load()(torch.from_numpy(pixels)).numpy())
    assert logits.shape == (batch, 20)
    assert code.shape == (batch, 3)
    assert code.dtype == np.uint8
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_array_equal(code, pack(binarize(logits)))
    assert len(np.unique(pack(binarize(expected)), axis=0)) == batch


@pytest.mark.slow
def test_the_metadata_tell_all_that_a_program_needs(model: HashModel, file: Path) -> None:
    stored = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    about = json.loads(stored["centerhash"])
    assert about["classes"] == list(CLASSES)
    assert (about["bits"], about["method"], about["label_threshold"]) == (20, "ics", 0.25)
    packed = np.frombuffer(base64.b64decode(about["centers"]), np.uint8).reshape(len(CLASSES), -1)
    np.testing.assert_array_equal(unpack(packed, 20), model.centers.numpy())
    directions = np.frombuffer(base64.b64decode(about["directions"]), "<f4").reshape(-1, 20)
    np.testing.assert_array_equal(directions, model.directions.numpy())
    assert about["shares"]["by"] == "ics"
    backbone = small_backbone()
    assert about["preprocessing"] == {
        "resize": backbone.resize,
        "crop": backbone.crop,
        "interpolation": backbone.interpolation,
        "shift": list(backbone.shift),
        "scale": list(backbone.scale),
    }


def test_a_logit_of_zero_sets_its_bit_and_bits_past_the_last_are_zero() -> None:
    network = Deployed(nn.Identity(), Head(), 10)
    logits = torch.tensor([[0.0, -1, 1, -0.0, -1e-30, 1, 1, 1, 2, -2]])
    _, code = network(logits)[:2]
    assert code.tolist() == [[0b10110111, 0b10000000]]
    np.testing.assert_array_equal(code.numpy(), pack(binarize(logits.numpy())))


def test_fixed_paddings_change_nothing() -> None:
    lite = BACKBONES["efficientnet-lite0"]
    network = lite.load()
    pixels = torch.from_numpy(pictures(lite, 1))
    with torch.inference_mode():
        expected = network(pixels)
        fix_padding(network, lite.crop)
        found = network(pixels)
    assert any(isinstance(layer, nn.ZeroPad2d) for layer in network.modules())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# Shallow methods


def test_hyperplanes_give_the_values_of_their_method() -> None:
    dataset = feature_dataset()
    assert dataset.features is not None
    trained = train(dataset, config=toy_config(method="lsh"))
    arrays = {name.removeprefix("encoder."): tensor.numpy() for name, tensor in trained.tensors().items()}
    function = Lsh.from_arrays(arrays)
    features = np.concatenate([dataset.features[:20], np.zeros((1, dataset.features.shape[1]), np.float32)])
    found = Hyperplanes(function)(torch.from_numpy(features))
    np.testing.assert_allclose(found.logits.numpy(), function.values(features), rtol=1e-5, atol=1e-7)


# Rejected


def test_what_cannot_be_exported_is_named(
    model: HashModel, toy_model: HashModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="backbone"):
        export_model(toy_model, tmp_path / "model.onnx", images=[photos])
    with pytest.raises(ConfigError, match=r"model\.onnx"):
        export_model(load("coco"), tmp_path / "model.onnx")
    with pytest.raises(DataError, match="1 image"):
        image_sample([photos / "000.png"], small_backbone())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError):
        export_model(model, tmp_path / "model.onnx")


def test_a_file_with_other_codes_is_not_written(
    model: HashModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compare_codes", lambda *_: CodeComparison(10, 0.9981, 0.5))
    with pytest.raises(DataError, match=r"99\.81%.*10 images"):
        export_model(model, tmp_path / "model.onnx", images=[photos])
    assert not list(tmp_path.iterdir())


# Comparing


def test_codes_are_compared_bit_by_bit() -> None:
    """Rows: equal, one bit other, three bits other; the codes have ten bits."""
    before = np.array([[0b11110000, 0], [0b11110000, 0], [0, 0]], dtype=np.uint8)
    after = np.array([[0b11110000, 0], [0b01110000, 0], [0b11000000, 0b01000000]], dtype=np.uint8)
    assert compare_codes(before, after, 10) == CodeComparison(3, 1 - 4 / 30, 1 / 3)
    with pytest.raises(InputError):
        compare_codes(before, after[:2], 10)


def test_tensors_that_half_precision_holds_exactly_are_stored_in_it(
    model: HashModel, photos: Path, tmp_path: Path
) -> None:
    def largest_half(model: HashModel) -> int:
        export_model(model, tmp_path / "model.onnx", images=[photos])
        stored = onnx.load(tmp_path / "model.onnx").graph.initializer
        return max(len(t.raw_data) for t in stored if t.data_type == onnx.TensorProto.FLOAT16)

    tensors = {name: t.half().float() if t.is_floating_point() else t for name, t in model.tensors().items()}
    largest = max(t.numel() for t in tensors.values() if t.ndim == 2)
    assert largest_half(model) < 2 * largest  # zeros
    assert largest_half(HashModel(model.spec, tensors, model.folder)) == 2 * largest


# The command


def run_command(*arguments: str | Path) -> str:
    app = typer.Typer()
    app.command()(export_command)
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def run(model: HashModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "run")
    return tmp_path / "run"


def test_the_command_says_what_it_wrote(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    words = run_command(run, "--out", out, "--calibration", photos)
    assert f"{out}: float32, {out.stat().st_size / 1e6:.1f} MB" in words
    assert "100.00% of the bits on 10 images equal PyTorch's (at least 99.9% must)" in words


@pytest.mark.slow
@pytest.mark.parametrize(("options", "photos"), [([], 4), (["--int8"], 2)])
def test_without_images_the_sample_photos_are_compared(
    run: Path, tmp_path: Path, options: list[str], photos: int
) -> None:
    found = json.loads(run_command(run, "--out", tmp_path / "model.onnx", *options, "--json"))
    assert found["compared_on"] == f"{photos} sample photos"


@pytest.mark.slow
def test_eight_bits_keep_most_bits(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    found = json.loads(run_command(run, "--out", out, "--int8", "--calibration", photos, "--json"))
    assert (found["numbers"], found["compared_on"], found["path"]) == ("int8", "5 images", str(out))
    assert 0.85 <= found["equal_bits"] <= 1
    nodes = onnx.load(out).graph.node
    quantized = {node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    assert len(quantized) > 10
    assert not any(name.startswith("/encoder") for name in quantized)
    plain = export_model(HashModel.load(run), tmp_path / "plain.onnx", images=[photos])
    pixels = pictures(small_backbone(), 2)
    small, large = (
        onnxruntime.InferenceSession(path).run(["logits"], {"pixels": pixels})[0]
        for path in (out, plain.path)
    )
    assert 0 < np.abs(small - large).max() < np.abs(large).max()


@pytest.mark.slow
def test_the_example_of_the_docs_runs_without_torch(
    image_run: Path, scene_folder: Path, tmp_path: Path
) -> None:
    images = sorted((scene_folder / "images").iterdir())
    model = HashModel.load(image_run)
    export_model(model, tmp_path / "model.onnx", images=images[:4])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # as a phone that is held upright stores it
    with Image.open(images[0]) as scene:
        scene.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    script = f"{snippet}\nimport sys\nassert 'torch' not in sys.modules and 'centerhash' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    code, label = done.stdout.split(maxsplit=1)
    features = model.features_of([tmp_path / "photo.jpg"])
    assert code == pack(model.encode_features(features))[0].tobytes().hex()
    assert label.strip() == model.classes[int(model.similarities(features)[0].argmax())]
