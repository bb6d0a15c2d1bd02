"""Hashing by linear projections, without labels: LSH, SH (spectral hashing) and ITQ (iterative quantization)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import check_features
from centerhash.core.options import Option
from centerhash.core.parallel import one_numpy_thread
from centerhash.core.progress import Progress, silent
from centerhash.methods.shallow.base import STAGE, Floats, Normalize, ShallowHash, affine


class LinearHash(ShallowHash):
    """A hash function of hyperplanes: features @ projection - offset."""

    learned = ("normalize", "projection", "offset")
    projection: Floats  # (D, K)
    offset: Floats  # (K,)

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute signed distances (N, K) of features (N, D) from the hyperplanes, up to their scale."""
        check_features(features, self.projection.shape[0])
        return self.apply(lambda rows: affine(rows, self.projection, self.offset), features, len(self.offset))


class LSH(LinearHash):
    """LSH (Gionis et al., 1999; Charikar, 2002): random Gaussian hyperplanes through the mean of the features.

    Similarity Search in High Dimensions via Hashing, VLDB 1999.
    """

    def __init__(self, bits: int = 64, *, normalize: Normalize = False, seed: int = 0) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Draw K directions; the features (n, D) give only the mean. Labels (n, C) are not used."""
        self.projection = np.random.default_rng(self.seed).normal(size=(features.shape[1], self.bits))
        self.offset = self.mean_features(features) @ self.projection
        progress(STAGE, 1, 1)


def smallest_modes(ranges: Floats, bits: int) -> tuple[NDArray[np.int64], Floats]:
    """Return the axis (K,) and frequency (K,) of the K eigenfunctions of smallest eigenvalue, without the constant one.

    The eigenvalue 1 - exp(-epsilon^2 / 2 |m pi / (b - a)|^2) of the Laplacian rises with (m pi / (b - a))^2, for axes of
    the lengths b - a = `ranges` (R,). Ties go to the earlier axis. One axis gives any number of modes.
    """
    values = (np.arange(1, bits + 1) * np.pi / ranges[:, None]) ** 2
    order = np.argsort(values, axis=None, kind="stable")[:bits]
    return order // bits, np.sqrt(values.ravel()[order])


class SH(ShallowHash):
    """SH (Weiss et al., 2008): sinusoids along the principal axes, for data that are uniform in a box.

    Spectral Hashing, NeurIPS 2008. Bit k is the sinusoid of frequency k along its axis, one of R that some bit uses.
    """

    learned = ("normalize", "projection", "minima", "axes", "frequencies")
    projection: Floats  # (D, R)
    minima: Floats  # (R,) of the training features
    axes: NDArray[np.int64]  # (K,)
    frequencies: Floats  # (K,)

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit a box to features (n, D) along their first min(K, D) axes. Labels (n, C) and seed are not used."""
        _, projection = self.principal_axes(features)
        minima = np.full(projection.shape[1], np.inf)
        maxima = -minima
        for block in self.blocks(features):
            coordinates = block @ projection
            minima = np.minimum(minima, coordinates.min(axis=0))
            maxima = np.maximum(maxima, coordinates.max(axis=0))
        axes, self.frequencies = smallest_modes(maxima - minima, self.bits)
        used, self.axes = np.unique(axes, return_inverse=True)
        self.projection, self.minima = projection[:, used].copy(), minima[used]
        progress(STAGE, 1, 1)

    def transform(self, features: NDArray[Any]) -> Floats:
        """Compute the eigenfunctions (N, K) sin(pi/2 + m pi / (b - a) (x - a)) of features (N, D), x on their axes."""
        check_features(features, self.projection.shape[0])

        def eigenfunctions(rows: Floats) -> Floats:
            coordinates = affine(rows, self.projection, np.zeros_like(self.minima)) - self.minima
            return np.sin(np.pi / 2 + self.frequencies * coordinates[:, self.axes])

        return self.apply(eigenfunctions, features, len(self.axes))


def iterative_quantization(
    coordinates: Floats, iterations: int, start: Floats, progress: Progress = silent
) -> Floats:
    """Return a rotation (R, K) of coordinates V (n, R), R <= K, that lowers ||B - V R||^2, Eq. (2) of the paper.

    Each iteration computes the best codes B for the rotation, and the best rotation for the codes (Procrustes). With
    fewer axes than bits (R < K) this is the paper's method on data padded with zeros.
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
        mean, axes = self.principal_axes(features)
        coordinates = self.apply(lambda rows: affine(rows, axes, mean @ axes), features, axes.shape[1])
        # The start is a random rotation of the R axes into K dimensions.
        normal = np.random.default_rng(self.seed).normal(size=(self.bits, self.bits))
        start: Floats = np.linalg.qr(normal)[0][: coordinates.shape[1]]
        rotation = iterative_quantization(coordinates, self.iterations, start, progress)
        self.projection = axes @ rotation
        self.offset = mean @ self.projection
