"""Base of the shallow methods: a frozen bundle of arrays that turns features into values whose signs are codes.

Rows are read in blocks, so that training and encoding never hold a float64 copy of all features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.checks import BLOCK, check_features
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.options import MethodOptions
from centerhash.core.parallel import one_numpy_thread
from centerhash.core.progress import Progress, silent

Floats = NDArray[np.float64]

STAGE = "training"  # of the progress that shallow methods report
ROUNDING = 1e-12  # of a sum's terms; float64 sums of some thousand terms are better than this
_RANK = 1e-12  # variance of an axis, as a share of the largest, that is still more than rounding


class ShallowOptions(MethodOptions):
    """Options that all shallow methods share."""

    unit: bool = Field(True, description="scale every feature vector to unit length")


ShallowOptionsType = TypeVar("ShallowOptionsType", bound=ShallowOptions)


@dataclass(frozen=True, eq=False)
class Training:
    """The inputs of a fit: features (n, D), labels (n, C), and how."""

    features: NDArray[np.float32]
    labels: NDArray[np.bool_]
    bits: int
    options: MethodOptions
    seed: int
    progress: Progress = silent

    def checked(
        self, kind: type[ShallowOptionsType], learns_from_labels: str | None = None
    ) -> ShallowOptionsType:
        """Check all inputs and return the options, which must be of the method's own `kind`.

        `learns_from_labels` names a method that needs labels.
        """
        features, labels, options = self.features, self.labels, self.options
        if not isinstance(options, kind):
            raise ConfigError(
                f"options of type {type(options).__name__} are for another method: pass {kind.__name__}()."
            )
        if self.bits < 1:
            raise ConfigError(f"bits must be at least 1, got {self.bits}.")
        check_features(features)
        if labels.ndim != 2 or labels.dtype != np.bool_ or len(labels) != len(features):
            raise InputError(
                f"labels must be a bool array of shape ({len(features)}, C), one row per row of features, got "
                f"{labels.dtype} of shape {labels.shape}."
            )
        if len(features) < 2:
            raise DataError(f"training needs at least 2 rows of features, got {len(features)}.")
        if _all_same(features, options.unit):
            hint = " when scaled to length 1: if only their lengths differ, set unit=false"
            raise DataError(
                f"the {len(features)} rows of features are all the same{hint if options.unit else ''}: nothing to learn."
            )
        if learns_from_labels and not labels.any():
            raise DataError(
                f"{learns_from_labels} learns from labels, but none of the {len(labels)} training rows has one: give "
                "labels, or use a method without labels (lsh, sh, itq)."
            )
        return options


@dataclass(frozen=True, eq=False)
class ShallowHash(ABC):
    """A fitted hash function. Its dataclass fields are arrays, and are all that is stored of it."""

    options_class: ClassVar[type[MethodOptions]] = ShallowOptions  # of methods without options of their own

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
        """Fit to the arguments of `fit`, after `given.checked`."""

    @abstractmethod
    def values(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Values (N, K) of features (N, D), seen in training or not; value >= 0 is the bit +1."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays by name, as they are stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted function from the result of `arrays`."""
        return cls(**dict(arrays))


# --- Features: prepared, projected, and their principal axes


def prepare(features: NDArray[Any], unit: bool) -> Floats:
    """Features (n, D) as float64, each row of length 1 when `unit`; a row of zeros stays as it is."""
    prepared = features.astype(np.float64)
    if unit:
        lengths = np.linalg.norm(prepared, axis=1, keepdims=True)
        prepared /= np.where(lengths > 0, lengths, 1)
    return prepared


def prepared_blocks(features: NDArray[Any], unit: bool) -> Iterator[tuple[slice, Floats]]:
    """Yield (rows, prepared features (B, D)) over all of features (N, D)."""
    for start in range(0, len(features), BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, prepare(features[rows], unit)


def _all_same(features: NDArray[Any], unit: bool) -> bool:
    first = prepare(features[:1], unit)
    tolerance = 1e-6 * np.abs(first).max(initial=0)  # what float32 keeps of a vector brought to length 1
    return all(np.abs(block - first).max() <= tolerance for _, block in prepared_blocks(features, unit))


def mean_features(features: NDArray[Any], unit: bool) -> Floats:
    """Mean (D,) of the prepared features (n, D)."""
    total = np.zeros(features.shape[1])
    for _, block in prepared_blocks(features, unit):
        total += block.sum(axis=0)
    return total / len(features)


def affine(inputs: Floats, weights: Floats, offset: Floats) -> Floats:
    """inputs (B, M) @ weights (M, K) - offset (K,), where what is only rounding is exactly 0.

    The order of a matrix product's sums depends on the size of the batch. Without this, an input that lies
    on a hyperplane would get one bit or the other by the batch it comes in.
    """
    values = inputs @ weights - offset
    sizes = np.linalg.norm(inputs, axis=1)[:, None] * np.linalg.norm(weights, axis=0) + np.abs(offset)
    values[np.abs(values) <= ROUNDING * sizes] = 0
    return values


def project(features: NDArray[Any], unit: bool, projection: Floats, offset: Floats) -> Floats:
    """Values (N, K) of prepared features (N, D) @ projection (D, K) - offset (K,)."""
    values = np.empty((len(features), projection.shape[1]))
    for rows, block in prepared_blocks(features, unit):
        values[rows] = affine(block, projection, offset)
    return values


class Axes(NamedTuple):
    """Principal axes of features: their mean (D,), orthonormal axes (D, R) by falling variance (R,)."""

    mean: Floats
    axes: Floats
    variances: Floats


def principal_axes(features: NDArray[Any], unit: bool, most: int | None = None) -> Axes:
    """The axes of features (n, D) along which they vary at all, at most `most`: R <= min(n - 1, D)."""
    mean = mean_features(features, unit)
    if len(features) < features.shape[1]:  # the covariance would be the larger matrix
        centred = prepare(features, unit) - mean
        with one_numpy_thread():
            _, lengths, axes_in_rows = np.linalg.svd(centred, full_matrices=False)
        variances, axes = lengths**2 / len(features), axes_in_rows.T
    else:
        covariance = np.zeros((features.shape[1], features.shape[1]))
        for _, block in prepared_blocks(features, unit):
            covariance += (block - mean).T @ (block - mean) / len(features)
        with one_numpy_thread():
            rising, axes_rising = np.linalg.eigh(covariance)
        variances, axes = rising[::-1], axes_rising[:, ::-1]
    rank = int((variances > _RANK * variances[0]).sum())
    kept = rank if most is None else min(rank, most)
    return Axes(mean, np.ascontiguousarray(axes[:, :kept]), variances[:kept].copy())
