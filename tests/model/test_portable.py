"""A model in one ONNX file: it agrees with PyTorch's, needs no PyTorch, and rejects damaged and untrusted files."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from centerhash import weights
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import with_checksum
from centerhash.model.export import with_metadata
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from centerhash.model.portable import PortableModel, read_spec
from centerhash.model.shares import descended, exact_weights, softmax_weights
from centerhash.model.spec import Shares
from centerhash.training.run import train
from tests.networks.toys import untrained_model
from tests.toys import feature_dataset, python_process, toy_config, write_images

COMPILED = ["onnx", "openvino"]


def ported(model: HashModel, folder: Path) -> PortableModel:
    model.save_portable(folder)
    return PortableModel.load(folder)


def check_agreement(model: HashModel, other: PortableModel, features: Any, outputs: Any) -> None:
    """Compare everything for the same images."""
    np.testing.assert_array_equal(other.encode_features(outputs), model.encode_features(features))
    np.testing.assert_allclose(other.logits(outputs), model.logits(features), rtol=1e-3, atol=1e-4)
    assert (other.bits, other.classes, other.digest) == (model.bits, model.classes, model.digest)
    assert (other.has_centers, other.has_probabilities) == (model.has_centers, model.has_probabilities)
    assert other.general_bits == model.general_bits
    if model.general_bits is None:
        with pytest.raises(ConfigError, match="general"):
            other.general_codes(outputs)
    else:
        np.testing.assert_array_equal(other.general_codes(outputs), model.general_codes(features))
    if model.has_probabilities:
        np.testing.assert_allclose(
            other.label_probabilities(outputs), model.label_probabilities(features), atol=1e-4
        )
    else:
        with pytest.raises(ConfigError, match="probabilities"):
            other.label_probabilities(outputs)
    assert other.label_names(outputs) == model.label_names(features)
    if not model.has_centers:
        with pytest.raises(ConfigError, match=model.spec.method):
            other.explain_features(outputs)
        return
    np.testing.assert_array_equal(other.centers, model.centers.numpy())
    np.testing.assert_allclose(other.similarities(outputs), model.similarities(features), atol=1e-5)
    labels = np.random.default_rng(0).random((len(features), len(model.classes))) < 0.5
    labels[0] = False
    np.testing.assert_allclose(other.weights(outputs, labels), model.weights(features, labels), atol=1e-4)
    for actual, expected in zip(
        other.explain_features(outputs), model.explain_features(features), strict=True
    ):
        assert [row.distance for row in actual if row.weight] == [
            row.distance for row in expected if row.weight
        ]


# Agreement with PyTorch

DEEP = ["ics-softmax", "ics", "ics-printed", "csq", "dpsh", "dnnh", "greedyhash"]
SHALLOW = ["lsh", "sh", "itq", "bre", "ksh", "sdh"]


@pytest.mark.parametrize("method", [*DEEP, *SHALLOW])
def test_model_of_features_agrees(method: str, tmp_path: Path) -> None:
    dataset = feature_dataset()
    assert dataset.features is not None
    options = {"solver": "pgd"} if method == "ics" else {}
    model = train(dataset, config=toy_config(method=method, epochs=2, options=options))
    features = np.concatenate([dataset.features[:30], np.zeros((1, dataset.features.shape[1]), np.float32)])
    other = ported(model, tmp_path)
    check_agreement(model, other, features, features)
    single = np.concatenate([other.logits(features[row : row + 1]) for row in range(len(features))])
    np.testing.assert_array_equal(single >= 0, other.logits(features) >= 0)
    assert other.encode_features(features[:0]).shape == (0, model.bits)
    with pytest.raises(ConfigError, match="features"):
        other.encode(tmp_path)
    with pytest.raises(InputError):
        other.encode_features(features[:, 1:])


@pytest.mark.parametrize(
    "changes", [{}, {"method": "dpsh", "label_threshold": None}, {"method": "ics-softmax"}]
)
def test_model_of_images_agrees(changes: dict[str, Any], tmp_path: Path) -> None:
    model = untrained_model(**changes)
    paths = write_images(tmp_path / "images", 6, size=96)
    other = ported(model, tmp_path)
    features = model.features_of(paths, device="cpu", engine="torch")
    for engine in COMPILED:
        outputs = other.features_of(paths, engine=engine)
        assert outputs.shape == (6, other.spec.features)
        check_agreement(model, other, features, outputs)
        assert other.encoder(engine=engine).engine.name == engine
    np.testing.assert_array_equal(other.encode(paths[0]), model.encode_features(features[:1])[0])
    cached = other.features_of(paths, cache=tmp_path / "cache")
    np.testing.assert_array_equal(other.features_of(paths, cache=tmp_path / "cache"), cached)


@pytest.mark.slow
def test_trained_model_agrees(image_run: Path, scene_folder: Path) -> None:
    """A run holds its model.onnx; this one has label probabilities and no general code."""
    model, other = HashModel.load(image_run), PortableModel.load(image_run)
    paths = sorted((scene_folder / "images").iterdir())[:8]
    features = model.features_of(paths, device="cpu", engine="torch")
    check_agreement(model, other, features, other.features_of(paths, engine="onnx"))


@given(
    distances=st.lists(st.lists(st.floats(0, 8), min_size=4, max_size=4), min_size=1, max_size=5),
    beta=st.floats(1e-3, 5),
    entropy=st.floats(0.02, 5),
    seed=st.integers(0, 99),
)
def test_solvers_equal_torch(distances: list[list[float]], beta: float, entropy: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random((len(distances), 4)) < 0.6
    values = np.where(mask, np.array(distances), 0)
    d, m = torch.tensor(values), torch.tensor(mask)
    solved = weights.exact_weights(d, m, beta, entropy)
    np.testing.assert_allclose(exact_weights(values, mask, beta, entropy), solved.numpy(), atol=1e-6)
    for form, solver in itertools.product(("joint", "per_center"), ("pgd", "printed")):
        shares = Shares(by="ics", beta=beta, entropy=entropy, scale=1.0, form=form, solver=solver, steps=5)
        steps = (
            weights.pgd_weights(d, m, beta, entropy, 0.1, 5, shares.form)
            if solver == "pgd"
            else weights.printed_weights(d, m, entropy, 0.1, 5)
        )
        np.testing.assert_allclose(descended(values, mask, shares), steps.numpy(), atol=1e-6)


def test_softmax_weights_without_labels() -> None:
    assert softmax_weights(np.ones((1, 3)), np.zeros((1, 3), bool)).tolist() == [[0, 0, 0]]


# Loading


def test_load_and_copy(toy_model: HashModel, tmp_path: Path) -> None:
    other = ported(toy_model, tmp_path / "one")
    assert isinstance(load(tmp_path / "one"), PortableModel)
    toy_model.save(tmp_path / "both")
    toy_model.save_portable(tmp_path / "both")
    both = load(tmp_path / "both")
    assert isinstance(both, HashModel)
    both.save_portable(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.onnx").read_bytes() == other.content()
    assert repr(other) == repr(both).replace("HashModel", "PortableModel")
    other.save(tmp_path / "again")
    assert PortableModel.load(tmp_path / "again").spec == other.spec


def test_changed_model_is_exported_again(toy_model: HashModel, tmp_path: Path) -> None:
    toy_model.save_portable(tmp_path / "old")
    tensors = {name: tensor.clone() for name, tensor in toy_model.tensors().items()}
    next(t for name, t in tensors.items() if name.endswith("weight")).mul_(1.5)
    changed = HashModel(toy_model.spec, tensors, tmp_path / "old")
    changed.save(tmp_path / "new")
    assert not (tmp_path / "new" / "model.onnx").exists()
    changed.save_portable(tmp_path / "new")
    assert PortableModel.load(tmp_path / "new").digest == changed.digest != toy_model.digest


def test_encoders_end_with_model(image_run: Path) -> None:
    # Nothing has to wait for the collector of cycles.
    gc.disable()
    try:
        model = PortableModel.load(image_run)
        encoder = weakref.ref(model.encoder(engine="onnx"))
        assert encoder() is not None
        del model
        assert encoder() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("settings", [{"engine": "torch"}, {"device": "cuda"}, {"engine": "onxx"}])
def test_unusable_engines(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ported(untrained_model(), tmp_path).encoder(**settings)


# Damaged and untrusted files


@pytest.fixture(scope="module")
def file(toy_model: HashModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("portable")
    toy_model.save_portable(folder)
    return folder / "model.onnx"


def assert_rejected(data: bytes, tmp_path: Path) -> None:
    """A file of these bytes raises one line with its name."""
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(DataError) as caught:
        PortableModel.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08" * 100, b"\xff" * 100, b"\x72\x04\x0a\x02ab"])
def test_files_without_model(data: bytes, tmp_path: Path) -> None:
    assert_rejected(data, tmp_path)


def test_cuts_and_flipped_bits(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    generator = np.random.default_rng(0)
    for end in generator.integers(0, len(data), 40).tolist():
        assert_rejected(data[:end], tmp_path)
    for byte in generator.integers(0, len(data), 80).tolist():
        assert_rejected(data[:byte] + bytes([data[byte] ^ 4]) + data[byte + 1 :], tmp_path)


def test_file_changed_after_loading(file: Path, toy_model: HashModel, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(file.read_bytes())
    model = PortableModel.load(tmp_path)
    path.write_bytes(file.read_bytes().replace(b"\x00\x00", b"\x00\x01", 1))
    with pytest.raises(DataError, match="checksum"):
        model.encode_features(np.zeros((2, toy_model.spec.features), np.float32))


def with_text(network: bytes, text: str) -> bytes:
    """An ONNX file with a text as its metadata."""
    entry = onnx.StringStringEntryProto(key="centerhash", value=text)
    added: bytes = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
    return network + added


@pytest.mark.parametrize(
    "change",
    [
        {"bits": 10**9},
        {"bits": 8},
        {"classes": ["one"]},
        {"centers": "!"},
        {"directions": None},
        {"shares": {"by": "ics"}},
        {"backbone": "x", "preprocessing": None},
        {"preprocessing": {"resize": 10**6, "crop": 9, "interpolation": "bilinear"}},
        {"format": 3},
        {"unknown": 1},
        {"network_checksum": 1},
    ],
)
def test_contradictory_metadata(change: dict[str, Any], file: Path, tmp_path: Path) -> None:
    spec = read_spec(file)
    network = file.read_bytes()[: spec.network_size]
    values = {**spec.model_dump(mode="json"), **change}
    assert_rejected(with_text(network, json.dumps(with_checksum(values))), tmp_path)
    assert_rejected(with_text(network, json.dumps(values)), tmp_path)


def network_of(width: int, location: str | None = None) -> bytes:
    """A network of features with other outputs, or with weights in another file."""
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, [1, width], np.zeros(width, np.float32).tobytes(), True
    )
    if location is not None:
        set_external_data(weights, location)
        weights.ClearField("raw_data")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("features", "logits")]
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["logits"], value=weights)], "g", ends[:1], ends[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


def with_network(file: Path, network: bytes) -> bytes:
    """The metadata of a file for another network, with checksums that fit."""
    values = read_spec(file).model_dump(mode="json", exclude={"network_size", "network_checksum"})
    return with_metadata(network, values)


def test_network_contradicts_metadata(file: Path, toy_model: HashModel, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(with_network(file, network_of(3)))
    model = PortableModel.load(tmp_path)
    with pytest.raises(DataError, match=r"model\.onnx"):
        model.encode_features(np.zeros((2, toy_model.spec.features), np.float32))
    for network in (b"", onnx.ModelProto().SerializeToString()):
        assert_rejected(with_network(file, network), tmp_path)


def test_other_files_are_not_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(12))
    outside = with_network(file, network_of(3, "secret"))
    assert_rejected(outside, tmp_path)
    # The same length, 8, in two bytes.
    assert_rejected(outside.replace(b"\x08location", b"\x88\x00location"), tmp_path)
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "model.onnx").symlink_to(file)
    with pytest.raises(DataError, match="link"):
        PortableModel.load(tmp_path)


def test_class_named_location(file: Path, tmp_path: Path) -> None:
    spec = read_spec(file)
    classes = ["location", *spec.classes[1:]]
    values = spec.model_dump(mode="json", exclude={"network_size", "network_checksum"})
    network = file.read_bytes()[: spec.network_size]
    (tmp_path / "model.onnx").write_bytes(with_metadata(network, {**values, "classes": classes}))
    assert PortableModel.load(tmp_path).classes[0] == "location"


# Without PyTorch

SCRIPT = """
import sys
for name in ("torch", "torchvision", "timm", "onnx"):
    sys.modules[name] = None
from pathlib import Path
import centerhash
folder = Path(sys.argv[1])
photos = sorted((folder / "photos").iterdir())
for source in ("coco", folder / "portable"):
    model = centerhash.load(source)
    print(model.encode(photos, engine="onnx").shape, len(model.explain(photos[0])))
try:
    centerhash.load(folder / "torch")
except centerhash.CenterhashError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_torch(toy_model: HashModel, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 3, size=80)
    untrained_model().save_portable(tmp_path / "portable")
    toy_model.save(tmp_path / "torch")
    done = python_process("-c", SCRIPT, tmp_path)
    assert done.code == 0, done.err
    coco, portable, error = done.out.splitlines()
    assert coco == "(3, 64) 5"
    assert portable.startswith("(3, 20) ")
    assert "centerhash[train]" in error
