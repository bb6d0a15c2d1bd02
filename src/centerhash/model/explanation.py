"""Explanations: the labels of an image, and how near its code is to their centers. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from centerhash.core.rendering import to_frame


@dataclass(frozen=True)
class Explained:
    """One center near an image."""

    label: str
    weight: float  # over the predicted (or given) labels; 0 for the others
    similarity: float  # cosine between the logits and the center as it was trained, in [-1, 1]
    distance: int  # Hamming distance between the code and the center


class Explanation(tuple[Explained, ...]):
    """Labels of an image with their weights, the heaviest first, then the next nearest centers."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(f"{one.label} {one.weight:.2f}" for one in self if one.weight > 0)

    def to_pandas(self) -> Any:
        """A DataFrame with a row per label."""
        return to_frame([asdict(one) for one in self])
