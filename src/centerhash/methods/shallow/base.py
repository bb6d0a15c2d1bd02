"""What every shallow method is: a frozen bundle of arrays that turns features into values whose signs are codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from centerhash.core.options import MethodOptions
from centerhash.core.progress import Progress, silent
from centerhash.methods.shallow.inputs import ShallowOptionsType, check_training, expect_options

STAGE = "training"  # of the progress that shallow methods report


@dataclass(frozen=True, eq=False)
class Training:
    """What a hash function is fitted to: features (n, D), labels (n, C), and how."""

    features: NDArray[np.float32]
    labels: NDArray[np.bool_]
    bits: int
    options: MethodOptions
    seed: int
    progress: Progress = silent

    def checked(self, kind: type[ShallowOptionsType]) -> ShallowOptionsType:
        """The options, which must be of the method's own `kind`, once all the rest is checked too."""
        chosen = expect_options(self.options, kind)
        check_training(self.features, self.labels, self.bits, chosen.unit)
        return chosen


@dataclass(frozen=True, eq=False)
class ShallowHash(ABC):
    """A fitted hash function. Its dataclass fields are arrays, and are all that is stored of it."""

    @classmethod
    def fit(
        cls,
        features: NDArray[np.float32],
        labels: NDArray[np.bool_],
        bits: int,
        options: MethodOptions,
        seed: int,
        progress: Progress = silent,
    ) -> Self:
        """Fit on training features (n, D) and labels (n, C); the same seed gives the same function."""
        return cls._fit(Training(features, labels, bits, options, seed, progress))

    @classmethod
    @abstractmethod
    def _fit(cls, given: Training) -> Self:
        """Fit to what `fit` was given, after `given.checked`."""

    @abstractmethod
    def values(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Values (N, K) of features (N, D), seen in training or not; value >= 0 is the bit +1."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays by name, as they are stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted function from what `arrays` returned."""
        return cls(**dict(arrays))
