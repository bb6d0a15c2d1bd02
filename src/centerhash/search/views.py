"""Views of a query image, so that a photo is found again by a screenshot or a rotated copy of it.

Only their visual codes are compared.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]


def with_rotations(views: Pixels) -> Pixels:
    """Return views (n, S, S, 3) of an image, followed by the first one rotated by 90, 180 and 270 degrees."""
    return np.stack([*views, *(np.rot90(views[0], turns) for turns in (1, 2, 3))])
