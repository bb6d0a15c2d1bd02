"""Hashing with discrete codes: SDH (supervised discrete hashing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.progress import Progress, silent
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.shallow.base import STAGE, Floats, Training, prepare
from centerhash.methods.shallow.kernel import KernelHash, KernelOptions, draw_kernel

_BLOCK = 1024  # rows whose codes are improved at once, so that they stay in the CPU's cache


class SdhOptions(KernelOptions):
    """Options of SDH: anchors, lambda, nu and iterations as in the paper, the rest as a validation split preferred."""

    anchors: int = Field(1000, ge=1, description="rows used as kernel points")
    bandwidth: float = Field(
        0.7, ge=0.01, le=100, description="sigma of the kernel, in root mean squared distances"
    )
    ridge: float = Field(1.0, gt=0, alias="lambda", description="ridge of the classifier")
    fit: float = Field(1e-5, ge=0, alias="nu", description="coefficient of the distance to the hash function")
    smooth: float = Field(1e-5, gt=0, description="ridge of the hash function, per training row")
    scaled: bool = Field(True, description="scale label rows to unit length")
    iterations: int = Field(5, ge=1, description="rounds of hash function, classifier and codes")
    sweeps: int = Field(10, ge=1, description="maximum sweeps over the bits per round")


class Weights(NamedTuple):
    """The other variables of SDH besides the codes: classifier W (K, C) and hash function P (M, K)."""

    classifier: Floats
    function: Floats


def ridge_solution(inputs: Floats, targets: Floats, ridge: float) -> Floats:
    """Weights (M, T) that minimise ||inputs (n, M) @ weights - targets (n, T)||^2 + ridge ||weights||^2."""
    gram = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, inputs.T @ targets), dtype=np.float64)


def sdh_objective(
    codes: Floats, targets: Floats, columns: Floats, weights: Weights, options: SdhOptions
) -> float:
    """||Y - B W||^2 + lambda ||W||^2 + nu (||B - columns P||^2 + n smooth ||P||^2) for codes B (n, K).

    The paper's objective with targets Y (n, C) and kernel columns (n, M), and a ridge for P besides W's.
    """
    classifier, function = weights
    classified = ((targets - codes @ classifier) ** 2).sum() + options.ridge * (classifier**2).sum()
    ridge = options.smooth * len(columns)
    fitted = ((codes - columns @ function) ** 2).sum() + ridge * (function**2).sum()
    return float(classified + options.fit * fitted)


def discrete_cyclic_descent(codes: Floats, pull: Floats, classifier: Floats, sweeps: int) -> Floats:
    """Codes (n, K) that lower ||B W||^2 - 2 tr(B^T Q), one bit of all rows at a time: the paper's DCC.

    With its other bits fixed, bit k of a row is best at sign(q_k - sum over bits j != k of b_j <w_j, w_k>);
    pull is Q (n, K), classifier W (K, C). Rows are independent. Ends when a sweep over the bits changes nothing.
    """
    # only inner products of W's rows count, and K columns are enough to hold them
    narrow = classifier.shape[1] <= classifier.shape[0]
    factor = classifier if narrow else np.linalg.qr(classifier.T)[1].T
    improved = codes.copy()
    for start in range(0, len(codes), _BLOCK):
        rows = slice(start, start + _BLOCK)
        _sweep(improved[rows], pull[rows], factor, sweeps)
    return improved


def _sweep(codes: Floats, pull: Floats, factor: Floats, sweeps: int) -> None:
    """Improve codes (B, K) in place. B W is kept up to date, so that a bit costs a product with w_k alone."""
    outputs, squares = codes @ factor, (factor**2).sum(axis=1)
    for _ in range(sweeps):
        changed = False
        for bit, direction in enumerate(factor):
            push = pull[:, bit] - outputs @ direction + codes[:, bit] * squares[bit]
            wrong = np.flatnonzero(push * codes[:, bit] < 0)  # at 0 both values are equally good: stay
            codes[wrong, bit] *= -1
            outputs[wrong] += 2 * np.outer(codes[wrong, bit], direction)
            changed = changed or wrong.size > 0
        if not changed:
            break


def label_targets(labels: NDArray[np.bool_], scaled: bool) -> Floats:
    """Targets (n, C) of labels (n, C): 0 and 1 as in the paper, or `scaled` to rows of length 1.

    Scaled, two rows have the inner product 1 when their labels are the same, be they one or ten.
    """
    return prepare(labels, unit=scaled)


def with_bias(columns: Floats) -> Floats:
    """Kernel columns (n, M) with a column of ones behind them, (n, M + 1), as the authors' code has it."""
    return np.hstack([columns, np.ones((len(columns), 1))])


def alternate(
    columns: Floats,
    targets: Floats,
    bits: int,
    options: SdhOptions,
    generator: np.random.Generator,
    progress: Progress = silent,
) -> tuple[Weights, Floats]:
    """Fit to targets (n, C) from kernel columns (n, M); also the objective (iterations,) after each turn.

    A turn is W, then B, then P, each the best (for B: better) with the others fixed, so the objective never
    rises. Codes start at random.
    """
    smooth = options.smooth * len(columns)
    codes = np.where(generator.random((len(columns), bits)) < 0.5, -1.0, 1.0)
    function = ridge_solution(columns, codes, smooth)
    objective = []
    for iteration in range(options.iterations):
        classifier = ridge_solution(codes, targets, options.ridge)
        pull = targets @ classifier.T + options.fit * (columns @ function)
        codes = discrete_cyclic_descent(codes, pull, classifier, options.sweeps)
        function = ridge_solution(columns, codes, smooth)
        weights = Weights(classifier, function)
        objective.append(sdh_objective(codes, targets, columns, weights, options))
        progress(STAGE, iteration + 1, options.iterations)
    return weights, np.array(objective)


@register_method(
    "sdh",
    title="SDH",
    paper="Supervised Discrete Hashing (Shen et al.)",
    year=2015,
    multi_label="codes predict the label row",
    space={"bandwidth": [0.4, 0.7, 1.0], "scaled": [True, False], "nu": [1e-05, 0.001]},
    authors={"bandwidth": 0.4, "scaled": False, "nu": 1e-05},
    notes=Notes(
        source="the authors' SDH.m and its demo",
        equations="""
            min over B, W, P of  || Y - B W ||^2 + lambda ||W||^2 + nu || B - [kernel(X, anchors), 1] P ||^2,
                B in {-1, +1}^(n x K)""",
        differences="""
            Label rows are scaled to unit length (`scaled`), because images have several labels. The authors' bandwidth is
            in feature units, and their discrete descent starts from zeros in every round.""",
        scores=Scores(0.817, None, 0.802),
    ),
)
@dataclass(frozen=True, eq=False)
class Sdh(KernelHash):
    """SDH (Shen et al., 2015): discrete codes that predict the labels linearly.

    New features get the signs of the hash function, which is fitted to the codes.
    """

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Fit on features (n, D) and labels (n, C)."""
        chosen = given.checked(SdhOptions, "SDH")
        features, labels = given.features, given.labels
        generator = np.random.default_rng(given.seed)
        kernel, _ = draw_kernel(features, chosen.anchors, chosen, generator)
        targets, columns = label_targets(labels, chosen.scaled), with_bias(kernel(features))
        weights, _ = alternate(columns, targets, given.bits, chosen, generator, given.progress)
        return cls.at(kernel, weights.function[:-1], -weights.function[-1])
