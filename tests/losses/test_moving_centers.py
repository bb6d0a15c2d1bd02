"""CRH and LSCSH: their equations by hand and by loops, and what happens to centers during training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from centerhash.centers import hash_centers
from centerhash.losses import Batch, CRHLoss, HeadOutput, ICSLoss, LSCSHLoss, OrthoHashLoss
from centerhash.losses.crh import reassign
from centerhash.losses.functional import squared_quantization
from centerhash.losses.lscsh import center_cosines, relation_loss
from centerhash.model.model import HashModel
from centerhash.model.portable import PortableModel
from centerhash.training.config import resolve
from centerhash.training.context import RunContext
from centerhash.training.pipeline import fit_frozen
from tests.losses.toys import BITS, CLASSES, labels_of, sample
from tests.toys import feature_dataset, toy_config

CENTERS = hash_centers(CLASSES, BITS, seed=2)


# CRH


def test_reassign() -> None:
    """Class 1 is more frequent, so that it gets the code that is nearest to class 0 too."""
    codebook = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [-1, 1, -1, 1]], dtype=np.int8)
    sums = np.array([[1.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0]])
    assert reassign(sums, np.array([1, 2]), codebook, heads=1).tolist() == [[1, 1, -1, -1], [1, 1, 1, 1]]
    assert reassign(sums, np.array([2, 1]), codebook, heads=1).tolist() == [[1, 1, 1, 1], [1, 1, -1, -1]]
    # Two heads of two bits: class 0's nearest code of the second head is assigned already, and [-1, 1] is left.
    assert reassign(sums, np.array([1, 2]), codebook, heads=2).tolist() == [[1, 1, -1, 1], [1, 1, 1, 1]]


def test_crh_stages() -> None:
    logits, labels = sample()
    logits = logits.float()
    loss = CRHLoss(CENTERS, gamma=0.3, rounds=2)
    expected = OrthoHashLoss(CENTERS, scale=4.0, margin=0.2)(logits, labels)
    expected = expected + 0.3 * squared_quantization(logits).mean() / BITS
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


# LSCSH


def test_relation_loss() -> None:
    """Cosines 0, 1/sqrt(2) and 1/sqrt(2) of three centers."""
    centers = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)
    root = 1 / math.sqrt(2)
    np.testing.assert_allclose(center_cosines(centers), [0, root, root])
    related = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    near = (1 + root) / 2
    expected = 0.5 * math.log(0.5 / 0.5) + math.log(1 / near) + 0.75 * math.log(0.75 / near)
    assert float(relation_loss(center_cosines(centers), related)) == pytest.approx(expected)


def test_lscsh_soft_targets() -> None:
    """The cross entropy to a soft target, bit by bit; targets of ICS are hard."""
    logits, labels = sample()
    loss = LSCSHLoss(CENTERS, alpha_1=0.0, alpha_2=0.0, gamma=0.0, entropy=1e9).double()
    soft = math.tanh(1) * CENTERS
    rows = []
    for row in range(len(logits)):
        classes = labels_of(labels, row)
        distances = []
        for j in classes:
            share = [(1 + soft[j, k]) / 2 for k in range(BITS)]
            likely = [1 / (1 + math.exp(-float(logits[row, k]))) for k in range(BITS)]
            bits = zip(share, likely, strict=True)
            distances.append(-sum(p * math.log(q) + (1 - p) * math.log(1 - q) for p, q in bits) / BITS)
        # The weights are equal; the normalized loss has a slope of 1/2.
        rows.append(sum(distances) / len(classes) / 2)
    assert float(loss(logits, labels).detach()) == pytest.approx(sum(rows) / len(rows), rel=1e-3)


def test_lscsh_learns_centers() -> None:
    logits, labels = sample()
    loss = LSCSHLoss(CENTERS)
    loss.prepare(np.random.default_rng(0).random((40, CLASSES)) < 0.4)
    assert torch.equal(loss.trained_centers(), ICSLoss(CENTERS).trained_centers())
    terms = loss.loss_terms(Batch(HeadOutput(logits.float()), labels))
    assert set(terms) == {"loss", "center", "quantization", "separation", "relation"}
    terms["loss"].backward()
    assert loss.theta.grad is not None
    assert float(loss.theta.grad.abs().sum()) > 0
    with torch.no_grad():
        loss.theta[0] *= -1
    assert torch.equal(loss.trained_centers()[0], -torch.from_numpy(CENTERS)[0])


# Stored models


@pytest.mark.parametrize("method", ["crh", "lscsh"])
def test_model_has_trained_centers(method: str, tmp_path: Path) -> None:
    dataset = feature_dataset(160)
    assert dataset.features is not None
    options = {"codebook": 2} if method == "crh" else {}
    config = resolve(toy_config(method=method, bits=16, epochs=12, learning_rate=0.05, options=options))
    model = fit_frozen(dataset, dataset.features, config, RunContext())
    if method != "lscsh":  # of these data no sign changes
        first = hash_centers(len(dataset.classes), 16, config.seed, config.centers)
        assert not np.array_equal(model.centers.numpy(), first)
    assert set(np.unique(model.centers.numpy())) == {-1, 1}
    # Codes of images with one label are nearest to that label's center.
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
