from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import hamming, pack
from centerhash.core.errors import ConfigError
from centerhash.methods import centers as module
from centerhash.methods.centers import (
    hadamard,
    hadamard_orders,
    has_hadamard,
    hash_centers,
    paley_one,
    paley_two,
    sylvester,
)
from centerhash.methods.separation import guaranteed_distance
from tests.reference.center_statistics import center_statistics

ORDERS_OUT_OF_REACH = [92, 116, 156, 172, 184, 188, 232, 236]
sizes = st.tuples(st.integers(1, 120), st.integers(9, 96))


def pairs(centers: NDArray[np.int8]) -> NDArray[np.int64]:
    return hamming(centers, centers)[np.triu_indices(len(centers), 1)]


def all_different(centers: NDArray[np.int8]) -> bool:
    return len(np.unique(pack(centers), axis=0)) == len(centers)


def assert_hadamard(matrix: NDArray[np.int8], order: int) -> None:
    assert matrix.shape == (order, order)
    assert matrix.dtype == np.int8
    assert set(np.unique(matrix)) <= {-1, 1}
    as_float = matrix.astype(np.float32)
    np.testing.assert_array_equal(as_float @ as_float.T, order * np.eye(order))


# --- Hadamard matrices


def test_sylvester_by_hand() -> None:
    assert sylvester(1).tolist() == [[1]]
    assert sylvester(4).tolist() == [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]


def test_paley_by_hand() -> None:
    # GF(3): 1 is a square, 2 is not, so Q[a, b] = chi(a - b) has rows 0 -1 1, 1 0 -1, -1 1 0
    assert paley_one(3).tolist() == [[1, 1, 1, 1], [-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]]


def test_paley_one_over_primes_and_prime_powers() -> None:
    for q in (3, 7, 11, 19, 23, 27, 31, 43, 243, 343, 1019):
        assert_hadamard(paley_one(q), q + 1)


def test_paley_two_over_primes_and_prime_powers() -> None:
    for q in (5, 9, 13, 17, 25, 29, 49, 81, 121, 125, 169, 289, 361):
        assert_hadamard(paley_two(q), 2 * (q + 1))


def test_the_quadratic_character_marks_the_squares() -> None:
    for prime, degree in ((7, 1), (3, 2), (5, 2), (3, 3), (3, 4)):
        table = module._quadratic_character(prime, degree)
        order = prime**degree
        assert table[0] == 0
        assert table[1] == 1  # one is a square
        assert (table == 1).sum() == (table == -1).sum() == (order - 1) // 2
        if degree == 1:
            assert {int(x * x % prime) for x in range(1, prime)} == set(np.flatnonzero(table == 1).tolist())


def test_hadamard_orders_up_to_256_are_all_but_eight() -> None:
    expected = [1, 2] + [order for order in range(4, 257, 4) if order not in ORDERS_OUT_OF_REACH]
    assert hadamard_orders(256) == expected
    assert hadamard_orders(5000)[-1] == 1024


def test_hadamard_matrices_are_orthogonal_and_balanced() -> None:
    for order in hadamard_orders(256) + [2 * n for n in hadamard_orders(512) if n % 32 == 12]:
        matrix = hadamard(order)
        assert_hadamard(matrix, order)
        assert (matrix[0] == 1).all()
        assert not matrix[1:].sum(axis=1).any()  # half of the bits are +1
        if order >= 2:
            assert (pairs(matrix) == order // 2).all()


def test_doubling_reaches_every_multiple_up_to_1024() -> None:
    assert all(has_hadamard(2 * order) for order in hadamard_orders(512))


def test_hadamard_is_cached_and_read_only() -> None:
    assert hadamard(12) is hadamard(12)
    with pytest.raises(ValueError):
        hadamard(12)[0, 0] = -1


def test_orders_without_a_matrix() -> None:
    for order in [*ORDERS_OUT_OF_REACH, 3, 6, 10, 50]:
        assert not has_hadamard(order)
        with pytest.raises(ConfigError, match=f"order {order}"):
            hadamard(order)


def test_orders_out_of_range() -> None:
    for order in (0, -4, 1028, 4.0, True):
        with pytest.raises(ConfigError, match="order"):
            hadamard(order)


# --- Hadamard centers


def test_hadamard_centers_are_half_the_bits_apart() -> None:
    for bits in [order for order in hadamard_orders(256) if order >= 8]:
        few = hash_centers(bits, bits)
        assert (pairs(few) == bits // 2).all()
        many = hash_centers(2 * bits, bits)
        distances, counts = np.unique(pairs(many), return_counts=True)
        assert distances.tolist() == [bits // 2, bits]
        assert counts[1] == bits  # each center has one opposite


def test_hadamard_centers_are_balanced_while_there_is_room() -> None:
    for classes, bits in ((1, 8), (7, 8), (47, 48), (94, 48), (65, 64)):
        for seed in range(5):
            assert (hash_centers(classes, bits, seed).sum(axis=1) == 0).all()


@pytest.mark.parametrize(("classes", "bits"), [(48, 48), (95, 48), (96, 48)])
def test_the_constant_row_is_used_when_it_must_be(classes: int, bits: int) -> None:
    assert center_statistics(hash_centers(classes, bits)).balance == 0.0


@pytest.mark.parametrize(
    ("classes", "bits", "advice"),
    [
        (80, 16, "40"),
        (50, 92, "88 or 96"),
        (10, 9, "8 or 12"),
        (3000, 64, "2048"),
    ],
)
def test_hadamard_centers_that_do_not_exist(classes: int, bits: int, advice: str) -> None:
    with pytest.raises(ConfigError, match=rf"{classes} classes at {bits} bits.*{advice}"):
        hash_centers(classes, bits, kind="hadamard")


# --- what holds for every kind


@pytest.mark.slow
@given(sizes, st.sampled_from(["auto", "spread", "random", "mdsh", "printed"]), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_centers_are_codes_all_different_and_the_same_again(
    size: tuple[int, int], kind: str, seed: int
) -> None:
    classes, bits = size
    centers = hash_centers(classes, bits, seed, kind)
    assert centers.shape == (classes, bits)
    assert centers.dtype == np.int8
    assert set(np.unique(centers)) <= {-1, 1}
    assert all_different(centers)
    np.testing.assert_array_equal(centers, hash_centers(classes, bits, seed, kind))


@pytest.mark.parametrize("kind", ["hadamard", "spread", "random", "mdsh", "bernoulli"])
def test_another_seed_gives_other_centers(kind: str) -> None:
    assert not np.array_equal(hash_centers(20, 32, 0, kind), hash_centers(20, 32, 1, kind))


def test_callers_may_change_their_centers() -> None:
    for kind in ("hadamard", "spread", "random"):
        hash_centers(32, 32, 0, kind)[:] = 1
    assert center_statistics(hash_centers(32, 32)).minimum == 16


def test_numpy_integers_are_fine() -> None:
    np.testing.assert_array_equal(
        hash_centers(np.int64(20), np.int32(24), np.int64(3)), hash_centers(20, 24, 3)
    )


@pytest.mark.parametrize("bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["auto", "random"])
def test_forty_thousand_classes(kind: str, bits: int) -> None:
    """Different codes that are nowhere nearer than random codes are likely to be, with balanced bits."""
    centers = hash_centers(40_000, bits, kind=kind)
    assert centers.shape == (40_000, bits)
    assert all_different(centers)
    assert np.abs((centers > 0).mean(axis=0) - 0.5).max() < 0.02  # of each bit over all classes
    some = centers[:: 40_000 // 50].astype(np.float32)
    distances = (bits - some @ centers.astype(np.float32).T) / 2
    nearest = np.sort(distances, axis=1)[:, 1]  # after the center itself
    if kind == "random":
        assert (centers.sum(axis=1, dtype=np.int64) == 0).all()  # half of the bits of each center
        assert nearest.min() >= bits / 8
    else:
        assert nearest.min() >= guaranteed_distance(40_000, bits)


def test_nearly_all_codes_in_use() -> None:
    for kind in ("auto", "random", "bernoulli"):
        for classes, bits in ((70, 8), (71, 8), (255, 8), (256, 8), (300, 9), (1000, 10)):
            assert all_different(hash_centers(classes, bits, kind=kind))


# --- random centers


@given(sizes, st.integers(0, 2**31))
@settings(deadline=None, max_examples=20)
@pytest.mark.slow
def test_random_centers_are_exactly_balanced(size: tuple[int, int], seed: int) -> None:
    classes, bits = size
    centers = hash_centers(min(classes, math.comb(bits, bits // 2)), bits, seed, "random")
    assert set(np.abs(centers.sum(axis=1))) == {bits % 2}


def test_all_seventy_balanced_codes_of_eight_bits() -> None:
    centers = hash_centers(70, 8, kind="random")
    assert all_different(centers)
    assert not centers.sum(axis=1).any()
    more = hash_centers(100, 8, kind="random")
    assert (more.sum(axis=1) == 0).sum() == 70  # first the balanced ones, then the nearly balanced
    assert set(np.abs(more.sum(axis=1))) == {0, 2}


def test_random_centers_of_odd_length_have_one_more_or_less() -> None:
    sums = hash_centers(200, 33, kind="random").sum(axis=1)
    assert set(sums.tolist()) == {-1, 1}


def test_random_centers_are_the_best_of_many_draws() -> None:
    single = [
        center_statistics(module._draw_sparse(80, 16, np.random.default_rng(seed))) for seed in range(20)
    ]
    for seed in range(3):
        best = center_statistics(hash_centers(80, 16, seed, "random"))
        assert (best.minimum, best.mean) > (single[seed].minimum, single[seed].mean)
        assert best.minimum >= max(one.minimum for one in single)


# --- spread centers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "bits", "least"),
    [
        (80, 16, 6),
        (81, 16, 6),
        (80, 32, 13),
        (80, 24, 9),
        (200, 48, 19),
        (200, 64, 27),
        (1000, 64, 25),
        (92, 92, 43),
    ],
)
def test_spread_centers_are_much_farther_apart_than_random_ones(classes: int, bits: int, least: int) -> None:
    spread = center_statistics(hash_centers(classes, bits, kind="spread"))
    random = center_statistics(hash_centers(classes, bits, kind="random"))
    assert spread.minimum >= least > random.minimum
    assert random.mean < spread.mean <= bits / 2 * classes / (classes - 1)


@pytest.mark.slow
@given(st.integers(12, 150), st.integers(9, 40), st.integers(0, 2**31))
@settings(deadline=None, max_examples=10)
def test_spread_is_never_nearer_than_random(classes: int, bits: int, seed: int) -> None:
    spread = center_statistics(hash_centers(classes, bits, seed, "spread"))
    assert spread.minimum >= center_statistics(hash_centers(classes, bits, seed, "random")).minimum


def test_spread_of_all_rows_finds_the_hadamard_matrix_again() -> None:
    assert center_statistics(hash_centers(64, 64, kind="spread")).minimum >= 31


def test_walsh_transform_is_sylvesters_matrix() -> None:
    values = np.random.default_rng(0).integers(-9, 9, 32).astype(np.float64)
    np.testing.assert_array_equal(module._walsh(values), sylvester(32) @ values)
    np.testing.assert_array_equal(module._cut(np.arange(32), np.arange(32)), sylvester(32))


# --- errors


@pytest.mark.parametrize(
    ("name", "allowed", "values"),
    [
        ("bits", "8 to 1024", (7, 0, -1, 1025, 16.0, "16", None, True)),
        ("classes", "1 to 1000000", (0, -3, 1_000_001, 2.5)),
        ("seed", "0 to .*", (-1,)),
    ],
)
def test_numbers_out_of_range(name: str, allowed: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"^{name} must be a whole number from {allowed}, got"):
            hash_centers(**{"classes": 4, "bits": 32, name: value})


@pytest.mark.parametrize("kind", ["auto", "random", "spread"])
def test_more_classes_than_codes(kind: str) -> None:
    with pytest.raises(ConfigError, match="256 codes"):
        hash_centers(257, 8, kind=kind)


def test_unknown_kind() -> None:
    with pytest.raises(ConfigError):
        hash_centers(4, 16, kind="hadamar")


@pytest.mark.parametrize(("bits", "kind"), [(64, "hadamard"), (16, "bernoulli"), (48, "bernoulli")])
def test_printed_is_the_papers_rule_to_the_letter(bits: int, kind: str) -> None:
    found = hash_centers(80, bits, 5, "printed")
    np.testing.assert_array_equal(found, hash_centers(80, bits, 5, kind))
    assert (len(set(found.sum(axis=1))) > 3) == (kind == "bernoulli")  # coins are not balanced


@pytest.mark.parametrize(
    ("classes", "bits", "kind"),
    [(80, 16, "mdsh"), (65, 16, "mdsh"), (64, 16, "random"), (81, 32, "random"), (20, 92, "random")],
)
def test_auto_is_the_papers_random_rule_until_classes_are_crowded(classes: int, bits: int, kind: str) -> None:
    np.testing.assert_array_equal(hash_centers(classes, bits, 5), hash_centers(classes, bits, 5, kind))
