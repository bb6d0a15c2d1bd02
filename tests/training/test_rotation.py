from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash import train
from centerhash.core.errors import ConfigError
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import Rotation, build_head
from centerhash.training.rotation import code_rotation, rotate_head
from tests.toys import feature_dataset


def quantisation(logits: np.ndarray) -> float:
    """Mean cosine between logits (n, K) and their own signs."""
    return float(
        (np.abs(logits).sum(axis=1) / np.linalg.norm(logits, axis=1)).mean() / np.sqrt(logits.shape[1])
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_a_rotation_is_one_and_brings_logits_no_further_from_codes(seed: int, bits: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(60, bits)) * np.linspace(3, 0.2, bits)
    rotation = code_rotation(logits)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(bits), atol=1e-9)
    assert quantisation(logits @ rotation) >= quantisation(logits) - 1e-9


def test_codes_stay_where_they_are() -> None:
    codes = np.where(np.random.default_rng(0).random((80, 16)) < 0.5, 1.0, -1.0)
    np.testing.assert_allclose(code_rotation(codes * 3), np.eye(16), atol=1e-9)


def test_length_says_nothing_and_zeros_are_allowed() -> None:
    logits = np.random.default_rng(1).normal(size=(50, 8))
    scaled = logits * np.linspace(0.1, 9, 50)[:, None]
    np.testing.assert_allclose(code_rotation(scaled), code_rotation(logits), atol=1e-9)
    assert np.isfinite(code_rotation(np.vstack([logits, np.zeros((1, 8))]))).all()


def test_the_head_rotates_its_logits() -> None:
    head = build_head(5, 8, HeadOptions(hidden=(), rotate=True)).eval()
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    before = head(features).logits.detach()
    rotation = rotate_head(head, before.numpy())
    np.testing.assert_allclose(rotation.numpy(), code_rotation(before.numpy()), atol=1e-6)
    torch.testing.assert_close(head(features).logits, before @ rotation)


def test_a_rotation_keeps_every_angle_to_the_centers() -> None:
    data = feature_dataset()
    assert data.features is not None
    rotated = train(data, method="orthohash", bits=16, epochs=3, head=HeadOptions(rotate=True))
    plain = train(data, method="orthohash", bits=16, epochs=3)
    np.testing.assert_allclose(
        rotated.similarities(data.features), plain.similarities(data.features), atol=1e-4
    )
    assert rotated.predict_labels(data.features).tolist() == plain.predict_labels(data.features).tolist()
    assert set(np.unique(rotated.centers.numpy())) == {-1.0, 1.0}
    np.testing.assert_array_equal(rotated.centers.numpy(), np.where(rotated.directions.numpy() >= 0, 1, -1))
    np.testing.assert_array_equal(plain.directions.numpy(), plain.centers.numpy())
    assert not (rotated.encode_features(data.features) == plain.encode_features(data.features)).all()


def test_any_deep_method_can_be_rotated_and_only_ours_is_by_default() -> None:
    data = feature_dataset()
    plain = train(data, method="dhn", bits=16, epochs=2)
    rotated = train(data, method="dhn", bits=16, epochs=2, head=HeadOptions(rotate=True))
    assert data.features is not None
    before, after = plain.logits(data.features), rotated.logits(data.features)
    matrix = next(tensor for name, tensor in rotated.tensors().items() if name.endswith("matrix")).numpy()
    np.testing.assert_allclose(after, before @ matrix, atol=1e-4)
    assert not any(name.endswith("matrix") for name in plain.tensors())
    assert any(name.endswith("matrix") for name in train(data, bits=16, epochs=2).tensors())


def test_evidence_changes_neither_codes_nor_training() -> None:
    data = feature_dataset()
    assert data.features is not None
    with_it = train(data, bits=16, epochs=3)
    without = train(data, bits=16, epochs=3, head=HeadOptions(evidence=False))
    np.testing.assert_allclose(with_it.logits(data.features), without.logits(data.features), atol=1e-4)
    several = data.labels.sum(axis=1) > 1
    assert not np.allclose(
        with_it.weights(data.features, data.labels)[several],
        without.weights(data.features, data.labels)[several],
    )


def test_evidence_is_refused_where_no_loss_reads_it() -> None:
    with pytest.raises(ConfigError, match=r"'csq' cannot use class evidence.*train ics-softmax"):
        train(feature_dataset(), method="csq", bits=16, epochs=1, head=HeadOptions(evidence=True))


def test_the_identity_until_it_is_set() -> None:
    logits = torch.randn(3, 8)
    layer = Rotation(8)
    torch.testing.assert_close(layer(logits), logits)
    assert not list(layer.parameters())
    assert "matrix" in layer.state_dict()
