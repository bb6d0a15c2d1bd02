"""Hashing bit by bit on the residual of the similarities: KSH (kernel-based supervised hashing)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from centerhash.core.options import Option
from centerhash.core.progress import Progress, silent
from centerhash.methods.shallow.base import STAGE, Floats, Normalize
from centerhash.methods.shallow.kernel import Bandwidth, KernelHash, share_label

# A direction with less than this share of the largest variance is rounding.
_RANK = 1e-10


def signed_similarity(labels: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return S (l, l) of labels (l, C): +1 if two rows share a label, else -1; every row is similar to itself."""
    similarity = np.where(share_label(labels), np.float32(1), np.float32(-1))
    np.fill_diagonal(similarity, 1)
    return similarity


def whiten(centered: Floats, ridge: float) -> tuple[Floats, Floats]:
    """Return an orthogonal basis (l, R) of centered kernel columns (l, M), and the matrix (M, R) that leads to it.

    It turns the paper's generalized eigenproblem into a plain one. Directions of no variance (copies of anchors, more
    anchors than rows) drop out. The ridge, a share of the largest variance, makes directions of little variance count for
    less, so that fewer bits are spent on noise; without it, all columns have length sqrt(l).
    """
    variances, directions = np.linalg.eigh(centered.T @ centered / len(centered))
    kept = variances > _RANK * variances[-1]
    back = directions[:, kept] / np.sqrt(variances[kept] + ridge * variances[-1])
    return centered @ back, back


def smoothed_agreement(
    weights: Floats, basis: NDArray[np.float32], residue: NDArray[np.float32]
) -> tuple[float, Floats]:
    """Compute phi(Z c)^T R phi(Z c) of weights c (R,) on a basis Z (l, R), and its gradient (R,).

    phi(x) = 2 / (1 + exp(-x)) - 1 = tanh(x / 2) stands for the sign, and R (l, l) is the residue.
    """
    bits = np.tanh(basis @ weights.astype(np.float32) / 2)
    pulled = residue @ bits
    gradient = basis.T @ (pulled * (1 - bits**2))
    return float(bits.astype(np.float64) @ pulled.astype(np.float64)), gradient.astype(np.float64)


def ascend(
    start: Floats, basis: NDArray[np.float32], residue: NDArray[np.float32], iterations: int
) -> Floats:
    """Climb the smoothed agreement from `start` (R,) by Nesterov's gradient.

    Momentum starts over, with half the step and from the best point, whenever a step goes down, so that the result is
    never lower than the start.
    """
    best, point, moved, momentum = start, start, start, 1.0
    best_value, best_gradient = smoothed_agreement(start, basis, residue)
    gradient = best_gradient
    # The first step is as long as the start itself; a gradient of 0 leads nowhere.
    step = float(np.linalg.norm(start)) / max(float(np.linalg.norm(gradient)), np.finfo(np.float64).tiny)
    for _ in range(iterations):
        before, moved = moved, point + step * gradient
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        point, momentum = moved + (momentum - 1) / grown * (moved - before), grown
        value, gradient = smoothed_agreement(point, basis, residue)
        if value > best_value:
            best, best_value, best_gradient = point, value, gradient
        else:
            point = moved = best
            gradient, momentum, step = best_gradient, 1.0, step / 2
    return best


def greedy_bits(
    basis: Floats, similarity: NDArray[np.float32], bits: int, iterations: int, progress: Progress = silent
) -> Floats:
    """Fit weights (R, K) on a basis (l, R), one bit at a time, to similarities S (l, l).

    Bit k fits the residue R = K S - sum over earlier bits of h h^T: the top eigenvector of Z^T R Z, then the
    gradient of the smoothed objective. The one with the better signs is kept.
    """
    narrow, residue = basis.astype(np.float32), bits * similarity
    between = basis.T @ (residue @ narrow).astype(np.float64)
    columns = np.empty((basis.shape[1], bits))
    for bit in range(bits):
        spectral = np.linalg.eigh(between)[1][:, -1]
        refined = ascend(spectral, narrow, residue, iterations)
        codes = np.where(basis @ np.stack([spectral, refined], axis=1) >= 0, 1.0, -1.0)
        agreements = (codes * (residue @ codes.astype(np.float32)).astype(np.float64)).sum(axis=0)
        better = int(agreements.argmax())
        columns[:, bit], code = (spectral, refined)[better], codes[:, better]
        residue -= np.outer(code, code).astype(np.float32)
        pulled = basis.T @ code
        between -= np.outer(pulled, pulled)
        progress(STAGE, bit + 1, bits)
    return columns


class KSH(KernelHash):
    """KSH (Liu et al., 2012): one bit at a time, fitted to the residual of the similarities.

    Supervised Hashing with Kernels, CVPR 2012. The paper has 300 anchors; a validation split preferred the defaults.
    """

    needs_labels = True

    def __init__(
        self,
        bits: int = 64,
        *,
        normalize: Normalize = True,
        bandwidth: Bandwidth = 0.35,
        anchors: Annotated[int, Option("rows used as kernel points", ge=1)] = 1000,
        labeled: Annotated[int, Option("rows whose similarities are fitted", ge=2)] = 5000,
        iterations: Annotated[int, Option("gradient steps per bit after the spectral start", ge=0)] = 15,
        ridge: Annotated[
            float, Option("ridge on the kernel variances, relative to the largest", ge=0)
        ] = 0.03,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)
        self.bandwidth, self.anchor_count, self.labeled = bandwidth, anchors, labeled
        self.iterations, self.ridge = iterations, ridge

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit on the similarities of some rows of features (n, D) with labels (n, C)."""
        generator = np.random.default_rng(self.seed)
        self.sample_anchors(features, self.anchor_count, self.bandwidth, generator)
        rows = np.sort(generator.permutation(len(features))[: self.labeled])
        mean = self.mean_kernel(features)
        basis, back = whiten(self.kernel(features[rows]) - mean, self.ridge)
        similarity = signed_similarity(labels[rows])
        self.weights = back @ greedy_bits(basis, similarity, self.bits, self.iterations, progress)
        self.offset = mean @ self.weights
