"""The model that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import centerhash as ch
from centerhash.core.errors import DataError
from centerhash.model.loading import BUILTIN, model_folder
from tests.toys import noise_image
from tools.builtin import card

FOLDER = model_folder("coco")


@pytest.mark.slow
def test_built_in_model_reads_images() -> None:
    model = ch.load("coco")
    assert repr(model) == "PortableModel('ics-softmax', 64 bits, 80 classes, efficientnet-lite0)"
    assert model.has_probabilities
    assert model.general_bits == 128
    image = noise_image(64)
    features = model.features_of(image, engine="onnx")
    assert features.shape == (64 + 16 + 80 + 80,)
    assert model.encode_features(features[None]).shape == (1, 64)
    presence = model.label_probabilities(features[None])
    assert presence.shape == (1, 80)
    assert np.isfinite(presence).all()
    assert model.general_codes(features[None]).shape == (1, 128)


def test_card_of_the_built_in_model() -> None:
    figures = json.loads((FOLDER / "figures.json").read_text())
    assert card(figures) == (FOLDER / "card.md").read_text()
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 25_000_000


def test_load_prefers_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_model: ch.HashModel
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").mkdir()
    assert ch.load("coco").bits == 64
    toy_model.save(tmp_path / "coco")
    assert ch.load("coco").classes == toy_model.classes
    with pytest.raises(DataError):
        ch.load("cocoa")
    assert BUILTIN == ("coco",)
