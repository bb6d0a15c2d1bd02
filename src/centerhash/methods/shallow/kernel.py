"""Hashing by kernels at anchors: the base of KSH, BRE and SDH."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.options import Option
from centerhash.methods.shallow.base import Floats, ShallowHash, affine, prepare

# A mean squared distance below this share of the squared lengths is rounding.
_SMALLEST = 1e-12

Bandwidth: TypeAlias = Annotated[
    float, Option("sigma of the kernel, in root mean squared distances", ge=0.01, le=100)
]


class KernelHash(ShallowHash):
    """A hash function of kernels at anchors: kernel(features) @ weights - offset.

    The kernel is Gaussian, exp(-||x - a||^2 / (2 sigma^2)), or linear, x^T a, if sigma is 0.
    """

    learned = ("normalize", "anchors", "sigma", "weights", "offset")
    anchors: NDArray[np.float32]  # (M, D), prepared
    sigma: NDArray[np.float64]  # ()
    weights: Floats  # (M, K)
    offset: Floats  # (K,)

    def sample_anchors(
        self, features: NDArray[Any], count: int, bandwidth: float, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """Sample `count` training rows as anchors, or all if there are fewer; set sigma and return the rows (M,).

        Sigma is the bandwidth times the root of the mean squared distance between features and anchors.
        """
        rows = np.sort(generator.permutation(len(features))[:count])
        self.anchors = prepare(features[rows], bool(self.normalize)).astype(np.float32)
        wide = self.anchors.astype(np.float64)
        square = sum(float((block**2).sum()) for block in self.blocks(features))
        squares = square / len(features) + float((wide**2).sum()) / len(wide)
        distance = squares - 2 * float(self.mean_features(features) @ wide.mean(axis=0))
        self.sigma = np.array(bandwidth * math.sqrt(max(distance, _SMALLEST * squares)))
        return rows

    def kernel_of(self, rows: Floats) -> Floats:
        """Compute the kernel (B, M) between prepared rows (B, D) and the anchors."""
        anchors, sigma = self.anchors.astype(np.float64), float(self.sigma)
        if not sigma:
            return rows @ anchors.T
        squares = (rows**2).sum(axis=1)[:, None] + (anchors**2).sum(axis=1) - 2 * rows @ anchors.T
        kernel: Floats = np.exp(squares.clip(min=0) / (-2 * sigma**2))
        return kernel

    def kernel(self, features: NDArray[Any]) -> Floats:
        """Compute the kernel (N, M) between features (N, D) and the anchors."""
        return self.apply(self.kernel_of, features, len(self.anchors))

    def mean_kernel(self, features: NDArray[Any]) -> Floats:
        """Compute the mean (M,) of the kernel over features (n, D), without holding all of it."""
        total = np.zeros(len(self.anchors))
        for block in self.blocks(features):
            total += self.kernel_of(block).sum(axis=0)
        return total / len(features)

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute values (N, K) of features (N, D)."""
        check_features(features, self.anchors.shape[1])

        def values(rows: Floats) -> Floats:
            return affine(self.kernel_of(rows), self.weights, self.offset)

        return self.apply(values, features, len(self.offset))


def share_label(labels: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether two rows of labels (l, C) share a label, (l, l); a row without labels shares none."""
    shared: NDArray[np.bool_] = labels.astype(np.float32) @ labels.astype(np.float32).T > 0
    return shared
