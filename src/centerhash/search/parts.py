"""What is stored of an image beside its semantic code: how it looks, and how surely and how much of it each label is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, pack
from centerhash.search.engines.base import LEVELS, Seen

if TYPE_CHECKING:
    from centerhash.model.model import HashModel

KEPT = 8  # classes of an item whose presence is stored, beside those of its labels
LEAST = 0.02  # the presence from which it is; the largest always is


def visual_of(model: HashModel, features: NDArray[np.float32]) -> Packed | None:
    """Packed visual codes (N, 16) of features (N, D); None where the model has none."""
    return None if model.visual_bits is None else pack(model.visual_codes(features))


def seen_in(
    model: HashModel, features: NDArray[np.float32], labels: Sequence[Sequence[str]]
) -> list[Seen] | None:
    """Presences and shares of the labels that matter in each of N images; None where the model reads none."""
    if not model.has_presence or not len(features):
        return None
    presence = model.presence(features)
    kept = kept_classes(presence)
    column = {name: place for place, name in enumerate(model.classes)}
    for row, names in enumerate(labels):
        kept[row, [column[name] for name in names if name in column]] = True
    shares = model.weights(features, kept)
    presences, amounts = (np.rint(LEVELS * values).astype(int) for values in (presence, shares))
    return [
        {model.classes[j]: (int(presences[row, j]), int(amounts[row, j])) for j in np.flatnonzero(chosen)}
        for row, chosen in enumerate(kept)
    ]


def kept_classes(presence: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which presences (N, C) are stored: the largest ones, from LEAST on, and always the largest of all."""
    order = np.argsort(-presence, axis=1, kind="stable")[:, :KEPT]
    kept = np.zeros(presence.shape, bool)
    np.put_along_axis(kept, order, np.take_along_axis(presence, order, axis=1) >= LEAST, axis=1)
    kept[np.arange(len(kept)), order[:, 0]] = True
    return kept
