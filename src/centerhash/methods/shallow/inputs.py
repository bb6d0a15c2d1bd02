"""What every shallow method does with features: check them, bring them to length 1, project them, find their axes.

Rows are read in blocks, so that training and encoding never hold a float64 copy of all features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.checks import BLOCK, check_features
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.options import MethodOptions
from centerhash.core.parallel import one_numpy_thread

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # of a sum's terms; float64 sums of some thousand terms are better than this
_RANK = 1e-12  # variance of an axis, as a share of the largest, that is still more than rounding


class ShallowOptions(MethodOptions):
    """Options that all shallow methods share."""

    unit: bool = Field(True, description="scale every feature vector to length 1 first")


ShallowOptionsType = TypeVar("ShallowOptionsType", bound=ShallowOptions)


def expect_options(options: MethodOptions, kind: type[ShallowOptionsType]) -> ShallowOptionsType:
    """Return `options`, which must be of the method's own kind."""
    if not isinstance(options, kind):
        raise ConfigError(
            f"options of type {type(options).__name__} are for another method: pass {kind.__name__}()."
        )
    return options


def check_training(features: NDArray[Any], labels: NDArray[Any], bits: int, unit: bool) -> None:
    """Check training features (n, D), labels (n, C) and the number of bits once, at the door of `fit`."""
    if bits < 1:
        raise ConfigError(f"bits must be at least 1, got {bits}.")
    check_features(features)
    if labels.ndim != 2 or labels.dtype != np.bool_ or len(labels) != len(features):
        raise InputError(
            f"labels must be a bool array of shape ({len(features)}, C), one row per row of features, got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    if len(features) < 2:
        raise DataError(f"training needs at least 2 rows of features, got {len(features)}.")
    if _all_same(features, unit):
        hint = " when scaled to length 1: if only their lengths differ, set unit=false" if unit else ""
        raise DataError(f"the {len(features)} rows of features are all the same{hint}: nothing to learn.")


def check_supervision(labels: NDArray[np.bool_], method: str) -> None:
    """Check that a method which learns from labels has some."""
    if not labels.any():
        raise DataError(
            f"{method} learns from labels, but none of the {len(labels)} training rows has one: give labels, "
            "or use a method without labels (lsh, sh, itq)."
        )


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
    values[np.abs(values) <= _ROUNDING * sizes] = 0
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
