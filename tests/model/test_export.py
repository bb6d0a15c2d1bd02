"""Export of a model as one ONNX file: equal codes, complete metadata, and models that cannot be exported."""

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
from PIL import ExifTags, Image
from torch import nn

from centerhash.codes import binarize, pack, unpack
from centerhash.core.errors import ConfigError, DataError
from centerhash.methods.shallow.projections import LSH
from centerhash.model import export as module
from centerhash.model.export import ShallowNetwork, export_model, fix_padding, packed_signs
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from centerhash.networks.backbones import BACKBONES
from centerhash.training.run import train
from tests.networks.toys import pictures, small_backbone, untrained_model
from tests.toys import CLASSES, cli, feature_dataset, toy_config, write_images

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
def test_logits_and_codes(model: HashModel, file: Path, batch: int) -> None:
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
def test_metadata_for_other_programs(model: HashModel, file: Path) -> None:
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


def test_packed_signs() -> None:
    logits = torch.tensor([[0.0, -1, 1, -0.0, -1e-30, 1, 1, 1, 2, -2]])
    code = packed_signs(logits, 10)
    assert code.tolist() == [[0b10110111, 0b10000000]]
    np.testing.assert_array_equal(code.numpy(), pack(binarize(logits.numpy())))


def test_fix_padding() -> None:
    lite = BACKBONES["efficientnet-lite0"]
    network = lite.load()
    pixels = torch.from_numpy(pictures(lite, 1))
    with torch.inference_mode():
        expected = network(pixels)
        fix_padding(network, lite.crop)
        fixed = network(pixels)
    assert any(isinstance(layer, nn.ZeroPad2d) for layer in network.modules())
    torch.testing.assert_close(fixed, expected, atol=1e-5, rtol=1e-5)


# Shallow methods


def test_shallow_network() -> None:
    dataset = feature_dataset()
    assert dataset.features is not None
    trained = train(dataset, config=toy_config(method="lsh"))
    arrays = {name.removeprefix("encoder."): tensor.numpy() for name, tensor in trained.tensors().items()}
    function = LSH.from_arrays(arrays)
    features = np.concatenate([dataset.features[:20], np.zeros((1, dataset.features.shape[1]), np.float32)])
    output = ShallowNetwork(function)(torch.from_numpy(features))
    np.testing.assert_allclose(output.logits.numpy(), function.transform(features), rtol=1e-5, atol=1e-7)


# Rejected


def test_export_model_rejects(toy_model: HashModel, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backbone"):
        export_model(toy_model, tmp_path / "model.onnx", images=[photos])
    with pytest.raises(ConfigError, match=r"model\.onnx"):
        export_model(load("coco"), tmp_path / "model.onnx")


def test_different_codes_are_not_written(
    model: HashModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_signs = module.packed_signs
    monkeypatch.setattr(module, "packed_signs", lambda logits, bits: packed_signs(-logits, bits))
    with pytest.raises(DataError, match="10 images"):
        export_model(model, tmp_path / "model.onnx", images=[photos])
    assert not list(tmp_path.iterdir())


def test_half_precision_where_exact(model: HashModel, photos: Path, tmp_path: Path) -> None:
    def largest_half(model: HashModel) -> int:
        export_model(model, tmp_path / "model.onnx", images=[photos])
        stored = onnx.load(tmp_path / "model.onnx").graph.initializer
        return max(len(t.raw_data) for t in stored if t.data_type == onnx.TensorProto.FLOAT16)

    tensors = {name: t.half().float() if t.is_floating_point() else t for name, t in model.tensors().items()}
    largest = max(t.numel() for t in tensors.values() if t.ndim == 2)
    assert largest_half(model) < 2 * largest  # zeros
    assert largest_half(HashModel(model.spec, tensors, model.folder)) == 2 * largest


# The command


@pytest.mark.slow
def test_export_command(model: HashModel, photos: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    out = tmp_path / "model.onnx"
    done = cli("export", tmp_path / "run", "--out", out, "--images", photos)
    assert done.code == 0, done.err
    assert f"{out}: {out.stat().st_size / 1e6:.1f} MB" in done.text
    assert "100.00% of the bits on 10 images" in done.text
    report = cli("export", tmp_path / "run", "--out", out, "--json").json
    assert report == {
        "path": str(out),
        "size": out.stat().st_size,
        "compared_on": "4 sample photos",
        "equal_bits": 1.0,
        "equal_codes": 1.0,
    }


@pytest.mark.slow
def test_documented_example_without_torch(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
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
