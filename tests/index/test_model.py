"""An index with a model: embeddings in, labels and codes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.index import Index, verify_index
from centerhash.model.model import HashModel
from tests.toys import CLASSES, WIDTH, separable


@pytest.fixture
def index(toy_model: HashModel, tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", toy_model) as created:
        yield created


def test_add_embeddings(index: Index, toy_model: HashModel) -> None:
    features, _ = separable(50, seed=3)
    assert index.add(features, progress=False).added == 50
    items = list(index)
    codes = pack(toy_model.encode_features(features))
    assert [item.code.tolist() for item in items] == codes.tolist()
    assert [item.labels for item in items] == [
        tuple(sorted(names, key=CLASSES.index)) for names in toy_model.label_names(features)
    ]
    distances = np.bitwise_count(codes ^ codes[7]).sum(axis=1)
    results = index.search(features[7], k=50)
    assert [row.distance for row in results] == sorted(distances.tolist())
    assert [(row.id, row.distance) for row in index.search(code=codes[7], k=50)] == [
        (row.id, row.distance) for row in results
    ]
    assert {row.label for row in results.labels} == set(toy_model.label_names(features[7:8])[0])


def test_add_embeddings_with_labels(index: Index) -> None:
    features, _ = separable(4)
    index.add(features, labels=[["mine"], [], ["cat", "mine"], ["dog"]])
    assert [set(item.labels) for item in index] == [{"mine"}, set(), {"cat", "mine"}, {"dog"}]
    assert index.labels() == {"cat": 1, "dog": 1, "mine": 2}


def test_search_labels(index: Index) -> None:
    features, labels = separable(120, seed=5)
    index.add(features)
    for query in ("cat", ["cat"], {"cat": 1}):
        first = index.search(labels=query, k=10)
        assert np.mean([labels[int(row.id), CLASSES.index("cat")] for row in first]) > 0.8
    both = index.search(labels="cat:0.7, dog:0.3", k=3)
    assert [(row.label, round(row.weight, 6)) for row in both.labels] == [("cat", 0.7), ("dog", 0.3)]
    assert "cat" not in {name for row in index.search(labels="dog", without="cat") for name in row.labels}
    with pytest.raises(ConfigError, match="'cta'"):
        index.search(labels="cta")


def test_search_like_embeddings(index: Index) -> None:
    features, labels = separable(120, seed=6)
    index.add(features)
    column = CLASSES.index("elk")
    examples = features[np.flatnonzero(labels[:, column])[:4]]
    unlike = features[np.flatnonzero(~labels[:, column])[:4]]
    results = index.search(like=examples, unlike=unlike, k=10)
    assert np.mean([labels[int(row.id), column] for row in results]) > labels[:, column].mean()


@pytest.mark.parametrize(
    "embeddings",
    [
        np.zeros((2, WIDTH + 1), np.float32),
        np.full((2, WIDTH), np.nan),
        np.zeros((2, WIDTH), int),
        np.zeros(WIDTH),
    ],
)
def test_add_rejected_embeddings(index: Index, embeddings: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"features"):
        index.add(embeddings)
    if embeddings.ndim == 2:
        with pytest.raises(InputError, match=r"features"):
            index.search(embeddings[0])
    with pytest.raises(InputError, match="one embedding"):
        index.search(np.zeros((2, WIDTH), np.float32))


def test_open_without_model(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = separable(9)
    index.add(features)

    def fail(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("centerhash.model.portable.PortableModel.load", fail)
    with Index.open(index.folder, read_only=True) as reader:
        assert len(reader.search(labels="cat, dog", k=3).labels) == 2
        assert reader.search(id="3").labels
        assert reader.info()["method"] == "ics-softmax"


def test_encoder_without_backbone(index: Index) -> None:
    with pytest.raises(ConfigError, match="backbone"):
        index.encoder()


def test_verify_damaged_model(index: Index, tmp_path: Path) -> None:
    features, _ = separable(9)
    index.add(features)
    assert index.backup(tmp_path / "copy", progress=False) == 9
    index.close()
    file = index.folder / "model" / "model.onnx"
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    assert "model.onnx" in verify_index(index.folder)[0]
    with Index.open(index.folder) as damaged:
        with pytest.raises(DataError, match=r"model\.onnx"):
            damaged.add(features, ids=range(100, 109))
        with pytest.raises(DataError, match=r"model\.onnx"):
            damaged.backup(tmp_path / "another", progress=False)
        assert not (tmp_path / "another").exists()
        assert len(damaged.search(id="3")) == 8


def test_create_with_built_in_model(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index") as index:
        assert (index.bits, index.general_bits, len(index.classes)) == (64, 128, 80)
        width = index.model.spec.features
        features = np.random.default_rng(0).random((3, width)).astype(np.float32)
        features[:, 64:80] *= 255  # the bytes of the general code
        index.add(features)
        item = index.get("1")
        assert item.general is not None
        assert item.scores
        assert index.search(features[1], copies=True)[0].id == "1"
