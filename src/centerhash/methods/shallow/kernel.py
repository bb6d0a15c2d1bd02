"""Hashing by kernels at anchors: what KSH, BRE and SDH share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.options import Option
from centerhash.methods.shallow.base import (
    Floats,
    ShallowHash,
    affine,
    mean_features,
    prepare,
    prepared_blocks,
)

# A mean squared distance below this share of the squared lengths is rounding.
_SMALLEST = 1e-12


Bandwidth: TypeAlias = Annotated[
    float, Option("sigma of the kernel, in root mean squared distances", ge=0.01, le=100)
]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Gaussian kernel at fixed anchors, or a linear one: their inner products."""

    anchors: NDArray[np.float32]  # (M, D), prepared
    sigma: float  # 0 for the linear kernel
    normalize: bool

    def blocks(self, features: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
        """Yield (rows, kernel (B, M)) over features (N, D): exp(-||x - a||^2 / (2 sigma^2)), or x^T a if sigma is 0."""
        anchors = self.anchors.astype(np.float64)
        for rows, block in prepared_blocks(features, self.normalize):
            if self.sigma:
                squares = (block**2).sum(axis=1)[:, None] + (anchors**2).sum(axis=1) - 2 * block @ anchors.T
                yield rows, np.exp(squares.clip(min=0) / (-2 * self.sigma**2))
            else:
                yield rows, block @ anchors.T

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


def draw_kernel(
    features: NDArray[Any], count: int, bandwidth: float, normalize: bool, generator: np.random.Generator
) -> tuple[Kernel, NDArray[np.int64]]:
    """A kernel at `count` training rows (all when there are fewer), and which rows (M,) they are.

    Its sigma is the bandwidth times the root of the mean squared distance between features and anchors; the bandwidth 0
    is the linear kernel.
    """
    rows = np.sort(generator.permutation(len(features))[:count])
    anchors = prepare(features[rows], normalize).astype(np.float32)
    wide = anchors.astype(np.float64)
    square = sum(float((block**2).sum()) for _, block in prepared_blocks(features, normalize)) / len(features)
    squares = square + float((wide**2).sum()) / len(wide)
    distance = squares - 2 * float(mean_features(features, normalize) @ wide.mean(axis=0))
    sigma = bandwidth * math.sqrt(max(distance, _SMALLEST * squares))
    return Kernel(anchors, sigma, normalize), rows


class KernelHash(ShallowHash):
    """A hash function of kernels at anchors: kernel(features, anchors) @ weights - offset."""

    learned = ("normalize", "anchors", "sigma", "weights", "offset")
    anchors: NDArray[np.float32]  # (M, D)
    sigma: NDArray[np.float64]  # ()
    weights: Floats  # (M, K)
    offset: Floats  # (K,)

    def _set(self, kernel: Kernel, weights: Floats, offset: Floats) -> None:
        self.anchors, self.sigma = kernel.anchors, np.array(kernel.sigma)
        self.weights, self.offset = weights, offset

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute values (N, K) of features (N, D)."""
        check_features(features, self.anchors.shape[1])
        values = np.empty((len(features), len(self.offset)))
        for rows, block in Kernel(self.anchors, float(self.sigma), bool(self.normalize)).blocks(features):
            values[rows] = affine(block, self.weights, self.offset)
        return values


def share_label(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the rows of labels (A, C) and (B, C) share a label, (A, B); a row without labels shares none."""
    shared: NDArray[np.bool_] = first.astype(np.float32) @ second.astype(np.float32).T > 0
    return shared
