"""Samples that come with the package."""

from __future__ import annotations

import numpy as np
import pytest

import centerhash as ch
from centerhash.core.errors import ConfigError


def test_sample() -> None:
    data = ch.sample("coco6k")
    assert data.features is not None
    assert data.areas is not None
    assert (data.features.shape, data.features.dtype) == ((6000, 256), np.float32)
    assert data.labels.any(axis=0).all()
    assert data.labels.any(axis=1).all()
    assert ((data.areas > 0) <= data.labels).all()
    assert data.areas.max() <= 1
    assert len(set(data.names)) == 6000


def test_sample_splits() -> None:
    splits = ch.sample().splits
    assert (len(splits.train), len(splits.query), len(splits.database)) == (3000, 1000, 5000)
    assert not set(splits.query) & set(splits.database)
    assert set(splits.train) < set(splits.database)


def test_sample_error() -> None:
    with pytest.raises(ConfigError, match="coco6k"):
        ch.sample("coco")
