"""HashModel: codes, labels and weights of features and images, files on disk, and what is rejected."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from centerhash.centers import hash_centers
from centerhash.codes import hamming
from centerhash.core.errors import ConfigError, DataError, InputError, OutputError, UnknownMethodError
from centerhash.core.files import with_checksum
from centerhash.data import Dataset, open_dataset
from centerhash.methods.registry import METHODS
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from centerhash.training.run import train
from tests.toys import CLASSES, WIDTH

SAVED = ("model.json", "model.safetensors")


@pytest.fixture(scope="module")
def features(toy_dataset: Dataset) -> NDArray[Any]:
    assert toy_dataset.features is not None
    return np.array(toy_dataset.features[:40])


@pytest.fixture(scope="module")
def stored(toy_model: HashModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    toy_model.save(folder)
    return folder


def untrained(threshold: float = 0.0, method: str = "ewcs", **head: Any) -> HashModel:
    """A model of random numbers."""
    options = HeadOptions(**head)
    spec = ModelSpec(
        method=method,
        options={},
        bits=24,
        features=300,
        classes=CLASSES,
        head=options,
        backbone=None,
        label_threshold=threshold,
        seed=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = build_head(spec.features, spec.bits, options)
    tensors = {f"encoder.{name}": value for name, value in network.state_dict().items()}
    return HashModel(spec, {"centers": torch.from_numpy(hash_centers(len(CLASSES), 24)), **tensors})


def on_the_border(model: HashModel, scale: float, count: int) -> NDArray[np.float32]:
    """Features (count, D) with a logit each that is as near to 0 as float32 can be."""
    generator = np.random.default_rng(5)
    ends = (generator.normal(size=(2, count, model.spec.features)) * scale).astype(np.float32)
    rows, bits = np.arange(count), np.arange(count) % model.bits
    for _ in range(30):
        middle = (ends[0] + ends[1]) / 2
        first, now = (model.logits(part)[rows, bits] >= 0 for part in (ends[0], middle))
        ends = np.where((first == now)[None, :, None], [middle, ends[1]], [ends[0], middle]).astype(
            np.float32
        )
    return np.concatenate(ends)


def test_load_gives_equal_codes(toy_model: HashModel, stored: Path, features: NDArray[Any]) -> None:
    loaded = HashModel.load(stored)
    assert loaded.spec == toy_model.spec
    assert np.array_equal(loaded.logits(features), toy_model.logits(features))
    codes, logits = toy_model.encode_features(features), toy_model.logits(features)
    assert (codes.dtype, logits.dtype) == (np.int8, np.float32)
    assert np.array_equal(codes, np.where(logits >= 0, 1, -1))
    assert np.array_equal(loaded.encode_features(features), codes)
    assert loaded.explain_features(features[:3]) == toy_model.explain_features(features[:3])


def test_save_again_gives_equal_files(stored: Path, tmp_path: Path) -> None:
    HashModel.load(stored).save(tmp_path / "again")
    for name in SAVED:
        assert (tmp_path / "again" / name).read_bytes() == (stored / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == list(SAVED)


@pytest.mark.parametrize(
    ("scale", "head"),
    [
        (1.0, {"hidden": (64,)}),
        (1.0, {"hidden": (), "standardise": False}),
        (1e4, {"hidden": (), "standardise": False}),
        (1e4, {"hidden": (64,), "standardise": False, "hidden_norm": False}),
        (1e-4, {"hidden": (), "standardise": False}),
    ],
)
def test_codes_do_not_depend_on_batch(scale: float, head: dict[str, Any]) -> None:
    model = untrained(**head)
    features = on_the_border(model, scale, count=96)
    together = model.encode_features(features)
    one_by_one = [model.encode_features(features[row : row + 1])[0] for row in range(len(features))]
    assert np.array_equal(together, one_by_one)
    assert np.array_equal(together[::-1], model.encode_features(features[::-1]))


def test_zero_logits() -> None:
    model = untrained(hidden=(), standardise=False)
    zeros = {name: torch.zeros_like(value) for name, value in model.tensors().items() if name != "centers"}
    model = HashModel(model.spec, {**zeros, "centers": model.centers})
    assert (model.encode_features(np.ones((2, 300), np.float32)) == 1).all()


def test_kinds_of_arrays(toy_model: HashModel, features: NDArray[Any], tmp_path: Path) -> None:
    half = features.astype(np.float16)
    np.save(tmp_path / "half.npy", half)
    mapped = np.load(tmp_path / "half.npy", mmap_mode="r")
    expected = toy_model.logits(half.astype(np.float32))
    assert np.array_equal(toy_model.logits(mapped), expected)
    codes = toy_model.encode_features(half)
    for same in (np.asfortranarray(half), half[:, ::-1].copy()[:, ::-1], half.astype(np.float64)):
        np.testing.assert_allclose(toy_model.logits(same), expected, rtol=1e-4, atol=1e-5)
        assert np.array_equal(toy_model.encode_features(same), codes)


def test_inputs_are_unchanged(toy_model: HashModel, toy_dataset: Dataset, features: NDArray[Any]) -> None:
    labels = np.array(toy_dataset.labels[: len(features)])
    before = features.copy(), labels.copy()
    toy_model.encode_features(features)
    toy_model.weights(features, labels)
    toy_model.explain_features(features)
    assert np.array_equal(features, before[0])
    assert np.array_equal(labels, before[1])


def test_no_rows(toy_model: HashModel) -> None:
    nothing = np.zeros((0, WIDTH), np.float32)
    assert toy_model.encode_features(nothing).shape == (0, 16)
    assert toy_model.weights(nothing, np.zeros((0, len(CLASSES)), bool)).shape == (0, len(CLASSES))
    assert toy_model.predict_labels(nothing).shape == (0, len(CLASSES))
    assert toy_model.explain_features(nothing) == []


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, WIDTH + 1), np.float32),
        np.zeros(WIDTH, np.float32),
        np.zeros((2, 3, WIDTH), np.float32),
        np.zeros((3, WIDTH), np.int64),
        np.zeros((3, WIDTH), np.complex64),
        np.array([["a"] * WIDTH]),
        np.full((3, WIDTH), np.nan, np.float32),
        np.full((3, WIDTH), -np.inf, np.float32),
    ],
)
def test_encode_features_rejects(toy_model: HashModel, wrong: NDArray[Any]) -> None:
    with pytest.raises(InputError, match="features"):
        toy_model.encode_features(wrong)


@pytest.mark.parametrize("shape", [(40, 5), (39, 6), (6, 40)])
def test_weights_rejects_labels(toy_model: HashModel, features: NDArray[Any], shape: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="labels"):
        toy_model.weights(features, np.zeros(shape, bool))


def test_weights_sum_to_one(toy_model: HashModel, toy_dataset: Dataset, features: NDArray[Any]) -> None:
    labels = np.array(toy_dataset.labels[: len(features)])
    labels[3] = False
    weights = toy_model.weights(features, labels)
    assert weights.shape == labels.shape
    assert (weights >= 0).all()
    assert not weights[~labels].any()
    expected = np.ones(len(labels))
    expected[3] = 0
    np.testing.assert_allclose(weights.sum(axis=1), expected, atol=1e-6)


def test_similarities_by_loop(toy_model: HashModel, features: NDArray[Any]) -> None:
    logits, centers = toy_model.logits(features).astype(np.float64), toy_model.directions.numpy()
    similarities = toy_model.similarities(features)
    for row in range(len(features)):
        for j in range(len(CLASSES)):
            expected = logits[row] @ centers[j] / np.linalg.norm(logits[row]) / np.linalg.norm(centers[j])
            assert similarities[row, j] == pytest.approx(expected, abs=1e-5)


def test_predict_labels_by_similarity(features: NDArray[Any]) -> None:
    wide = np.random.default_rng(1).normal(size=(50, 300)).astype(np.float32)
    for threshold in (-2.0, -0.1, 0.1, 2.0):
        model = untrained(threshold=threshold)
        similarities, labels = model.similarities(wide), model.predict_labels(wide)
        nearest = similarities.argmax(axis=1)
        assert labels[np.arange(50), nearest].all()
        others = labels.copy()
        others[np.arange(50), nearest] = similarities[np.arange(50), nearest] >= threshold
        assert np.array_equal(others, similarities >= threshold)


def test_predict_labels_by_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    model = untrained()
    likely = np.zeros((3, len(model.classes)), np.float32)
    likely[0, :2], likely[1, :2], likely[2, :2] = (0.6, 0.5), (0.1, 0.3), (0.1, 0.2)
    monkeypatch.setattr(model, "has_probabilities", True)
    monkeypatch.setattr(model, "label_probabilities", lambda _: likely)
    features = np.random.default_rng(1).normal(size=(3, 300)).astype(np.float32)
    first, second = model.classes[:2]
    assert model.label_names(features) == [(first, second), (second,), ()]
    explanation = model.explain_features(features, top=3)[2]
    assert [match.weight for match in explanation] == [0, 0, 0]
    assert str(explanation) == ""


def test_predict_labels_separable_data(toy_model: HashModel, toy_dataset: Dataset) -> None:
    assert toy_dataset.features is not None
    query = toy_dataset.splits.query
    labels = toy_model.predict_labels(toy_dataset.features[query])
    assert (labels == toy_dataset.labels[query]).mean() > 0.9


@pytest.mark.parametrize("top", [1, 3, 50])
def test_explain_features(toy_model: HashModel, features: NDArray[Any], top: int) -> None:
    codes, predicted = toy_model.encode_features(features), toy_model.predict_labels(features)
    distances = hamming(codes, toy_model.centers.numpy().astype(np.int8))
    similarities = toy_model.similarities(features)
    for row, explanation in enumerate(toy_model.explain_features(features, top=top)):
        assert len(explanation) == min(len(CLASSES), max(top, int(predicted[row].sum())))
        order = [(-match.weight, -match.similarity) for match in explanation]
        assert order == sorted(order)
        assert sum(match.weight for match in explanation) == pytest.approx(1, abs=1e-5)
        assert {match.label for match in explanation if match.weight > 0} == {
            name for name, is_predicted in zip(CLASSES, predicted[row], strict=True) if is_predicted
        }
        for match in explanation:
            column = CLASSES.index(match.label)
            assert match.distance == distances[row, column]
            assert match.similarity == pytest.approx(float(similarities[row, column]))


@pytest.mark.parametrize("method", [row.name for row in METHODS.values() if row.family == "central"])
def test_central_methods_explain(method: str) -> None:
    model = untrained(threshold=-0.05, method=method)
    wide = np.random.default_rng(2).normal(size=(4, 300)).astype(np.float32)
    for explanation in model.explain_features(wide):
        assert sum(match.weight for match in explanation) == pytest.approx(1, abs=1e-5)


def test_model_without_backbone(toy_model: HashModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backbone"):
        toy_model.encode([tmp_path / "photo.jpg"])


def test_encode_images(image_run: Path, scene_folder: Path, feature_cache: Path) -> None:
    model, dataset = HashModel.load(image_run), open_dataset(scene_folder)
    paths = (dataset.image_paths or ())[:3]
    codes = model.encode(paths, cache=feature_cache, device="cpu")
    features = model.features_of([str(path) for path in paths], cache=feature_cache, device="cpu")
    assert codes.shape == (3, 32)
    assert np.array_equal(codes, model.encode_features(features))


@pytest.mark.slow
def test_encode_one_image(image_run: Path, scene_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(image_run)
    path = scene_folder / "images" / "000003.jpg"
    image = Image.open(path)
    forms = [path, str(path), path.read_bytes(), image, np.asarray(image)]
    code = model.encode(path, device="cpu")
    assert code.shape == (32,)
    # the network is open now, and stays so
    monkeypatch.setattr("centerhash.networks.encoder.open_engine", lambda *_: pytest.fail("opened again"))
    for form in forms:
        assert np.array_equal(model.encode(form, device="cpu"), code)
    assert np.array_equal(model.encode(forms, device="cpu"), np.repeat(code[None], 5, axis=0))
    assert np.array_equal(
        model.encode((form for form in forms[:2]), device="cpu"), np.repeat(code[None], 2, axis=0)
    )
    explanation = model.explain(path, device="cpu")
    assert model.explain([path], device="cpu") == [explanation]
    assert {match.label for match in explanation if match.weight > 0} == set(
        model.label_names(model.features_of([path], device="cpu"))[0]
    )


@pytest.mark.parametrize("wrong", [None, 5, ["a.jpg", 5], {"a": 1}.values()])
def test_encode_rejects_images(image_run: Path, wrong: Any) -> None:
    with pytest.raises(InputError, match="a path, bytes, a PIL image or a uint8 array"):
        HashModel.load(image_run).encode(wrong)


def test_repr(image_run: Path) -> None:
    model = load(image_run)
    text = f"HashModel('ics-softmax', 32 bits, {len(model.classes)} classes, efficientnet-lite0)"
    assert repr(model) == text
    with pytest.raises(InputError):
        load(5)  # type: ignore[arg-type]


def test_missing_files(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in SAVED:
        shutil.copytree(stored, tmp_path / name)
        (tmp_path / name / name).unlink()
    for name in (*SAVED, "file", "nowhere"):
        with pytest.raises(DataError, match=name):
            HashModel.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"no tensors at all"),
        ("model.json", b""),
        ("model.json", b"{"),
        ("model.json", b"[1, 2]"),
        ("model.json", b"{}"),
        ("model.json", b"\xff\xfe\x00bytes"),
    ],
)
def test_damaged_files(stored: Path, tmp_path: Path, name: str, content: bytes) -> None:
    run = shutil.copytree(stored, tmp_path / "run")
    (run / name).write_bytes(content)
    with pytest.raises(DataError, match="run"):
        HashModel.load(run)


@pytest.mark.parametrize("name", SAVED)
def test_flipped_bits(stored: Path, tmp_path: Path, name: str) -> None:
    """A blank of the json that becomes another blank changes nothing."""
    run = shutil.copytree(stored, tmp_path / "run")
    sound = (run / name).read_bytes()
    for bit in random.Random(0).sample(range(8 * len(sound)), 120):
        content = bytearray(sound)
        content[bit // 8] ^= 1 << bit % 8
        (run / name).write_bytes(content)
        if name == "model.json" and content.split() == sound.split():
            continue
        with pytest.raises(DataError):
            HashModel.load(run)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("format", 2, DataError),
        ("bits", 32, DataError),
        ("features", 7, DataError),
        ("extra", 1, DataError),
        ("classes", ["one"], DataError),
        ("bits", "many", DataError),
        ("method", "lsh", DataError),
        ("method", "icss", UnknownMethodError),
    ],
)
def test_contradictory_json(
    stored: Path, tmp_path: Path, key: str, value: Any, error: type[Exception]
) -> None:
    shutil.copytree(stored, tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text()), key: value})))
    with pytest.raises(error):
        HashModel.load(tmp_path / "run")


def test_unwritable_folder(toy_model: HashModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        toy_model.save(tmp_path / "file" / "model")


def test_label_probabilities(toy_dataset: Dataset, toy_model: HashModel) -> None:
    assert toy_dataset.features is not None
    presence = toy_model.label_probabilities(toy_dataset.features)
    labels = toy_dataset.labels
    assert toy_model.has_probabilities
    assert presence.shape == labels.shape
    assert presence[labels].mean() > 0.7 > 0.3 > presence[~labels].mean()
    predicted = toy_model.predict_labels(toy_dataset.features)
    assert np.array_equal(predicted | (presence >= 0.5), predicted)
    assert (predicted.sum(axis=1) >= 1).all()


def test_presence_leaves_codes_equal(toy_dataset: Dataset) -> None:
    assert toy_dataset.features is not None
    models = [
        train(toy_dataset, bits=16, epochs=2, head={"hidden": (32,), "presence": presence}, progress=False)
        for presence in (True, False)
    ]
    first, second = (model.logits(toy_dataset.features) for model in models)
    assert np.array_equal(first, second)
    with pytest.raises(ConfigError):
        models[1].label_probabilities(toy_dataset.features)


def test_general_codes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    groups = generator.normal(size=(10, 160)).repeat(8, axis=0)
    features = (groups + 0.1 * generator.normal(size=groups.shape)).astype(np.float32)
    data = Dataset.from_arrays(
        features, generator.random((80, 3)) < 0.5, train=np.arange(0, 80, 2), query=np.arange(1, 80, 2)
    )
    model = train(data, bits=16, epochs=1, progress=False)
    model.save(tmp_path / "run")
    codes = load(tmp_path / "run").general_codes(features)
    assert model.general_bits == 128
    assert np.array_equal(codes, model.general_codes(features))
    same = np.arange(80)[:, None] // 8 == np.arange(80) // 8
    distances = hamming(codes, codes)
    assert distances[same].max() < distances[~same].min()


def test_model_without_general_code(toy_model: HashModel, toy_dataset: Dataset) -> None:
    assert toy_model.general_bits is None
    with pytest.raises(ConfigError):
        toy_model.general_codes(toy_dataset.features)  # type: ignore[arg-type]
