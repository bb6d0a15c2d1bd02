from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.centers import hadamard, hash_centers
from centerhash.codes import hamming, pack
from centerhash.core.errors import ConfigError, InputError
from centerhash.separation import guaranteed_distance

# 52, 100 and 244 need Paley over prime powers.
ORDERS_OUT_OF_REACH = [52, 92, 100, 116, 156, 172, 184, 188, 232, 236, 244]
sizes = st.tuples(st.integers(1, 120), st.integers(9, 96))


def pairs(centers: NDArray[np.int8]) -> NDArray[np.int64]:
    return hamming(centers, centers)[np.triu_indices(len(centers), 1)]


def all_different(centers: NDArray[np.int8]) -> bool:
    return len(np.unique(pack(centers), axis=0)) == len(centers)


# --- Hadamard matrices


@pytest.mark.parametrize("order", [1, 2, *range(4, 257, 4), 1020, 1024])
def test_hadamard(order: int) -> None:
    matrix = hadamard(order)
    if order in ORDERS_OUT_OF_REACH:
        assert matrix is None
        return
    assert matrix is not None
    assert set(np.unique(matrix)) <= {-1, 1}
    wide = matrix.astype(np.float32)
    np.testing.assert_array_equal(wide @ wide.T, order * np.eye(order))
    assert (matrix[0] == 1).all()
    assert not matrix[1:].sum(axis=1).any()
    assert not matrix.flags.writeable


@pytest.mark.parametrize("order", [3, 6, 9, 10, 50])
def test_no_hadamard(order: int) -> None:
    assert hadamard(order) is None


# --- All kinds


@pytest.mark.slow
@given(sizes, st.sampled_from(["auto", "random", "mdsh", "printed"]), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_every_kind(size: tuple[int, int], kind: str, seed: int) -> None:
    classes, bits = size
    centers = hash_centers(classes, bits, seed, kind)
    assert centers.shape == (classes, bits)
    assert centers.dtype == np.int8
    assert set(np.unique(centers)) <= {-1, 1}
    assert all_different(centers)
    np.testing.assert_array_equal(centers, hash_centers(classes, bits, seed, kind))


@pytest.mark.parametrize("kind", ["hadamard", "random", "mdsh", "bernoulli"])
def test_seed(kind: str) -> None:
    assert not np.array_equal(hash_centers(20, 32, 0, kind), hash_centers(20, 32, 1, kind))


@pytest.mark.parametrize("bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["auto", "random"])
def test_forty_thousand_classes(kind: str, bits: int) -> None:
    """Different codes with balanced bits, at least as far apart as random codes are likely to be."""
    centers = hash_centers(40_000, bits, kind=kind)
    assert centers.shape == (40_000, bits)
    assert all_different(centers)
    assert np.abs((centers > 0).mean(axis=0) - 0.5).max() < 0.02
    sample = centers[:: 40_000 // 50].astype(np.float32)
    distances = (bits - sample @ centers.astype(np.float32).T) / 2
    nearest = np.sort(distances, axis=1)[:, 1]  # after the center itself
    if kind == "random":
        assert (centers.sum(axis=1, dtype=np.int64) == 0).all()
        assert nearest.min() >= bits / 8
    else:
        assert nearest.min() >= guaranteed_distance(40_000, bits)


def test_nearly_all_codes() -> None:
    for kind in ("auto", "random", "bernoulli"):
        for classes, bits in ((70, 8), (71, 8), (255, 8), (256, 8), (300, 9), (1000, 10)):
            assert all_different(hash_centers(classes, bits, kind=kind))


# --- Random centers


@given(sizes, st.integers(0, 2**31))
@settings(deadline=None, max_examples=20)
@pytest.mark.slow
def test_random_balance(size: tuple[int, int], seed: int) -> None:
    classes, bits = size
    centers = hash_centers(min(classes, math.comb(bits, bits // 2)), bits, seed, "random")
    assert set(np.abs(centers.sum(axis=1))) == {bits % 2}


# --- Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        *(({"bits": bits}, InputError, "bits") for bits in (7, 0, -1, 1025, 16.0, "16", None, True)),
        *(({"classes": classes}, InputError, "classes") for classes in (0, -3, 1_000_001, 2.5)),
        ({"seed": -1}, InputError, "seed"),
        ({"kind": "hadamar"}, ConfigError, "hadamard"),
        ({"classes": 257, "bits": 8}, ConfigError, "256"),
        ({"classes": 80, "bits": 16, "kind": "hadamard"}, ConfigError, "16 bits"),
        ({"bits": 92, "kind": "hadamard"}, ConfigError, "order 92"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        hash_centers(**{"classes": 4, "bits": 32, **arguments})


@pytest.mark.parametrize(("bits", "kind"), [(64, "hadamard"), (16, "bernoulli"), (48, "bernoulli")])
def test_printed(bits: int, kind: str) -> None:
    centers = hash_centers(80, bits, 5, "printed")
    np.testing.assert_array_equal(centers, hash_centers(80, bits, 5, kind))
    assert (len(set(centers.sum(axis=1))) > 3) == (kind == "bernoulli")  # Bernoulli centers are not balanced


@pytest.mark.parametrize(
    ("classes", "bits", "kind"),
    [(80, 16, "mdsh"), (65, 16, "mdsh"), (64, 16, "random"), (81, 32, "random"), (20, 92, "random")],
)
def test_auto(classes: int, bits: int, kind: str) -> None:
    np.testing.assert_array_equal(hash_centers(classes, bits, 5), hash_centers(classes, bits, 5, kind))
