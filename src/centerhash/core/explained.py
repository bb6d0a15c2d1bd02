"""How near a code is to the center of a label: what models and answers say of an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explained:
    """One center near an image."""

    label: str
    weight: float  # share of the image, over the predicted (or given) labels; 0 for the others
    similarity: float  # cosine between the logits and the center as it was trained, in [-1, 1]
    distance: int  # Hamming distance between the code and the center
