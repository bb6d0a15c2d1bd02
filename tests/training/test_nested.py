"""Nested codes: one training run for several lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import centerhash as ch
from centerhash.codes import first_bits, hamming, pack, unpack
from centerhash.core.errors import ConfigError, InputError
from centerhash.encoding.code_files import read_codes
from centerhash.losses import EWCSLoss
from centerhash.losses.nested import NestedLoss, nested_centers
from centerhash.model.portable import PortableModel
from centerhash.training.finish import code_rotation
from tests.toys import evaluate_files

CLASSES = tuple("abcdef")


@pytest.fixture(scope="module")
def data() -> ch.Dataset:
    generator = np.random.default_rng(0)
    labels = generator.random((300, 6)) < 0.3
    labels[np.arange(300), generator.integers(0, 6, 300)] = True
    features = labels @ generator.normal(size=(6, 160)) + 0.5 * generator.normal(size=(300, 160))
    return ch.Dataset.from_arrays(features.astype(np.float32), labels, CLASSES)


def features_of(data: ch.Dataset) -> NDArray[Any]:
    assert data.features is not None
    return data.features


@pytest.mark.parametrize("bits", [1, 8, 12, 16, 20])
def test_first_bits(bits: int) -> None:
    codes = np.random.default_rng(bits).choice(np.array([-1, 1], np.int8), (7, 20))
    assert np.array_equal(unpack(first_bits(pack(codes), bits), bits), codes[:, :bits])


def test_centers_of_every_length() -> None:
    labels = np.random.default_rng(0).random((50, 20)) < 0.2
    centers = nested_centers((16, 32, 64), labels, 0, "auto", assign=True)
    assert centers.shape == (20, 64)
    for bits in (16, 32, 64):
        apart = hamming(centers[:, :bits], centers[:, :bits])[np.triu_indices(20, 1)]
        assert apart.min() >= bits // 4
    columns = {column.tobytes() for column in nested_centers((64,), labels, 0, "auto", assign=False).T}
    assert {
        column.tobytes() for column in nested_centers((16, 64), labels, 0, "auto", assign=False).T
    } == columns


def test_loss_sums_prefixes() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.where(torch.rand(4, 32, generator=generator) < 0.5, -1.0, 1.0)
    logits, labels = torch.randn(5, 32, generator=generator), torch.rand(5, 4, generator=generator) < 0.6
    losses = {bits: EWCSLoss(centers[:, :bits], gamma=0.1) for bits in (8, 32)}
    loss = NestedLoss(losses)(logits, labels)
    expected = losses[32](logits, labels) + losses[8](logits[:, :8], labels) / 8  # (8 / 32) ** 1.5
    torch.testing.assert_close(loss, expected)


def test_rotation_keeps_prefixes() -> None:
    logits = np.random.default_rng(0).normal(size=(200, 24))
    rotation = code_rotation(logits, shorter=(8, 16))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(24), atol=1e-9)
    for start, end in ((0, 8), (8, 16), (16, 24)):
        block = np.zeros(24, bool)
        block[start:end] = True
        assert not rotation[np.ix_(block, ~block)].any()
        np.testing.assert_allclose(
            rotation[start:end, start:end], code_rotation(logits[:, start:end]), atol=1e-9
        )


@pytest.mark.parametrize("method", ["ics-softmax", "ics", "greedyhash"])
def test_shorter_codes_are_prefixes(method: str, data: ch.Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = ch.train(data, method=method, bits=[32, 8, 16], epochs=2, out=run, progress=False)
    features = features_of(data)
    codes = model.encode_features(features)
    assert codes.shape == (300, 32)
    for bits in (8, 16):
        for shorter in (model.at(bits), ch.load(run / str(bits)), PortableModel.load(run / str(bits))):
            assert shorter.bits == bits
            assert np.array_equal(shorter.encode_features(features), codes[:, :bits])
        for name in ("query", "database"):
            short, full = read_codes(run / str(bits) / f"{name}.npz"), read_codes(run / f"{name}.npz")
            assert np.array_equal(short.packed, first_bits(full.packed, bits))
        assert evaluate_files([run / str(bits)]).bits == bits
        assert ch.load(run).at(bits).digest == model.at(bits).digest  # type: ignore[attr-defined]
    assert model.at(32) is model
    config = json.loads((run / "config.json").read_text())["config"]
    assert (config["bits"], [code["bits"] for code in config["shorter"]]) == (32, [8, 16])
    first = json.loads((run / "log.jsonl").read_text().splitlines()[0])
    assert {name.partition("_")[2] for name in first if "_" in name} >= {"8", "16"}
    again = ch.train(data, method=method, bits=[8, 16, 32], epochs=2, out=run, progress=False)
    assert again.digest == model.digest
    with pytest.raises(InputError, match="8, 16, 32"):
        model.at(24)


def test_options_of_every_length(data: ch.Dataset) -> None:
    model = ch.train(data, method="ics", bits=(16, 32), epochs=1, progress=False)
    short = model.at(16)
    assert short.spec.options["lambda"] == 16**3 / 131072
    assert model.spec.options["lambda"] == 32**3 / 131072
    assert short.spec.label_threshold not in (None, model.spec.label_threshold)
    labels = data.labels[:50]
    np.testing.assert_allclose(short.weights(features_of(data)[:50], labels).sum(axis=1), 1, atol=1e-4)
    fixed = ch.train(data, method="ics", bits=(16, 32), epochs=1, options={"lambda": 0.5}, progress=False)
    assert {trained.spec.options["lambda"] for trained in (fixed, fixed.at(16))} == {0.5}


def test_other_lengths_replace_folders(data: ch.Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "ics", "epochs": 1, "out": tmp_path, "progress": False}
    ch.train(data, bits="8,16,32", **settings)
    (tmp_path / "8" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="bits"):
        ch.train(data, bits=[24, 32], **settings)
    ch.train(data, bits=[24, 32], overwrite=True, **settings)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["24", "8"]
    assert [file.name for file in (tmp_path / "8").iterdir()] == ["notes.txt"]
