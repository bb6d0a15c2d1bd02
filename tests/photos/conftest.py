"""Photo indexes of drawn pictures, for the tests of photos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from centerhash.photos import PhotoIndex


@pytest.fixture
def photos(tmp_path: Path, image_run: Path, kept_networks: None) -> Iterator[PhotoIndex]:
    """An empty photo index."""
    with PhotoIndex.create(tmp_path / "index", image_run) as index:
        yield index
