from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.codes import hamming, pack
from centerhash.core.errors import InputError
from centerhash.evaluation import ranking


def test_nearest_by_hand() -> None:
    database = np.array([[-1, -1, -1], [1, 1, -1], [1, 1, 1], [-1, 1, 1]], np.int8)
    indices, distances = ranking(np.array([[1, 1, 1]], np.int8), database, 3)
    assert indices.tolist() == [[2, 1, 3]]
    assert distances.tolist() == [[0, 1, 1]]


@given(
    seed=st.integers(0, 2**32 - 1),
    items=st.integers(1, 60),
    bits=st.sampled_from([1, 4, 8, 63, 64, 65, 128, 1024]),
    top=st.integers(1, 70),
)
@settings(max_examples=60, deadline=None)
def test_nearest_is_a_stable_sort_of_the_distances(seed: int, items: int, bits: int, top: int) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.choice(np.array([-1, 1]), size=(3, bits))
    database = rng.choice(np.array([-1, 1]), size=(items, bits))
    indices, distances = ranking(queries, database, top)
    everything = hamming(queries, database)
    order = np.argsort(everything, axis=1, kind="stable")[:, :top]
    assert np.array_equal(indices, order)
    assert np.array_equal(distances, np.take_along_axis(everything, order, axis=1))
    packed = ranking(pack(queries), pack(database), top, bits=bits)
    assert np.array_equal(packed[0], indices)
    assert np.array_equal(packed[1], distances)


def test_unusable_input_is_named() -> None:
    codes = np.ones((2, 8), np.int8)
    with pytest.raises(InputError):
        ranking(codes, codes[:, :7], 1)
    with pytest.raises(InputError):
        ranking(codes, codes, 0)
