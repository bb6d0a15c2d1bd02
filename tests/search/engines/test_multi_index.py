from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search.engines import multi_index, scan
from centerhash.search.engines.tabling import build, read_only
from tests.search.engines.test_scan import Listed, listed, naive, random_codes

NO_LIMIT = 1 << 40


def found(
    database: Packed,
    queries: Packed,
    bits: int,
    k: int,
    alive: NDArray[np.uint8] | None = None,
    cuts: list[int] | None = None,
    limit: int | None = NO_LIMIT,
) -> list[Listed | None]:
    """The answers by tables; None where these were given up."""
    codes = scan.words(read_only(database), bits)
    cuts = cuts or [bits] * len(queries)
    answers = multi_index.nearest(build(database, bits), queries, codes, bits, k, cuts, alive, limit)
    return [None if answer is None else listed(answer) for answer in answers]


@pytest.mark.parametrize("bits", [1, 3, 8, 16, 24, 31, 32, 48, 64, 65, 100, 128, 256])
def test_every_length_agrees_with_the_loop_and_the_scan(bits: int) -> None:
    generator = np.random.default_rng(bits)
    database, queries = random_codes(generator, 600, bits), random_codes(generator, 3, bits)
    database[300:400] = database[0]  # a crowded code
    queries[1] = database[0]
    alive = (generator.random(600) < 0.4).astype(np.uint8)
    for mask in (None, alive):
        for k in (1, 10, 150, 1000):
            answers = found(database, queries, bits, k, mask)
            assert answers == [naive(row, database, mask, k=k) for row in queries]
            scanned = scan.nearest(scan.words(queries, bits), scan.words(database, bits), bits, k, mask)
            assert answers == [listed(answer) for answer in scanned]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([1, 2, 33, 500]),
    asked=st.integers(0, 4),
    bits=st.sampled_from([5, 16, 48, 64, 72]),
    distinct=st.sampled_from([1, 2, 3, 256]),
    k=st.integers(1, 40),
    share=st.sampled_from([None, 0.0, 0.05, 0.5]),
)
def test_any_collection_agrees_with_the_loop(
    seed: int, count: int, asked: int, bits: int, distinct: int, k: int, share: float | None
) -> None:
    generator = np.random.default_rng(seed)
    database, queries = (random_codes(generator, n, bits, distinct) for n in (count, asked))
    alive = None if share is None else (generator.random(count) < share).astype(np.uint8)
    expected = [naive(row, database, alive, k=k) for row in queries]
    assert found(database, queries, bits, k, alive) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), radius=st.integers(0, 20), distinct=st.sampled_from([2, 4, 256]))
def test_all_codes_within_a_radius(seed: int, radius: int, distinct: int) -> None:
    generator = np.random.default_rng(seed)
    database, queries = (random_codes(generator, n, 32, distinct) for n in (700, 2))
    expected = [naive(row, database, None, radius=radius) for row in queries]
    assert found(database, queries, 32, len(database) + 1, cuts=[radius] * 2) == expected


def test_a_cut_leaves_out_only_what_is_farther() -> None:
    generator = np.random.default_rng(4)
    database, queries = (random_codes(generator, n, 32, 4) for n in (500, 6))
    expected = [naive(row, database, None, k=9, radius=cut) for cut, row in enumerate(queries)]
    assert found(database, queries, 32, 9, cuts=list(range(6))) == expected


def test_a_query_that_would_look_at_too_much_is_given_up() -> None:
    generator = np.random.default_rng(5)
    database = random_codes(generator, 2000, 64)
    queries = np.concatenate(
        [database[:1], random_codes(generator, 1, 64)]
    )  # one is there, one is far from all
    near, far = found(database, queries, 64, 1, limit=400)
    assert near == ([0], [0])
    assert far is None
    assert found(database, queries, 64, 1)[1] == naive(queries[1], database, None, k=1)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    limit=st.sampled_from([0, 1, 30, 300, 3000, 10**5]),
    bits=st.sampled_from([16, 48, 64]),
    distinct=st.sampled_from([2, 3, 256]),
    k=st.integers(1, 40),
)
def test_whatever_the_limit_an_answer_is_the_loops_or_none(
    seed: int, limit: int, bits: int, distinct: int, k: int
) -> None:
    generator = np.random.default_rng(seed)
    database, queries = (random_codes(generator, n, bits, distinct) for n in (500, 4))
    for row, answer in zip(queries, found(database, queries, bits, k, limit=limit), strict=True):
        assert answer is None or answer == naive(row, database, None, k=k)
        assert answer is None or limit > 0


def test_both_ways_are_taken() -> None:
    """Of random codes none is worth the looks, of codes with near ones all are."""
    generator = np.random.default_rng(7)
    database = random_codes(generator, 20_000, 64)
    queries = random_codes(generator, 8, 64)
    assert found(database, queries, 64, 10, limit=3000) == [None] * 8
    database[::100] = queries[0]
    database[1::100] = queries[1] ^ np.array([1, 0, 0, 0, 0, 0, 0, 1], np.uint8)
    near, near_too, *far = found(database, queries, 64, 10, limit=3000)
    assert near == naive(queries[0], database, None, k=10)
    assert near_too == naive(queries[1], database, None, k=10)
    assert far == [None] * 6


@pytest.mark.parametrize("radii", [(-1, -1, -1), (0, 0, 0), (2, 1, 0), (3, 3, -1)])
def test_the_share_of_codes_that_were_seen(radii: tuple[int, ...]) -> None:
    """Counted over codes whose bits differ anywhere."""
    generator, spans = np.random.default_rng(1), np.array([(0, 17), (21, 17), (42, 17)])
    for distance in (1, 4, 9):
        codes = np.argsort(generator.random((4000, 64)), axis=1) < distance
        inside = [codes[:, first : first + length].sum(axis=1) for first, length in spans]
        seen = np.any([part <= radius for part, radius in zip(inside, radii, strict=True)], axis=0)
        share = multi_index._share(distance, np.array(radii), spans, 64)
        assert abs(share - seen.mean()) < 0.1


def test_where_the_last_of_k_codes_is_likely_to_be() -> None:
    counts, radii, spans = (
        np.zeros(65, np.int64),
        np.zeros(3, np.int64),
        np.array([(0, 16), (16, 16), (32, 16)]),
    )
    assert multi_index._likely(counts, radii, spans, 10, 64, 1.0) == 0  # nothing was seen, all may be near
    counts[[8, 20]] = 1, 3
    shares = [multi_index._share(distance, radii, spans, 64) for distance in (8, 20)]
    enough = int(1 / shares[0])  # one code at 8 bits stands for so many
    assert multi_index._likely(counts, radii, spans, enough, 64, 1.0) == 8
    assert multi_index._likely(counts, radii, spans, enough + 1, 64, 1.0) == 20
    assert multi_index._likely(counts, radii, spans, 4 * enough, 64, 4.0) == 8
    assert multi_index._likely(counts, radii, spans, int(3 / shares[1]) + 1000, 64, 1.0) == 64
    assert multi_index._likely(counts, radii, spans, 1000, 15, 1.0) == 15  # never beyond the cut


def test_tables_pay_where_codes_have_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_index, "scan_looks", lambda codes, queries: 3000)
    packed = random_codes(np.random.default_rng(8), 20_000, 64)
    for row, expected in ((None, False), (packed[0], True)):
        if row is not None:
            packed[::2] = np.repeat(packed[::20], 10, axis=0)
        assert multi_index.pays(build(packed, 64), scan.words(read_only(packed), 64), 64) is expected


def test_one_look_is_enough_for_a_crowd_of_equal_codes() -> None:
    database = np.zeros((5000, 8), np.uint8)
    database[17] = 255
    [answer] = found(database, database[:1], 64, 20, limit=200)
    assert answer == ([row for row in range(21) if row != 17], [0] * 20)


def test_many_codes_at_the_same_distance() -> None:
    """More than a query has room for at first, all of them tied."""
    places = np.array([(a, b) for a in range(64) for b in range(a)])
    database = np.zeros((len(places), 64), np.uint8)
    database[np.arange(len(places))[:, None], places] = 1
    assert len(places) > 4 * multi_index.ROOM
    [answer] = found(np.packbits(database, axis=1), np.zeros((1, 8), np.uint8), 64, 1500)
    assert answer == (list(range(1500)), [2] * 1500)
    assert found(np.packbits(database, axis=1), np.zeros((1, 8), np.uint8), 64, 1) == [([0], [2])]


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(6)
    database, queries = (random_codes(generator, n, 48, 16) for n in (900, 20))
    monkeypatch.setattr(multi_index, "cpu_count", lambda: 3)
    expected = [naive(row, database, None, k=7) for row in queries]
    assert found(database, queries, 48, 7) == expected


def test_a_crowd_of_which_few_are_left() -> None:
    """Of a group its first rows that may be returned, and no more than k."""
    database, alive = np.zeros((3000, 8), np.uint8), np.zeros(3000, np.uint8)
    alive[[5, 900, 901, 2999]] = 1
    for k, rows in ((2, [5, 900]), (4, [5, 900, 901, 2999]), (9, [5, 900, 901, 2999])):
        assert found(database, database[:1], 64, k, alive) == [(rows, [0] * len(rows))]
