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
    monkeypatch.setattr(multi_index, "processors", lambda: 3)
    expected = [naive(row, database, None, k=7) for row in queries]
    assert found(database, queries, 48, 7) == expected
