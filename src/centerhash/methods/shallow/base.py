"""Base of the shallow methods: estimators with `fit` and `transform` to values whose signs are codes.

Rows are read in blocks, so that training and encoding never hold a float64 copy of all features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.options import Option, check_options
from centerhash.core.parallel import one_numpy_thread
from centerhash.core.progress import Progress, silent

Floats = NDArray[np.float64]

# The stage that shallow methods report to `progress`.
STAGE = "training"
# Rounding error of a float64 sum, as a share of its terms: some thousand terms are better than this.
ROUNDING = 1e-12
BLOCK_ROWS = 4096

Normalize: TypeAlias = Annotated[bool, Option("scale every feature vector to unit length")]


class ShallowHash(ABC):
    """A hash function that is fitted on features, without back-propagation.

        itq = ITQ(bits=64).fit(features)
        codes = binarize(itq.transform(features))

    Its options are the keyword arguments of the constructor. A model stores the learned arrays, whose names are
    `learned`, and nothing else. The same seed gives the same function.
    """

    learned: ClassVar[tuple[str, ...]]
    needs_labels: bool = False
    normalize: bool | NDArray[np.bool_]

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Check the options: an unknown or impossible one is a ConfigError that names it."""
        check_options(cls, keywords)
        return super().__new__(cls)

    def __init__(self, bits: int = 64, *, normalize: Normalize = True, seed: int = 0) -> None:
        self.bits, self.normalize, self.seed = bits, normalize, seed

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.bool_] | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Fit on training features (n, D), and labels (n, C) for a method that learns from them."""
        rows = len(features)
        labels = np.zeros((rows, 0), np.bool_) if labels is None else labels
        if self.bits < 1:
            raise ConfigError(f"bits must be at least 1, got {self.bits}.")
        check_features(features)
        if labels.ndim != 2 or labels.dtype != np.bool_ or len(labels) != rows:
            raise InputError(f"labels must be bool ({rows}, C), got {labels.dtype} of shape {labels.shape}.")
        first = prepare(features[:1], bool(self.normalize))
        # float32 has no more digits of a vector that is scaled to length 1.
        tolerance = 1e-6 * np.abs(first).max(initial=0)
        if all(np.abs(block - first).max() <= tolerance for block in self.blocks(features)):
            hint = ", if scaled to length 1: try normalize=false" if self.normalize else ""
            raise DataError(
                f"training needs at least 2 different rows of features; {rows} are the same{hint}."
            )
        if self.needs_labels and not labels.any():
            raise DataError(
                f"{type(self).__name__} learns from labels, but none of the {rows} training rows has one: give labels, "
                "or use a method without labels (lsh, sh, itq)."
            )
        self._fit(features, labels, progress)
        return self

    @abstractmethod
    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Learn the arrays from checked features (n, D) and labels (n, C)."""

    @abstractmethod
    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute values (N, K) of features (N, D), seen in training or not; a value >= 0 is the bit +1."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the learned arrays by name, as they are stored."""
        return {name: np.asarray(getattr(self, name)) for name in self.learned}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted function from the result of `arrays`."""
        if set(arrays) != set(cls.learned):
            raise ValueError(f"arrays {', '.join(arrays)} are not those of {cls.__name__}")
        fitted = cls.__new__(cls)
        vars(fitted).update(arrays)
        return fitted

    def blocks(self, features: NDArray[Any]) -> Iterator[Floats]:
        """Yield the prepared rows (B, D) of features (N, D), block by block."""
        for start in range(0, len(features), BLOCK_ROWS):
            yield prepare(features[start : start + BLOCK_ROWS], bool(self.normalize))

    def apply(self, function: Callable[[Floats], Floats], features: NDArray[Any], columns: int) -> Floats:
        """Apply a function of prepared rows (B, D) to features (N, D), block by block; return values (N, columns)."""
        values, start = np.empty((len(features), columns)), 0
        for block in self.blocks(features):
            values[start : start + len(block)] = function(block)
            start += len(block)
        return values

    def mean_features(self, features: NDArray[Any]) -> Floats:
        """Compute the mean (D,) of the prepared features (n, D)."""
        total = np.zeros(features.shape[1])
        for block in self.blocks(features):
            total += block.sum(axis=0)
        return total / len(features)

    def principal_axes(self, features: NDArray[Any]) -> tuple[Floats, Floats]:
        """Compute the mean (D,) of features (n, D), and up to K axes (D, R) of nonzero variance, largest first."""
        mean = self.mean_features(features)
        covariance = np.zeros((features.shape[1], features.shape[1]))
        for block in self.blocks(features):
            covariance += (block - mean).T @ (block - mean) / len(features)
        with one_numpy_thread():
            variances, axes = np.linalg.eigh(covariance)
        rank = int((variances > ROUNDING * variances[-1]).sum())
        return mean, np.ascontiguousarray(axes[:, ::-1][:, : min(rank, self.bits)])


def prepare(features: NDArray[Any], normalize: bool) -> Floats:
    """Return features (n, D) as float64, each row of length 1 if `normalize`; a row of zeros stays as it is."""
    prepared = features.astype(np.float64)
    if normalize:
        lengths = np.linalg.norm(prepared, axis=1, keepdims=True)
        prepared /= np.where(lengths > 0, lengths, 1)
    return prepared


def affine(inputs: Floats, weights: Floats, offset: Floats) -> Floats:
    """Compute inputs (B, M) @ weights (M, K) - offset (K,), with exactly 0 for mere rounding errors.

    The order of a matrix product's sums depends on the size of the batch. Without the zeros, the bit of an input on a
    hyperplane would depend on its batch.
    """
    values = inputs @ weights - offset
    sizes = np.linalg.norm(inputs, axis=1)[:, None] * np.linalg.norm(weights, axis=0) + np.abs(offset)
    values[np.abs(values) <= ROUNDING * sizes] = 0
    return values
