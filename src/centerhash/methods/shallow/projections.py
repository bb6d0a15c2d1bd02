"""Hashing by linear projections, without labels: LSH, SH (spectral hashing) and ITQ (iterative quantization)."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.options import Option
from centerhash.core.parallel import one_numpy_thread
from centerhash.core.progress import Progress, silent
from centerhash.methods.shallow.base import (
    STAGE,
    Floats,
    Normalize,
    ShallowHash,
    affine,
    mean_features,
    prepared_blocks,
    principal_axes,
    project,
)


class LinearHash(ShallowHash):
    """A hash function of hyperplanes: features @ projection - offset."""

    learned = ("normalize", "projection", "offset")
    projection: Floats  # (D, K)
    offset: Floats  # (K,)

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute signed distances (N, K) of features (N, D) from the hyperplanes, up to their scale."""
        check_features(features, self.projection.shape[0])
        return project(features, bool(self.normalize), self.projection, self.offset)


class LSH(LinearHash):
    """LSH (Gionis et al., 1999; Charikar, 2002): random Gaussian hyperplanes through the mean of the features.

    Similarity Search in High Dimensions via Hashing, VLDB 1999.
    """

    def __init__(self, bits: int = 64, *, normalize: Normalize = False, seed: int = 0) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Draw K directions; the features (n, D) give only the mean. Labels (n, C) are not used."""
        self.projection = np.random.default_rng(self.seed).normal(size=(features.shape[1], self.bits))
        self.offset = mean_features(features, bool(self.normalize)) @ self.projection
        progress(STAGE, 1, 1)


class Modes(NamedTuple):
    """Eigenfunctions by rising eigenvalue: the axis (K,) that each runs along, and its frequency (K,)."""

    axes: NDArray[np.int64]
    frequencies: Floats


def smallest_modes(ranges: Floats, bits: int) -> Modes:
    """The K eigenfunctions of smallest eigenvalue over all axes of the lengths `ranges` (R,), without the constant one.

    The eigenvalue 1 - exp(-epsilon^2 / 2 |m pi / (b - a)|^2) of the Laplacian rises with (m pi / (b - a))^2. Ties
    go to the earlier axis. One axis gives as many modes as needed, so K may exceed the axes.
    """
    values = (np.arange(1, bits + 1) * np.pi / ranges[:, None]) ** 2
    order = np.argsort(values, axis=None, kind="stable")[:bits]
    return Modes(order // bits, np.sqrt(values.ravel()[order]))


def eigenfunctions(coordinates: Floats, minima: Floats, modes: Modes) -> Floats:
    """Values (N, K) of sin(pi/2 + m pi / (b - a) (x - a)) for coordinates (N, R) along axes that start at a."""
    return np.sin(np.pi / 2 + modes.frequencies * (coordinates - minima)[:, modes.axes])


class SH(ShallowHash):
    """SH (Weiss et al., 2008): sinusoids along the principal axes, for data that are uniform in a box.

    Spectral Hashing, NeurIPS 2008. Unseen features are projected on the same axes and go through the same sinusoids.
    """

    learned = ("normalize", "projection", "minima", "axes", "frequencies")
    projection: Floats  # (D, R), the axes that some bit uses
    minima: Floats  # (R,), where the training features begin on each
    axes: NDArray[np.int64]  # (K,), the axis of each bit
    frequencies: Floats  # (K,)

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit a box to features (n, D) along their first min(K, D) axes. Labels (n, C) and seed are not used."""
        normalize = bool(self.normalize)
        _, projection = principal_axes(features, normalize, self.bits)
        minima = np.full(projection.shape[1], np.inf)
        maxima = -minima
        for _, block in prepared_blocks(features, normalize):
            coordinates = block @ projection
            minima = np.minimum(minima, coordinates.min(axis=0))
            maxima = np.maximum(maxima, coordinates.max(axis=0))
        modes = smallest_modes(maxima - minima, self.bits)
        used, self.axes = np.unique(modes.axes, return_inverse=True)
        self.projection, self.minima = projection[:, used].copy(), minima[used]
        self.frequencies = modes.frequencies
        progress(STAGE, 1, 1)

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute eigenfunctions (N, K) at features (N, D)."""
        check_features(features, self.projection.shape[0])
        values = np.empty((len(features), len(self.axes)))
        modes = Modes(self.axes, self.frequencies)
        for rows, block in prepared_blocks(features, bool(self.normalize)):
            coordinates = affine(block, self.projection, np.zeros_like(self.minima))
            values[rows] = eigenfunctions(coordinates, self.minima, modes)
        return values


def random_rotation(axes: int, bits: int, seed: int) -> Floats:
    """Rotation (R, K) of R axes into K dimensions, drawn from the seed."""
    draw = np.random.default_rng(seed).normal(size=(bits, bits))
    rotation: Floats = np.linalg.qr(draw)[0][:axes]
    return rotation


def iterative_quantization(
    coordinates: Floats, iterations: int, start: Floats, progress: Progress = silent
) -> Floats:
    """Rotation (R, K) of coordinates V (n, R), R <= K, that lowers ||B - V R||^2, Eq. (2) of Gong and Lazebnik.

    Each iteration takes the best codes B for the rotation and the best rotation for the codes (Procrustes). With fewer
    axes than bits (R < K) this is the paper's method on data filled up with zeros.
    """
    rotation, rotated = start, coordinates @ start
    with one_numpy_thread():
        for iteration in range(iterations):
            codes = np.where(rotated >= 0, 1.0, -1.0)
            left, _, right = np.linalg.svd(coordinates.T @ codes, full_matrices=False)
            rotation = left @ right
            rotated = coordinates @ rotation
            progress(STAGE, iteration + 1, iterations)
    return rotation


class ITQ(LinearHash):
    """ITQ (Gong and Lazebnik, 2011): the K principal axes, rotated so that the features are nearest to +-1.

    Iterative Quantization: A Procrustean Approach to Learning Binary Codes, CVPR 2011.
    """

    def __init__(
        self,
        bits: int = 64,
        *,
        normalize: Normalize = True,
        iterations: Annotated[int, Option("rounds of codes and rotation", ge=1)] = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)
        self.iterations = iterations

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit axes and rotation to features (n, D). Labels (n, C) are not used."""
        normalize = bool(self.normalize)
        mean, axes = principal_axes(features, normalize, self.bits)
        coordinates = project(features, normalize, axes, mean @ axes)
        start = random_rotation(coordinates.shape[1], self.bits, self.seed)
        rotation = iterative_quantization(coordinates, self.iterations, start, progress)
        self.projection = axes @ rotation
        self.offset = mean @ self.projection
