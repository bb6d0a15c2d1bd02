"""A model in one ONNX file: it agrees with PyTorch's, needs no PyTorch, and hostile files are one-line errors."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
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

import centerhash as ch
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import with_checksum
from centerhash.methods.weights import exact_weights
from centerhash.model import portable
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from centerhash.model.portable import PortableModel, read_spec, with_metadata
from centerhash.model.shares import exact_joint, exact_per_center, softmax_weights
from centerhash.training.run import train
from tests.networks.toys import untrained_model
from tests.toys import CLASSES, feature_dataset, process_environment, toy_config, write_images

COMPILED = ["onnx", "openvino"]


def ported(model: HashModel, folder: Path) -> PortableModel:
    model.save_portable(folder)
    return PortableModel.load(folder)


def check_agreement(model: HashModel, other: PortableModel, mine: Any, theirs: Any) -> None:
    """Compare everything for features of the same images, which differ in kind."""
    np.testing.assert_array_equal(other.encode_features(theirs), model.encode_features(mine))
    np.testing.assert_allclose(other.logits(theirs), model.logits(mine), rtol=1e-3, atol=1e-4)
    assert (other.bits, other.classes, other.digest) == (model.bits, model.classes, model.digest)
    assert (other.has_centers, other.has_probabilities) == (model.has_centers, model.has_probabilities)
    assert other.visual_bits == model.visual_bits
    if model.visual_bits is None:
        with pytest.raises(ConfigError, match="visual"):
            other.visual_codes(theirs)
    else:
        np.testing.assert_array_equal(other.visual_codes(theirs), model.visual_codes(mine))
    if model.has_probabilities:
        np.testing.assert_allclose(
            other.label_probabilities(theirs), model.label_probabilities(mine), atol=1e-4
        )
    else:
        with pytest.raises(ConfigError, match="probabilities"):
            other.label_probabilities(theirs)
    assert other.label_names(theirs) == model.label_names(mine)
    if not model.has_centers:
        with pytest.raises(ConfigError, match=model.spec.method):
            other.explain_features(theirs)
        return
    np.testing.assert_array_equal(other.centers, model.centers.numpy())
    np.testing.assert_allclose(other.similarities(theirs), model.similarities(mine), atol=1e-5)
    labels = np.random.default_rng(0).random((len(mine), len(model.classes))) < 0.5
    labels[0] = False
    np.testing.assert_allclose(other.weights(theirs, labels), model.weights(mine, labels), atol=1e-4)
    for found, expected in zip(other.explain_features(theirs), model.explain_features(mine), strict=True):
        assert [row.distance for row in found if row.weight] == [
            row.distance for row in expected if row.weight
        ]


# Agreement with PyTorch

DEEP = ["ics-softmax", "ics", "ics-printed", "csq", "dpsh", "dnnh", "greedyhash"]
SHALLOW = ["lsh", "sh", "itq", "bre", "ksh", "sdh"]


@pytest.mark.parametrize("method", [*DEEP, *SHALLOW])
def test_a_model_of_features_agrees(method: str, tmp_path: Path) -> None:
    dataset = feature_dataset()
    assert dataset.features is not None
    options = {"solver": "exact"} if method == "ics-printed" else {}
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
def test_a_model_of_images_agrees(changes: dict[str, Any], tmp_path: Path) -> None:
    model = untrained_model(**changes)
    paths = write_images(tmp_path / "images", 6, size=96)
    other = ported(model, tmp_path)
    mine = model.features_of(paths, device="cpu", engine="torch")
    for engine in COMPILED:
        theirs = other.features_of(paths, engine=engine)
        assert theirs.shape == (6, other.spec.features)
        check_agreement(model, other, mine, theirs)
        assert other.encoder(engine=engine).engine.name == engine
    np.testing.assert_array_equal(other.encode(paths[0]), model.encode_features(mine[:1])[0])
    cached = other.features_of(paths, cache=tmp_path / "cache")
    np.testing.assert_array_equal(other.features_of(paths, cache=tmp_path / "cache"), cached)


@pytest.mark.slow
def test_all_outputs_of_a_trained_model_agree(image_run: Path, scene_folder: Path) -> None:
    """A run holds its model.onnx; this one has label probabilities and no visual code."""
    model, other = HashModel.load(image_run), PortableModel.load(image_run)
    paths = sorted((scene_folder / "images").iterdir())[:8]
    mine = model.features_of(paths, device="cpu", engine="torch")
    check_agreement(model, other, mine, other.features_of(paths, engine="onnx"))


@given(
    distances=st.lists(st.lists(st.floats(0, 8), min_size=4, max_size=4), min_size=1, max_size=5),
    beta=st.floats(1e-3, 5),
    entropy=st.floats(0.02, 5),
    seed=st.integers(0, 99),
)
def test_the_solvers_are_those_of_torch(
    distances: list[list[float]], beta: float, entropy: float, seed: int
) -> None:
    mask = np.random.default_rng(seed).random((len(distances), 4)) < 0.6
    values = np.where(mask, np.array(distances), 0)
    for solve, form in ((exact_joint, "joint"), (exact_per_center, "per_center")):
        expected = exact_weights(
            torch.tensor(values),
            torch.tensor(mask),
            beta,
            entropy,
            form,  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(solve(values, mask, beta, entropy), expected.numpy(), atol=1e-6)


def test_rows_without_labels_have_no_weights() -> None:
    assert softmax_weights(np.ones((1, 3)), np.zeros((1, 3), bool)).tolist() == [[0, 0, 0]]


# Loading


def test_a_folder_with_only_the_file_is_a_model(toy_model: HashModel, tmp_path: Path) -> None:
    other = ported(toy_model, tmp_path / "one")
    assert isinstance(load(tmp_path / "one"), PortableModel)
    toy_model.save(tmp_path / "both")
    toy_model.save_portable(tmp_path / "both")
    both = load(tmp_path / "both")
    assert isinstance(both, HashModel)
    both.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.onnx").read_bytes() == other.content()
    assert repr(other) == repr(both).replace("HashModel", "PortableModel")
    other.save(tmp_path / "again")
    assert PortableModel.load(tmp_path / "again").spec == other.spec


def test_a_changed_model_does_not_copy_the_file_of_before(toy_model: HashModel, tmp_path: Path) -> None:
    toy_model.save_portable(tmp_path / "old")
    tensors = {name: tensor.clone() for name, tensor in toy_model.tensors().items()}
    next(t for name, t in tensors.items() if name.endswith("weight")).mul_(1.5)
    changed = HashModel(toy_model.spec, tensors, tmp_path / "old")
    changed.save(tmp_path / "new")
    assert not (tmp_path / "new" / "model.onnx").exists()
    changed.save_portable(tmp_path / "new")
    assert PortableModel.load(tmp_path / "new").digest == changed.digest != toy_model.digest


def test_a_model_that_is_gone_leaves_no_encoder_with_its_threads(image_run: Path) -> None:
    gc.disable()  # nothing has to wait for the collector of cycles
    try:
        model = PortableModel.load(image_run)
        encoder = weakref.ref(model.encoder(engine="onnx"))
        assert encoder() is not None
        del model
        assert encoder() is None
    finally:
        gc.enable()


def test_engines_that_cannot_run_the_file_are_named(tmp_path: Path) -> None:
    other = ported(untrained_model(), tmp_path)
    for settings in ({"engine": "torch"}, {"device": "cuda"}):
        with pytest.raises(ConfigError, match="ONNX"):
            other.encoder(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="onxx"):
        other.encoder(engine="onxx")


# Files of others


@pytest.fixture(scope="module")
def file(toy_model: HashModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("portable")
    toy_model.save_portable(folder)
    return folder / "model.onnx"


def refused(data: bytes, tmp_path: Path) -> str:
    """The one-line error of a file with these bytes."""
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(DataError) as caught:
        PortableModel.load(tmp_path).content()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a model",
        b"\x08" * 100,
        b"\xff" * 100,
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a graph of 2^63 bytes
        b"\x72\xff\xff\xff\xff\x0f",  # metadata of 4 GB
        b"\x08\x01" * 200_000,
        b"\x72\x04\x0a\x02ab",
    ],
)
def test_files_that_are_no_models(data: bytes, tmp_path: Path) -> None:
    refused(data, tmp_path)


def test_every_cut_and_any_flipped_byte_is_found(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    generator = np.random.default_rng(0)
    for end in generator.integers(0, len(data), 40).tolist():
        refused(data[:end], tmp_path)
    for place in generator.integers(0, len(data), 80).tolist():
        refused(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], tmp_path)


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
    ],
)
def test_metadata_that_do_not_fit(change: dict[str, Any], file: Path, tmp_path: Path) -> None:
    spec = read_spec(file)
    text = json.dumps(with_checksum({**spec.model_dump(mode="json"), **change})).encode()
    entry = portable._written(1, b"centerhash") + portable._written(2, text)
    refused(file.read_bytes()[: spec.network_size] + portable._written(14, entry), tmp_path)


def other_network(file: Path, network: bytes, folder: Path) -> PortableModel:
    """The metadata of a file with another network, and checksums that fit."""
    spec = read_spec(file).model_dump(mode="json")
    values = {name: value for name, value in spec.items() if not name.startswith("network_")}
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(with_metadata(network, values))
    return PortableModel.load(folder)


def network_of(width: int, **external: Any) -> bytes:
    """A network of features that has other outputs, or weights in another file."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1, width], np.zeros(width, np.float32))
    if external:
        weights.ClearField("float_data")
        weights.data_location = TensorProto.EXTERNAL
        entry = weights.external_data.add()
        entry.key, entry.value = "location", external["location"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("features", "logits")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["logits"])], "g", ends[:1], ends[1:], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


def test_networks_that_do_not_fit_their_metadata(file: Path, toy_model: HashModel, tmp_path: Path) -> None:
    features = np.zeros((2, toy_model.spec.features), np.float32)
    for network in (network_of(3), b"", onnx.ModelProto().SerializeToString()):
        with pytest.raises(DataError, match=r"model\.onnx"):
            other_network(file, network, tmp_path).encode_features(features)
    outside = network_of(3, location="../secret")
    with pytest.raises(DataError, match="other files"):
        other_network(file, outside, tmp_path).encode_features(features)


def test_links_are_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to(file)
    with pytest.raises(DataError, match="link"):
        PortableModel.load(tmp_path)


def test_the_metadata_are_read_without_the_network(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PortableModel, "content", lambda _: pytest.fail("the network was read"))
    model = PortableModel.load(file.parent)
    assert model.classes == CLASSES
    assert model.centers.shape == (len(CLASSES), model.bits)


# Without PyTorch

SCRIPT = """
import sys
for name in ("torch", "torchvision", "timm", "onnx"):
    sys.modules[name] = None  # an import of it fails
from pathlib import Path
import centerhash as ch

folder = Path(sys.argv[1])
model = ch.load(sys.argv[2])
photos = sorted(folder.glob("*.png"))
codes = model.encode(photos, engine="onnx")
assert codes.shape == (len(photos), model.bits)
print(model.explain(photos[0], engine="onnx"))
with ch.Index.create(folder / "index", model) as index:
    pass
with ch.Index.open(folder / "index", engine="onnx") as index:
    print(index.add(photos, progress=False))
    assert index.search(photos[1], k=3)[0].id == index.search(photos[1], k=1)[0].id
    label = model.classes[0]
    print(index.search(labels={label: 1.0}, k=2))
    id = index.search(photos[0], k=1)[0].id
    print(index.search(id=id, k=2), index.verify())
    index.add_bytes(photos[2].read_bytes())
assert not [name for name in sys.modules if name.partition(".")[0] == "torch" and sys.modules[name]]
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["coco", "toy"])
def test_photos_are_indexed_and_searched_without_torch(source: str, tmp_path: Path) -> None:
    write_images(tmp_path, 5, size=80)
    if source == "toy":
        source = str(tmp_path / "model")
        untrained_model().save(source)
        untrained_model().save_portable(source)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), source],
        env=process_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    with ch.Index.open(tmp_path / "index", read_only=True) as index:
        assert len(index) == 5
        assert sorted(path.name for path in (tmp_path / "index" / "model").iterdir()) == ["model.onnx"]


@pytest.mark.slow
def test_weights_of_torch_without_torch_are_an_error(toy_model: HashModel, tmp_path: Path) -> None:
    toy_model.save(tmp_path / "run")
    script = f"""
import sys
sys.modules["torch"] = None
import centerhash as ch
try:
    ch.load({str(tmp_path / "run")!r})
except ch.CenterhashError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=process_environment(), capture_output=True, text=True, check=True
    )
    assert "centerhash[train]" in done.stdout
