"""Hashing by kernels at anchors: what KSH, BRE and SDH share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.checks import check_features
from centerhash.methods.shallow.base import (
    Floats,
    ShallowHash,
    ShallowOptions,
    affine,
    mean_features,
    prepare,
    prepared_blocks,
)

_SMALLEST = 1e-12  # mean squared distance, as a share of the squared lengths: less is rounding


class KernelOptions(ShallowOptions):
    """Options of every method with a Gaussian kernel."""

    bandwidth: float = Field(
        0.35, ge=0.01, le=100, description="sigma of the kernel, in root mean squared distances"
    )


# --- the kernel


def rbf(inputs: Floats, anchors: Floats, sigma: float) -> Floats:
    """Gaussian kernel (B, M) exp(-||x - a||^2 / (2 sigma^2)) of inputs (B, D) and anchors (M, D)."""
    squares = (inputs**2).sum(axis=1)[:, None] + (anchors**2).sum(axis=1) - 2 * inputs @ anchors.T
    kernel: Floats = np.exp(squares.clip(min=0) / (-2 * sigma**2))
    return kernel


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Gaussian kernel at fixed anchors, or a linear one: their inner products."""

    anchors: NDArray[np.float32]  # (M, D), prepared
    sigma: float  # 0 for the linear kernel
    unit: bool

    def blocks(self, features: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
        """Yield (rows, kernel (B, M)) over features (N, D), which are not yet prepared."""
        anchors = self.anchors.astype(np.float64)
        for rows, block in prepared_blocks(features, self.unit):
            yield rows, rbf(block, anchors, self.sigma) if self.sigma else block @ anchors.T

    def __call__(self, features: NDArray[Any]) -> Floats:
        """Kernel (N, M) between features (N, D) and the anchors."""
        values = np.empty((len(features), len(self.anchors)))
        for rows, block in self.blocks(features):
            values[rows] = block
        return values

    def mean(self, features: NDArray[Any]) -> Floats:
        """Mean (M,) of the kernel over features (n, D), without holding all of it."""
        total = np.zeros(len(self.anchors))
        for _, block in self.blocks(features):
            total += block.sum(axis=0)
        return total / len(features)


def mean_squared_distance(features: NDArray[Any], anchors: NDArray[Any], unit: bool) -> float:
    """Mean of ||x - a||^2 over all features (n, D) and prepared anchors (M, D), from their means alone."""
    square = sum(float((block**2).sum()) for _, block in prepared_blocks(features, unit)) / len(features)
    mean, wide = mean_features(features, unit), anchors.astype(np.float64)
    anchor_square = float((wide**2).sum()) / len(wide)
    distance = square + anchor_square - 2 * float(mean @ wide.mean(axis=0))
    return max(distance, _SMALLEST * (square + anchor_square))


def draw_kernel(
    features: NDArray[Any], count: int, options: KernelOptions, generator: np.random.Generator
) -> tuple[Kernel, NDArray[np.int64]]:
    """A kernel at `count` training rows (all when there are fewer), and which rows (M,) they are.

    The bandwidth follows the mean squared distance between features and anchors.
    """
    rows = np.sort(generator.permutation(len(features))[:count])
    anchors = prepare(features[rows], options.unit).astype(np.float32)
    sigma = options.bandwidth * math.sqrt(mean_squared_distance(features, anchors, options.unit))
    return Kernel(anchors, sigma, options.unit), rows


@dataclass(frozen=True, eq=False)
class KernelHash(ShallowHash):
    """A hash function of kernels at anchors: kernel(features, anchors) @ weights - offset."""

    unit: NDArray[np.bool_]  # () whether features are brought to length 1 first
    anchors: NDArray[np.float32]  # (M, D)
    sigma: Floats  # ()
    weights: Floats  # (M, K)
    offset: Floats  # (K,)

    @classmethod
    def at(cls, kernel: Kernel, weights: Floats, offset: Floats) -> Self:
        """The hash function of this kernel."""
        return cls(np.array(kernel.unit), kernel.anchors, np.array(kernel.sigma), weights, offset)

    def values(self, features: NDArray[Any]) -> Floats:
        """Values (N, K) of features (N, D)."""
        check_features(features, self.anchors.shape[1])
        values = np.empty((len(features), len(self.offset)))
        for rows, block in Kernel(self.anchors, float(self.sigma), bool(self.unit)).blocks(features):
            values[rows] = affine(block, self.weights, self.offset)
        return values


# --- similarity of multi-label rows


def share_label(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the rows of labels (A, C) and (B, C) share a label, (A, B); a row without labels shares none."""
    shared: NDArray[np.bool_] = first.astype(np.float32) @ second.astype(np.float32).T > 0
    return shared
