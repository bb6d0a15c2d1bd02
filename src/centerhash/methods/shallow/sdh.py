"""Hashing with discrete codes: SDH (supervised discrete hashing)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from centerhash.core.options import Option
from centerhash.core.progress import Progress
from centerhash.methods.shallow.base import STAGE, Floats, Normalize, prepare
from centerhash.methods.shallow.kernel import Bandwidth, KernelHash

# The codes of a block of rows stay in the CPU's cache.
_BLOCK_ROWS = 1024


def ridge_solution(inputs: Floats, targets: Floats, ridge: float) -> Floats:
    """Solve the weights (M, T) that minimize ||inputs (n, M) @ weights - targets (n, T)||^2 + ridge ||weights||^2."""
    gram = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, inputs.T @ targets), dtype=np.float64)


def discrete_cyclic_descent(codes: Floats, pull: Floats, classifier: Floats, sweeps: int) -> Floats:
    """Return codes (n, K) that lower ||B W||^2 - 2 tr(B^T Q), one bit of all rows at a time: the paper's DCC.

    With its other bits fixed, bit k of a row is best at sign(q_k - sum over bits j != k of b_j <w_j, w_k>);
    pull is Q (n, K), classifier W (K, C). Rows are independent. Iteration ends when a sweep changes no bit.
    """
    # Only inner products of W's rows count, for which K columns suffice.
    narrow = classifier.shape[1] <= classifier.shape[0]
    factor = classifier if narrow else np.linalg.qr(classifier.T)[1].T
    improved = codes.copy()
    for start in range(0, len(codes), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        _sweep(improved[rows], pull[rows], factor, sweeps)
    return improved


def _sweep(codes: Floats, pull: Floats, factor: Floats, sweeps: int) -> None:
    """Improve codes (B, K) in place. B W is kept up to date, so that a bit costs a product with w_k alone."""
    outputs, squares = codes @ factor, (factor**2).sum(axis=1)
    for _ in range(sweeps):
        changes = 0
        for bit, direction in enumerate(factor):
            push = pull[:, bit] - outputs @ direction + codes[:, bit] * squares[bit]
            # At 0 both values are equally good, and the bit stays.
            wrong = np.flatnonzero(push * codes[:, bit] < 0)
            codes[wrong, bit] *= -1
            outputs[wrong] += 2 * np.outer(codes[wrong, bit], direction)
            changes += wrong.size
        if not changes:
            break


class SDH(KernelHash):
    """SDH (Shen et al., 2015): discrete codes that predict the labels linearly.

    Supervised Discrete Hashing, CVPR 2015. Anchors, lambda, nu and iterations are those of the paper; a validation split
    preferred the other defaults. The signs of the hash function, which is fitted to the codes, encode new features.
    """

    needs_labels = True

    def __init__(
        self,
        bits: int = 64,
        *,
        normalize: Normalize = True,
        bandwidth: Bandwidth = 0.7,
        anchors: Annotated[int, Option("rows used as kernel points", ge=1)] = 1000,
        ridge: Annotated[float, Option("ridge of the classifier", alias="lambda", gt=0)] = 1.0,
        nu: Annotated[float, Option("coefficient of the distance to the hash function", ge=0)] = 1e-5,
        smooth: Annotated[float, Option("ridge of the hash function, per training row", gt=0)] = 1e-5,
        scaled: Annotated[bool, Option("scale label rows to unit length")] = True,
        iterations: Annotated[int, Option("rounds of hash function, classifier and codes", ge=1)] = 5,
        sweeps: Annotated[int, Option("maximum sweeps over the bits per round", ge=1)] = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)
        self.bandwidth, self.anchor_count, self.scaled = bandwidth, anchors, scaled
        self.ridge, self.nu, self.smooth, self.iterations, self.sweeps = ridge, nu, smooth, iterations, sweeps

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit P (M, K) to labels Y (n, C) and kernels X (n, M): W, then codes B, then P, each with the others fixed.

        The objective is the paper's with a ridge for P besides W's, and never rises; B is improved, not optimal:
        ||Y - B W||^2 + lambda ||W||^2 + nu (||B - X P||^2 + n smooth ||P||^2). B starts at random.
        """
        generator, rows = np.random.default_rng(self.seed), len(features)
        self.sample_anchors(features, self.anchor_count, self.bandwidth, generator)
        # The column of ones stands for a bias, as in the authors' code.
        columns = np.hstack([self.kernel(features), np.ones((rows, 1))])
        targets = prepare(labels, self.scaled)
        codes = np.where(generator.random((rows, self.bits)) < 0.5, -1.0, 1.0)
        function = ridge_solution(columns, codes, self.smooth * rows)
        for iteration in range(self.iterations):
            classifier = ridge_solution(codes, targets, self.ridge)
            pull = targets @ classifier.T + self.nu * (columns @ function)
            codes = discrete_cyclic_descent(codes, pull, classifier, self.sweeps)
            function = ridge_solution(columns, codes, self.smooth * rows)
            progress(STAGE, iteration + 1, self.iterations)
        self.weights, self.offset = function[:-1], -function[-1]
