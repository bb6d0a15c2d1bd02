"""The pieces of the paper's experiments: printed results, settings, the solver's convergence, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash.core.errors import ConfigError, DataError
from centerhash.experiments.tasks import Source
from centerhash.methods.registry import METHODS
from centerhash.weights import equal_weights, printed_gradient, project_to_simplex, weight_objective
from reproduction.common import DATA, PRINTED, PRINTED_BITS, Settings, printed_map
from reproduction.report import reproduce
from reproduction.solver import convergence
from reproduction.weights import evenness, pick, weight_distribution
from tests.toys import CLASSES


@pytest.mark.parametrize(
    ("table", "data", "method", "bits", "value"),
    [
        ("alexnet", "nus-wide", "lsh", 16, 0.328),
        ("alexnet", "coco", "ics", 64, 0.764),
        ("alexnet", "coco", "ics-printed", 64, 0.764),
        ("resnet50", "coco", "dnnh", 16, 0.644),
        ("ablation", "coco", "ewcs", 32, 0.717),
        ("alexnet", "coco", "dch", 16, None),  # commented out in the paper's table
        ("resnet50", "coco", "lsh", 16, None),
        ("alexnet", "coco", "csq", 48, None),
    ],
)
def test_printed_map(table: str, data: str, method: str, bits: int, value: float | None) -> None:
    assert printed_map(table, data, method, bits) == value


def test_printed_tables() -> None:
    sizes = {"alexnet": 12, "resnet50": 11, "ablation": 3}
    for name, size in sizes.items():
        for data in DATA:
            rows = PRINTED[name][data]
            assert len(rows) == size
            assert set(rows) <= set(METHODS)
            assert all(len(values) == len(PRINTED_BITS) for values in rows.values())


@pytest.mark.parametrize(
    ("part", "change"), [("lamda", {}), ("pgd", {"methods": ("csq",)}), ("instances", {})]
)
def test_reproduce_rejects(feature_folder: Path, tmp_path: Path, part: str, change: Any) -> None:
    with pytest.raises((ConfigError, DataError)):
        reproduce(part, Settings(Source(feature_folder, device="cpu"), tmp_path, **change))


# The solver

BETA, ENTROPY = 1.0, 0.4


def batch(rows: int = 40) -> tuple[Tensor, Tensor]:
    """Distances (B, L) of images with two to five labels, as they are per bit."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(5) < torch.randint(2, 6, (rows, 1), generator=generator)
    return torch.rand(rows, 5, generator=generator) * 1.5, mask


def test_convergence_of_gradients() -> None:
    found = convergence(*batch(), BETA, ENTROPY, 0.2)
    assert (np.diff(found["true"]) <= 1e-12).all()
    assert found["true"][0] - found["minimum"] > 1e-3
    assert found["true"][-1] == pytest.approx(found["minimum"], abs=1e-4)
    assert found["printed"][0] == found["true"][0]
    assert found["printed"][-1] - found["minimum"] > 0.01


def test_convergence_by_steps() -> None:
    distances, mask = batch(6)
    found = convergence(torch.where(mask, distances, 1e6), mask, BETA, ENTROPY, 0.2)
    used = distances.double() * mask
    weights = equal_weights(mask, torch.float64)
    for step in range(4):
        value = weight_objective(weights, used, BETA, ENTROPY).mean()
        assert found["printed"][step] == pytest.approx(float(value), abs=1e-12)
        weights = project_to_simplex(weights - 0.2 * printed_gradient(weights, used, ENTROPY), mask)


# Weights


def query(*weights: float) -> dict[str, Any]:
    return {"weights": dict(zip(CLASSES, weights, strict=False))}


def test_evenness() -> None:
    assert evenness(query(0.5, 0.5)["weights"]) == pytest.approx(1)
    assert evenness(query(1.0, 0.0)["weights"]) == 0
    assert evenness(query(0.5, 0.25, 0.25)["weights"]) == pytest.approx(1.5 * np.log(2) / np.log(3))


def test_pick() -> None:
    queries = [query(share, 1 - share) for share in (0.6, 0.95, 0.5, 0.7, 0.8)]
    assert pick(queries, 3) == [1, 3, 2]  # the least even, the middle, the most even
    assert pick(queries, 9) == [1, 4, 3, 0, 2]
    assert pick([], 3) == []


def test_weight_distribution() -> None:
    labels = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=bool)
    weights = np.array([[0.5, 0.5, 0], [1, 0, 0], [1, 0, 0], [0.5, 0.25, 0.25]])
    found = weight_distribution(weights, labels)
    several = np.array([0.5, 0.5, 1, 0, 0.5, 0.25, 0.25])
    assert found["variance"] == pytest.approx(np.append(several, 1).var())
    assert found["variance_several"] == pytest.approx(several.var())
    assert found["variance_uneven"] == pytest.approx((0.25 + 0.25 + 1 / 36 + 2 / 144) / 7)
    assert found["corner"] == pytest.approx(1 / 3)
    assert sum(found["histogram"]) == 7
    assert found["histogram"][20] == 3
