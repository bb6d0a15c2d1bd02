"""Small data for the shallow methods."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Data = tuple[NDArray[np.float32], NDArray[np.bool_]]


def draw_clusters(count: int, classes: int, width: int, seed: int) -> Data:
    """Features (n, D) tightly around one random direction per class; every row has the label of its class."""
    directions = np.random.default_rng(99).normal(size=(classes, width)) * 3
    generator = np.random.default_rng(seed)
    classes_of_rows = generator.permutation(np.arange(count) % classes)
    features = directions[classes_of_rows] + generator.normal(scale=0.3, size=(count, width))
    return features.astype(np.float32), np.eye(classes, dtype=bool)[classes_of_rows]


@pytest.fixture(scope="session")
def clusters() -> Data:
    """200 rows in 5 clusters of 20 dimensions."""
    return draw_clusters(200, 5, 20, seed=0)
