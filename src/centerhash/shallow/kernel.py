"""Hashing by kernels at anchors: what KSH, BRE and SDH share, and KSH (kernel-based supervised hashing)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.options import MethodOptions
from centerhash.shallow.base import Report, ShallowHash
from centerhash.shallow.inputs import (
    Floats,
    ShallowOptions,
    affine,
    check_features,
    check_supervision,
    check_training,
    expect_options,
    mean_features,
    prepare,
    prepared_blocks,
)

_RANK = 1e-10  # variance of a direction, as a share of the largest, that is still more than rounding


class KernelOptions(ShallowOptions):
    """Options of every method with a Gaussian kernel."""

    bandwidth: float = Field(
        0.35, gt=0, description="sigma of the kernel, as a multiple of the root mean squared distance"
    )


# --- the kernel


def rbf(inputs: Floats, anchors: Floats, sigma: float) -> Floats:
    """Gaussian kernel (B, M) exp(-||x - a||^2 / (2 sigma^2)) of inputs (B, D) and anchors (M, D)."""
    squares = (inputs**2).sum(axis=1)[:, None] + (anchors**2).sum(axis=1) - 2 * inputs @ anchors.T
    kernel: Floats = np.exp(squares.clip(min=0) / (-2 * sigma**2))
    return kernel


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Gaussian kernel at fixed anchors."""

    anchors: NDArray[np.float32]  # (M, D), prepared
    sigma: float
    unit: bool

    def blocks(self, features: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
        """Yield (rows, kernel (B, M)) over features (N, D), which are not yet prepared."""
        anchors = self.anchors.astype(np.float64)
        for rows, block in prepared_blocks(features, self.unit):
            yield rows, rbf(block, anchors, self.sigma)

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
    features: NDArray[Any], count: int, options: KernelOptions, generator: np.random.Generator
) -> tuple[Kernel, NDArray[np.int64]]:
    """A kernel at `count` training rows (all when there are fewer), and which rows (M,) they are.

    The mean squared distance between features and anchors sets the bandwidth.
    """
    rows = np.sort(generator.permutation(len(features))[:count])
    anchors = prepare(features[rows], options.unit).astype(np.float32)
    mean_square = sum(float((block**2).sum()) for _, block in prepared_blocks(features, options.unit))
    mean = mean_features(features, options.unit)
    anchor_mean = anchors.mean(axis=0, dtype=np.float64)
    anchor_square = float((anchors.astype(np.float64) ** 2).sum(axis=1).mean())
    distance = mean_square / len(features) + anchor_square - 2 * float(mean @ anchor_mean)
    return Kernel(anchors, options.bandwidth * float(np.sqrt(distance)), options.unit), rows


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


def signed_similarity(labels: NDArray[np.bool_]) -> NDArray[np.float32]:
    """S (l, l) of labels (l, C): +1 where two rows share a label, else -1; every row is similar to itself."""
    similarity = np.where(share_label(labels, labels), np.float32(1), np.float32(-1))
    np.fill_diagonal(similarity, 1)
    return similarity


# --- KSH


def similarity_error(codes: Floats, similarity: NDArray[np.float32]) -> float:
    """||H H^T / K - S||^2 of codes H (l, K) in {-1, +1}: what KSH minimises."""
    return float(((codes @ codes.T / codes.shape[1] - similarity) ** 2).sum())


def agreement(code: NDArray[Any], residue: NDArray[np.float32]) -> float:
    """h^T R h of one bit's code h (l,) with the residue R (l, l): a new bit is chosen for it."""
    narrow = code.astype(np.float32)
    return float(narrow.astype(np.float64) @ (residue @ narrow).astype(np.float64))


class Whitened(NamedTuple):
    """A kernel's centred columns as a basis (l, R), orthogonal and of length sqrt(l), and the way (M, R) there."""

    basis: Floats
    back: Floats


def whiten(centred: Floats, ridge: float) -> Whitened:
    """Basis of centred kernel columns (l, M); it turns the generalised eigenproblem of the paper into a plain one.

    Directions of no variance (copies of anchors, more anchors than rows) drop out. The ridge, a share of the
    largest variance, is added to all variances: small ones are no longer blown up to the size of large ones.
    """
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = variances > _RANK * variances[-1]
    back = directions[:, kept] / np.sqrt(variances[kept] + ridge * variances[-1])
    return Whitened(centred @ back, back)


def smoothed_agreement(
    weights: Floats, basis: NDArray[np.float32], residue: NDArray[np.float32]
) -> tuple[float, Floats]:
    """phi(Z c)^T R phi(Z c) of weights c (R,) on a basis Z (l, R), and its gradient (R,).

    phi(x) = 2 / (1 + exp(-x)) - 1 = tanh(x / 2) stands for the sign, and R (l, l) is the residue.
    """
    bits = np.tanh(basis @ weights.astype(np.float32) / 2)
    pulled = residue @ bits
    gradient = basis.T @ (pulled * (1 - bits**2))
    return float(bits.astype(np.float64) @ pulled.astype(np.float64)), gradient.astype(np.float64)


def ascend(
    start: Floats, basis: NDArray[np.float32], residue: NDArray[np.float32], iterations: int
) -> tuple[Floats, Floats]:
    """Climb the smoothed agreement from `start` (R,) by Nesterov's gradient; also the best value after each step.

    Momentum starts over, with half the step and from the best point, whenever a step goes down, so that what
    is returned is never lower than the start.
    """
    best, point, moved, momentum = start, start, start, 1.0
    best_value, gradient = smoothed_agreement(start, basis, residue)
    best_gradient = gradient
    # a first step of the size of the start itself; where the gradient is 0 there is nowhere to go
    step = float(np.linalg.norm(start)) / max(float(np.linalg.norm(gradient)), np.finfo(np.float64).tiny)
    trace = [best_value]
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
        trace.append(best_value)
    return best, np.array(trace)


class KshOptions(KernelOptions):
    """Options of KSH: anchors and labelled rows as in the paper, the rest as a validation split preferred."""

    anchors: int = Field(300, ge=1, description="rows at which the kernel is taken")
    labelled: int = Field(5000, ge=2, description="rows whose similarities are fitted")
    iterations: int = Field(15, ge=0, description="gradient steps per bit after the spectral start")
    ridge: float = Field(0.03, ge=0, description="added to the kernel's variances, as a share of the largest")


@dataclass(frozen=True, eq=False)
class Ksh(KernelHash):
    """KSH (Liu et al., 2012): bit after bit, fit what the bits so far leave of the similarities."""

    @classmethod
    def fit(
        cls,
        features: NDArray[np.float32],
        labels: NDArray[np.bool_],
        bits: int,
        options: MethodOptions,
        seed: int,
        report: Report | None = None,
    ) -> Self:
        """Fit on the similarities of some rows of features (n, D) with labels (n, C)."""
        chosen = expect_options(options, KshOptions)
        check_training(features, labels, bits, chosen.unit)
        check_supervision(labels, "KSH")
        generator = np.random.default_rng(seed)
        kernel, _ = draw_kernel(features, chosen.anchors, chosen, generator)
        rows = np.sort(generator.permutation(len(features))[: chosen.labelled])
        mean = kernel.mean(features)
        whitened = whiten(kernel(features[rows]) - mean, chosen.ridge)
        similarity = signed_similarity(labels[rows])
        columns = greedy_bits(whitened.basis, similarity, bits, chosen.iterations, report)
        weights = whitened.back @ columns
        return cls.at(kernel, weights, mean @ weights)


def greedy_bits(
    basis: Floats, similarity: NDArray[np.float32], bits: int, iterations: int, report: Report | None = None
) -> Floats:
    """Weights (R, K) on a basis (l, R), one bit at a time, for similarities S (l, l).

    Bit k fits the residue R = K S - sum over earlier bits of h h^T: the top eigenvector of Z^T R Z, then the
    gradient of the smoothed objective. Whichever of both has the better signs is kept.
    """
    narrow, residue = basis.astype(np.float32), bits * similarity
    between = basis.T @ (residue @ narrow).astype(np.float64)
    columns = np.empty((basis.shape[1], bits))
    for bit in range(bits):
        spectral = np.linalg.eigh(between)[1][:, -1]  # ||Z c||^2 = l, as the paper scales it
        refined, _ = ascend(spectral, narrow, residue, iterations)
        candidates = [(weights, np.where(basis @ weights >= 0, 1.0, -1.0)) for weights in (spectral, refined)]
        columns[:, bit], code = max(candidates, key=lambda candidate: agreement(candidate[1], residue))
        residue -= np.outer(code, code).astype(np.float32)
        pulled = basis.T @ code
        between -= np.outer(pulled, pulled)
        if report is not None:
            report(bit + 1, bits)
    return columns
