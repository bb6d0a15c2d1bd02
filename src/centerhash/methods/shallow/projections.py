"""Hashing by linear projections, without labels: LSH, SH (spectral hashing) and ITQ (iterative quantisation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.checks import check_features
from centerhash.core.parallel import one_numpy_thread
from centerhash.core.progress import Progress, silent
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.shallow.base import (
    STAGE,
    Floats,
    ShallowHash,
    ShallowOptions,
    Training,
    affine,
    mean_features,
    prepared_blocks,
    principal_axes,
    project,
)


@dataclass(frozen=True, eq=False)
class LinearHash(ShallowHash):
    """A hash function of hyperplanes: features @ projection - offset."""

    unit: NDArray[np.bool_]  # () whether features are brought to length 1 first
    projection: Floats  # (D, K)
    offset: Floats  # (K,)

    def values(self, features: NDArray[Any]) -> Floats:
        """Signed distances (N, K) of features (N, D) from the hyperplanes, up to their scale."""
        check_features(features, self.projection.shape[0])
        return project(features, bool(self.unit), self.projection, self.offset)


# --- LSH


@register_method(
    "lsh",
    title="LSH",
    paper="Similarity Search in High Dimensions via Hashing (Gionis et al.)",
    year=1999,
    uses_labels=False,
    multi_label="not used",
    defaults={"unit": False},
    space={"unit": [True, False]},
    authors={"unit": False},
    notes=Notes(
        source="MATLAB ports of LSH",
        equations="h_k(x) = sign(<r_k, x - mean>), r_k ~ N(0, I)",
        differences="""
            The hyperplanes pass through the mean, because all features are positive.""",
        scores=Scores(0.483, None, 0.483),
    ),
)
@dataclass(frozen=True, eq=False)
class Lsh(LinearHash):
    """LSH (Gionis et al., 1999; Charikar, 2002): random Gaussian hyperplanes through the mean of the features."""

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Draw K directions; the features (n, D) give only the mean. Labels (n, C) are not used."""
        chosen = given.checked(ShallowOptions)
        projection = np.random.default_rng(given.seed).normal(size=(given.features.shape[1], given.bits))
        offset = mean_features(given.features, chosen.unit) @ projection
        given.progress(STAGE, 1, 1)
        return cls(np.array(chosen.unit), projection, offset)


# --- SH


def eigenvalues(ranges: Floats, modes: int) -> Floats:
    """(R, M) of the modes 1..M on intervals of the lengths `ranges` (R,): (m pi / (b - a))^2.

    The paper's eigenvalue of the Laplacian, 1 - exp(-epsilon^2 / 2 |m pi / (b - a)|^2), rises with this for
    every epsilon, so the order is the same and epsilon need not be chosen.
    """
    return (np.arange(1, modes + 1) * np.pi / ranges[:, None]) ** 2


class Modes(NamedTuple):
    """Eigenfunctions by rising eigenvalue: the axis (K,) that each runs along, and its frequency (K,)."""

    axes: NDArray[np.int64]
    frequencies: Floats


def smallest_modes(ranges: Floats, bits: int) -> Modes:
    """The K eigenfunctions of smallest eigenvalue over all axes; the constant one (m = 0) tells nothing.

    Ties go to the earlier axis. One axis gives as many modes as needed, so K may exceed the axes.
    """
    values = eigenvalues(ranges, bits)
    order = np.argsort(values, axis=None, kind="stable")[:bits]
    return Modes(order // bits, np.sqrt(values.ravel()[order]))


def eigenfunctions(coordinates: Floats, minima: Floats, modes: Modes) -> Floats:
    """Values (N, K) of sin(pi/2 + m pi / (b - a) (x - a)) for coordinates (N, R) along axes that start at a."""
    return np.sin(np.pi / 2 + modes.frequencies * (coordinates - minima)[:, modes.axes])


@register_method(
    "sh",
    title="SH",
    paper="Spectral Hashing (Weiss, Torralba and Fergus)",
    year=2009,
    uses_labels=False,
    multi_label="not used",
    space={"unit": [True, False]},
    authors={"unit": False},
    notes=Notes(
        source="the authors' trainSH.m",
        equations="""
            x along one of the first min(K, D) principal axes fills [a, b]:
                Phi_m(x) = sin(pi/2 + m pi (x - a) / (b - a))
            bits: the K pairs (axis, m >= 1) of smallest (m pi / (b - a))^2;  h = sign(Phi)""",
        differences="There are no differences.",
        scores=Scores(0.657, None, 0.655),
    ),
)
@dataclass(frozen=True, eq=False)
class Sh(ShallowHash):
    """SH (Weiss et al., 2008): sinusoids along the principal axes, for data that are uniform in a box.

    Unseen features are projected on the same axes and go through the same sinusoids.
    """

    unit: NDArray[np.bool_]  # () whether features are brought to length 1 first
    projection: Floats  # (D, R), the axes that some bit uses
    minima: Floats  # (R,), where the training features begin on each
    axes: NDArray[np.int64]  # (K,), the axis of each bit
    frequencies: Floats  # (K,)

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Fit a box to features (n, D) along their first min(K, D) axes. Labels (n, C) and seed are not used."""
        unit = given.checked(ShallowOptions).unit
        projection = principal_axes(given.features, unit, given.bits).axes
        minima = np.full(projection.shape[1], np.inf)
        maxima = -minima
        for _, block in prepared_blocks(given.features, unit):
            coordinates = block @ projection
            minima = np.minimum(minima, coordinates.min(axis=0))
            maxima = np.maximum(maxima, coordinates.max(axis=0))
        modes = smallest_modes(maxima - minima, given.bits)
        given.progress(STAGE, 1, 1)
        used, places = np.unique(modes.axes, return_inverse=True)
        return cls(np.array(unit), projection[:, used].copy(), minima[used], places, modes.frequencies)

    def values(self, features: NDArray[Any]) -> Floats:
        """Eigenfunctions (N, K) at features (N, D)."""
        check_features(features, self.projection.shape[0])
        values = np.empty((len(features), len(self.axes)))
        modes = Modes(self.axes, self.frequencies)
        for rows, block in prepared_blocks(features, bool(self.unit)):
            coordinates = affine(block, self.projection, np.zeros_like(self.minima))
            values[rows] = eigenfunctions(coordinates, self.minima, modes)
        return values


# --- ITQ


def quantisation_error(rotated: Floats) -> float:
    """||B - V R||^2 of rotated coordinates (n, K) with their own signs B, Eq. (2) of Gong and Lazebnik."""
    return float(((np.abs(rotated) - 1) ** 2).sum())


def best_rotation(codes: Floats, coordinates: Floats) -> Floats:
    """Rotation (R, K) with orthonormal rows that brings coordinates (n, R) nearest to codes (n, K): Procrustes."""
    left, _, right = np.linalg.svd(coordinates.T @ codes, full_matrices=False)
    rotation: Floats = left @ right
    return rotation


def random_rotation(axes: int, bits: int, seed: int) -> Floats:
    """Rotation (R, K) of R axes into K dimensions, drawn from the seed."""
    draw = np.random.default_rng(seed).normal(size=(bits, bits))
    rotation: Floats = np.linalg.qr(draw)[0][:axes]
    return rotation


def iterative_quantisation(
    coordinates: Floats, iterations: int, start: Floats, progress: Progress = silent
) -> tuple[Floats, Floats]:
    """Rotation (R, K) of coordinates (n, R), R <= K, and the quantisation error (iterations + 1,) on the way.

    Each iteration takes the best codes for the rotation and the best rotation for the codes, so the error
    never rises. With fewer axes than bits (R < K) the axes are rotated into a space of K dimensions, which is
    the paper's method on data filled up with zeros.
    """
    rotation, rotated = start, coordinates @ start
    errors = [quantisation_error(rotated)]
    with one_numpy_thread():
        for iteration in range(iterations):
            rotation = best_rotation(np.where(rotated >= 0, 1.0, -1.0), coordinates)
            rotated = coordinates @ rotation
            errors.append(quantisation_error(rotated))
            progress(STAGE, iteration + 1, iterations)
    return rotation, np.array(errors)


class ItqOptions(ShallowOptions):
    """Options of ITQ."""

    iterations: int = Field(100, ge=1, description="rounds of codes and rotation")


@register_method(
    "itq",
    title="ITQ",
    paper="Iterative Quantization (Gong and Lazebnik)",
    year=2013,
    uses_labels=False,
    multi_label="not used",
    space={"unit": [True, False], "iterations": [20, 50, 100]},
    authors={"iterations": 50},
    notes=Notes(
        source="Gong's ITQ in MATLAB",
        equations="""
            min over B in {-1, +1}^(n x K) and rotations R of  || B - V R ||^2,
                V = centered features on K principal axes""",
        differences="With more bits than principal axes, V is padded with zeros.",
        scores=Scores(0.734, None, 0.731),
    ),
)
@dataclass(frozen=True, eq=False)
class Itq(LinearHash):
    """ITQ (Gong and Lazebnik, 2011): the K principal axes, rotated so that the features are nearest to +-1."""

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Fit axes and rotation to features (n, D). Labels (n, C) are not used."""
        chosen = given.checked(ItqOptions)
        mean, axes, _ = principal_axes(given.features, chosen.unit, given.bits)
        coordinates = project(given.features, chosen.unit, axes, mean @ axes)
        start = random_rotation(coordinates.shape[1], given.bits, given.seed)
        rotation, _ = iterative_quantisation(coordinates, chosen.iterations, start, given.progress)
        projection = axes @ rotation
        return cls(np.array(chosen.unit), projection, mean @ projection)
