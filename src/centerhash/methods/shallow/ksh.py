"""Hashing bit by bit on what is left of the similarities: KSH (kernel-based supervised hashing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.progress import Progress, silent
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.shallow.base import STAGE, Floats, Training
from centerhash.methods.shallow.kernel import KernelHash, KernelOptions, draw_kernel, share_label

_RANK = 1e-10  # variance of a direction, as a share of the largest, that is still more than rounding


def signed_similarity(labels: NDArray[np.bool_]) -> NDArray[np.float32]:
    """S (l, l) of labels (l, C): +1 where two rows share a label, else -1; every row is similar to itself."""
    similarity = np.where(share_label(labels, labels), np.float32(1), np.float32(-1))
    np.fill_diagonal(similarity, 1)
    return similarity


def agreement(code: NDArray[Any], residue: NDArray[np.float32]) -> float:
    """h^T R h of one bit's code h (l,) with the residue R (l, l): a new bit is chosen for it."""
    narrow = code.astype(np.float32)
    return float(narrow.astype(np.float64) @ (residue @ narrow).astype(np.float64))


class Whitened(NamedTuple):
    """A basis (l, R) of the kernel's centred columns (l, M), and the matrix (M, R) that leads to it."""

    basis: Floats
    back: Floats


def whiten(centred: Floats, ridge: float) -> Whitened:
    """Orthogonal basis of centred kernel columns (l, M); without a ridge, all its columns have length sqrt(l).

    It turns the paper's generalised eigenproblem into a plain one. Directions of no variance (copies of
    anchors, more anchors than rows) drop out. The ridge, a share of the largest variance, is added to every
    variance, so that directions of little variance count for less: fewer bits are spent on noise.
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


def greedy_bits(
    basis: Floats, similarity: NDArray[np.float32], bits: int, iterations: int, progress: Progress = silent
) -> Floats:
    """Weights (R, K) on a basis (l, R), one bit at a time, for similarities S (l, l).

    Bit k fits the residue R = K S - sum over earlier bits of h h^T: the top eigenvector of Z^T R Z, then the
    gradient of the smoothed objective. Whichever of both has the better signs is kept.
    """
    narrow, residue = basis.astype(np.float32), bits * similarity
    between = basis.T @ (residue @ narrow).astype(np.float64)
    columns = np.empty((basis.shape[1], bits))
    for bit in range(bits):
        spectral = np.linalg.eigh(between)[1][:, -1]
        refined, _ = ascend(spectral, narrow, residue, iterations)
        candidates = [(weights, np.where(basis @ weights >= 0, 1.0, -1.0)) for weights in (spectral, refined)]
        columns[:, bit], code = max(candidates, key=lambda candidate: agreement(candidate[1], residue))
        residue -= np.outer(code, code).astype(np.float32)
        pulled = basis.T @ code
        between -= np.outer(pulled, pulled)
        progress(STAGE, bit + 1, bits)
    return columns


class KshOptions(KernelOptions):
    """Options of KSH: 300 anchors as in the paper, the rest as a validation split preferred."""

    anchors: int = Field(1000, ge=1, description="rows used as kernel points")
    labelled: int = Field(5000, ge=2, description="rows whose similarities are fitted")
    iterations: int = Field(15, ge=0, description="gradient steps per bit after the spectral start")
    ridge: float = Field(0.03, ge=0, description="ridge on the kernel variances, relative to the largest")


@register_method(
    "ksh",
    title="KSH",
    paper="Supervised Hashing with Kernels (Liu et al.)",
    year=2012,
    multi_label="similar if a label is shared",
    space={"bandwidth": [0.35, 0.7, 1.0], "anchors": [300, 1000], "ridge": [0.0, 0.01, 0.03]},
    authors={"bandwidth": 1.0, "anchors": 300, "ridge": 0.0, "labelled": 2000, "iterations": 500},
    notes=Notes(
        source="the authors' MATLAB code",
        equations="""
            min over A of  || H H^T / K - S ||^2,  H = sign(kernel(X, anchors) A),
                S_ij = +1 if i and j share a label, else -1""",
        differences="""
            A ridge on the kernel variances keeps bits from following noise.""",
        scores=Scores(0.737, None, 0.626),
    ),
)
@dataclass(frozen=True, eq=False)
class Ksh(KernelHash):
    """KSH (Liu et al., 2012): one bit at a time, fitted to the residual of the similarities."""

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Fit on the similarities of some rows of features (n, D) with labels (n, C)."""
        chosen = given.checked(KshOptions, "KSH")
        features, labels = given.features, given.labels
        generator = np.random.default_rng(given.seed)
        kernel, _ = draw_kernel(features, chosen.anchors, chosen, generator)
        rows = np.sort(generator.permutation(len(features))[: chosen.labelled])
        mean = kernel.mean(features)
        whitened = whiten(kernel(features[rows]) - mean, chosen.ridge)
        similarity = signed_similarity(labels[rows])
        columns = greedy_bits(whitened.basis, similarity, given.bits, chosen.iterations, given.progress)
        weights = whitened.back @ columns
        return cls.at(kernel, weights, mean @ weights)
