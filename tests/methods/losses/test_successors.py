"""SHC, CRH and LSCSH: their equations by hand and by loops, and what happens to centers during training."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses import CRH, ICS, LSCSH, SHC, OrthoHash
from centerhash.methods.losses.central import squared_quantisation
from centerhash.methods.losses.successors import (
    MOST_CLASSES,
    center_cosines,
    class_scores,
    confusion,
    reassigned,
    relation_loss,
    scaled_similarity,
    semantic_centers,
)
from centerhash.methods.separation import distance_range, guaranteed_distance
from centerhash.model.model import HashModel
from centerhash.model.portable import PortableModel
from centerhash.training.config import resolve
from centerhash.training.frozen import fit_frozen
from centerhash.training.session import Session
from tests.methods.losses.toys import BITS, CLASSES, sample
from tests.toys import feature_dataset, separable, toy_config

CENTERS = hash_centers(CLASSES, BITS, seed=2)


def labels_of(rows: int = 40, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((rows, CLASSES)) < 0.4


# SHC


def test_confusion_by_hand() -> None:
    """Odds 1 : 2 : 3 for both images; the second has two labels, so it counts for both."""
    scores = np.log(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
    labels = np.array([[True, False, False], [True, True, False]])
    expected = [[0, 2 / 5, 3 / 5], [1 / 4, 0, 3 / 4], [0, 0, 0]]
    np.testing.assert_allclose(confusion(scores, labels), expected, atol=1e-12)


def test_scaled_similarity_by_hand() -> None:
    """Symmetric first: 0.2, 0.4, 0.6 for the pairs; then rows minus 0.3, 0.4, 0.5, over the largest deviation."""
    found = scaled_similarity(np.array([[0, 0.2, 0.4], [0.2, 0, 0.6], [0.4, 0.6, 0]]))
    np.testing.assert_allclose(found, [[1, -1, 0], [-1, 1, 1], [0, 1, 1]], atol=1e-12)
    assert np.array_equal(scaled_similarity(np.zeros((1, 1))), [[1]])
    assert np.isfinite(scaled_similarity(np.zeros((3, 3)))).all()


def gap(codes: Any, similarity: Any) -> float:
    """The objective by a loop over pairs."""
    bits = codes.shape[1]
    return sum(
        (similarity[i, j] - float(codes[i].astype(int) @ codes[j]) / bits) ** 2
        for i, j in combinations(range(len(codes)), 2)
    )


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 8), st.integers(8, 16), st.integers(0, 99))
def test_semantic_centers_lower_the_objective_and_keep_the_distance(
    classes: int, bits: int, seed: int
) -> None:
    start = hash_centers(classes, bits, seed, "mdsh")
    similarity = scaled_similarity(np.random.default_rng(seed).random((classes, classes)))
    found = semantic_centers(start, similarity)
    assert set(np.unique(found)) <= {-1, 1}
    assert gap(found, similarity) <= gap(start, similarity) + 1e-9
    least = min(guaranteed_distance(classes, bits), distance_range(start)[0])
    assert distance_range(found)[0] >= least
    for own, bit in np.ndindex(found.shape):  # no single flip that is allowed would lower it further
        other = found.copy()
        other[own, bit] *= -1
        if distance_range(other)[0] >= least:
            assert gap(other, similarity) >= gap(found, similarity) - 1e-6


def test_a_classifier_scores_the_labels_highest() -> None:
    features, labels = separable(160, most_labels=1)
    scores = class_scores(features, labels, 0)
    assert (scores.argmax(axis=1) == labels.argmax(axis=1)).mean() > 0.9
    assert np.array_equal(scores, class_scores(features, labels, 0))


def test_classes_that_are_confused_get_near_centers() -> None:
    """Two classes look alike, and share no image; without features, co-occurrence decides."""
    rng = np.random.default_rng(0)
    classes = np.arange(120) % 4
    directions = np.array([[4, 0, 0], [4, 0.3, 0], [0, 4, 0], [0, 0, 4.0]])
    features, labels = (
        directions[classes] + rng.normal(scale=0.5, size=(120, 3)),
        np.eye(4, dtype=bool)[classes],
    )
    loss = SHC(hash_centers(4, 16, 0, "mdsh"))
    loss.prepare(features, np.arange(120), labels)
    inner = (loss.centers @ loss.centers.T).numpy()
    np.fill_diagonal(inner, -99)
    assert inner.max() == inner[0, 1]
    together = SHC(hash_centers(4, 16, 0, "mdsh"))
    together.prepare(np.zeros((120, 0)), np.arange(120), labels | np.roll(labels, 1, axis=1) & labels[:, [2]])
    assert not torch.equal(together.centers, loss.centers)


# CRH


def test_reassignment_by_hand() -> None:
    """Class 1 is more frequent and takes the code that class 0 would like best, too."""
    codebook = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [-1, 1, -1, 1]], dtype=np.int8)
    sums = np.array([[1.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0]])
    found = reassigned(sums, np.array([1, 2]), codebook, heads=1)
    assert found.tolist() == [[1, 1, -1, -1], [1, 1, 1, 1]]
    assert reassigned(sums, np.array([2, 1]), codebook, heads=1).tolist() == [[1, 1, 1, 1], [1, 1, -1, -1]]
    # two heads of two bits: class 0's first choice of the second head is taken, its third code has [-1, 1]
    assert reassigned(sums, np.array([1, 2]), codebook, heads=2).tolist() == [[1, 1, -1, 1], [1, 1, 1, 1]]


def test_crh_is_orthohash_and_quantization_until_the_second_stage() -> None:
    logits, labels = sample()
    logits = logits.float()
    loss = CRH(CENTERS, gamma=0.3, rounds=2)
    expected = OrthoHash(CENTERS, scale=4.0, margin=0.2)(logits, labels)
    expected = expected + 0.3 * squared_quantisation(logits).mean() / BITS
    assert float(loss(logits, labels, None, 0.0)) == pytest.approx(float(expected))
    before = loss.centers.clone()
    shares = labels / labels.sum(dim=1, keepdim=True)
    torch.testing.assert_close(loss.sums, shares.T @ torch.tanh(logits / 2))
    loss(logits, labels, None, 0.49)
    assert torch.equal(loss.centers, before)
    loss(logits, labels, None, 0.5)
    assert not torch.equal(loss.centers, before)
    assert len(np.unique(loss.centers.numpy(), axis=0)) == CLASSES
    torch.testing.assert_close(loss.counts.sum(), torch.tensor(float(len(labels))))  # only of the new stage
    assert torch.equal(loss.trained_centers(), loss.centers.to(torch.int8))


def test_crh_goes_on_from_a_checkpoint() -> None:
    logits, labels = sample()
    logits, first = logits.float(), CRH(CENTERS, rounds=3)
    for progress in (0.0, 0.4):
        first(logits, labels, None, progress)
    second = CRH(CENTERS, rounds=3)
    second.load_state_dict(first.state_dict())
    for loss in (first, second):
        loss(logits.flip(0), labels, None, 0.7)
    assert torch.equal(first.centers, second.centers)


# LSCSH


def test_terms_of_the_centers_by_hand() -> None:
    """Cosines 0, 1/sqrt(2) and 1/sqrt(2) of three centers."""
    centers = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)
    root = 1 / math.sqrt(2)
    np.testing.assert_allclose(center_cosines(centers), [0, root, root])
    related = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    near = (1 + root) / 2
    expected = 0.5 * math.log(0.5 / 0.5) + math.log(1 / near) + 0.75 * math.log(0.75 / near)
    assert float(relation_loss(center_cosines(centers), related)) == pytest.approx(expected)


def test_lscsh_is_ics_with_soft_centers() -> None:
    """The cross entropy to a soft target, bit by bit, where ICS has hard ones."""
    logits, labels = sample()
    loss = LSCSH(CENTERS, alpha_1=0.0, alpha_2=0.0, gamma=0.0, **{"lambda": 1e9}).double()
    soft = math.tanh(1) * CENTERS
    rows = []
    for row in range(len(logits)):
        own = [j for j in range(CLASSES) if labels[row, j]]
        distances = []
        for j in own:
            share = [(1 + soft[j, k]) / 2 for k in range(BITS)]
            likely = [1 / (1 + math.exp(-float(logits[row, k]))) for k in range(BITS)]
            bits = zip(share, likely, strict=True)
            distances.append(-sum(p * math.log(q) + (1 - p) * math.log(1 - q) for p, q in bits) / BITS)
        rows.append(sum(distances) / len(own) / 2)  # equal weights; the normalised loss has a slope of 1/2
    assert float(loss(logits, labels).detach()) == pytest.approx(sum(rows) / len(rows), rel=1e-3)


def test_lscsh_learns_its_centers() -> None:
    logits, labels = sample()
    loss = LSCSH(CENTERS)
    loss.prepare(np.zeros((40, 1)), np.arange(40), labels_of())
    assert torch.equal(loss.trained_centers(), ICS(CENTERS).trained_centers())
    terms = loss.loss_terms(logits.float(), labels)
    assert set(terms.parts) == {"center", "quantisation", "separation", "relation"}
    terms.total.backward()
    assert loss.theta.grad is not None
    assert float(loss.theta.grad.abs().sum()) > 0
    with torch.no_grad():
        loss.theta[0] *= -1
    assert torch.equal(loss.trained_centers()[0], -torch.from_numpy(CENTERS)[0])


@pytest.mark.parametrize("kind", [SHC, LSCSH])
def test_too_many_classes_for_pairs_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="4097"):
        kind(hash_centers(MOST_CLASSES + 1, 16, kind="bernoulli"))


# What a model stores


@pytest.mark.parametrize("method", ["shc", "crh", "lscsh"])
def test_a_model_has_the_centers_of_the_end_of_training(method: str, tmp_path: Path) -> None:
    dataset = feature_dataset(160)
    assert dataset.features is not None
    options = {"codebook": 2} if method == "crh" else {}
    config = resolve(toy_config(method=method, bits=16, epochs=12, learning_rate=0.05, options=options))
    model = fit_frozen(dataset, dataset.features, config, Session())
    if method != "lscsh":  # of these data no sign changes
        drawn = hash_centers(len(dataset.classes), 16, config.seed, config.centers)
        assert not np.array_equal(model.centers.numpy(), drawn)
    assert set(np.unique(model.centers.numpy())) == {-1, 1}
    # codes of images with one label are nearest to that label's center
    alone = np.flatnonzero(dataset.labels.sum(axis=1) == 1)
    codes = model.encode_features(dataset.features[alone])
    nearest = (codes.astype(int) @ model.centers.numpy().astype(int).T).argmax(axis=1)
    assert (nearest == dataset.labels[alone].argmax(axis=1)).mean() > 0.9
    model.save(tmp_path)
    model.save_portable(tmp_path)
    assert np.array_equal(HashModel.load(tmp_path).centers.numpy(), model.centers.numpy())
    portable = PortableModel.load(tmp_path)
    np.testing.assert_allclose(
        portable.weights(dataset.features, dataset.labels),
        model.weights(dataset.features, dataset.labels),
        atol=1e-5,
    )
