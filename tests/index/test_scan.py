from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from centerhash.codes import Packed
from centerhash.index import ranking, scan
from centerhash.index.items import Meta
from centerhash.index.ranking import GeneralCodes, GeneralRanking, SemanticRanking
from centerhash.index.store import View


def random_codes(generator: np.random.Generator, count: int, bits: int, distinct: int = 256) -> Packed:
    """Random packed codes; few distinct byte values make many ties."""
    packed = generator.integers(0, distinct, (count, (bits + 7) // 8), dtype=np.uint8)
    if bits % 8:
        packed[:, -1] &= (0xFF << (8 - bits % 8)) & 0xFF
    return packed


def distance(first: Packed, second: Packed) -> int:
    return (int.from_bytes(first.tobytes()) ^ int.from_bytes(second.tobytes())).bit_count()


def test_nearest_by_hand() -> None:
    packed = np.array([[0b11110000], [0b00000000], [0b10000000], [0b00000001]], np.uint8)
    query = np.array([0b10000000], np.uint8)
    rows, copies = scan.nearest(packed, query, 2, None, 8, None)
    assert (rows.tolist(), copies.tolist()) == ([2, 1], [])
    assert rows.dtype == copies.dtype == np.int64


def test_nearest_of_tied_items() -> None:
    packed = np.array([[1], [0], [2], [4], [3]], np.uint8)
    assert scan.nearest(packed, packed[1], 3, None, 8, None)[0].tolist() == [1, 0, 2]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 2, 31, 33, 511, 513, 3000]),
    bits=st.sampled_from([5, 16, 24, 48, 64, 100, 128, 512]),
    distinct=st.sampled_from([1, 2, 256]),
    k=st.sampled_from([1, 3, 40, 5000]),
    share=st.sampled_from([None, 0.0, 0.3]),
    within=st.sampled_from([None, 0, 4]),
    both=st.booleans(),
    general_bits=st.sampled_from([24, 64, 128]),
    threads=st.integers(1, 3),
)
def test_nearest_equals_loop(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    count: int,
    bits: int,
    distinct: int,
    k: int,
    share: float | None,
    within: int | None,
    both: bool,
    general_bits: int,
    threads: int,
) -> None:
    monkeypatch.setattr(scan, "BYTES_PER_THREAD", 1)
    monkeypatch.setattr(scan, "cpu_count", lambda: threads)
    monkeypatch.setattr(scan, "SPARE_ROWS_PER_THREAD", 8)  # so that what is stored is thinned out
    generator = np.random.default_rng(seed)
    codes, query = (
        random_codes(generator, count, bits, distinct),
        random_codes(generator, 1, bits, distinct)[0],
    )
    general, general_query = (
        random_codes(generator, count, general_bits, distinct),
        random_codes(generator, 1, general_bits, distinct)[0],
    )
    has_general = generator.random(count) < 0.7
    allowed = None if share is None else generator.random(count) < share
    half, copy_bits, expected = general_bits // 2, general_bits // 6, []
    for row in range(count):
        far = distance(codes[row], query)
        general_distance = distance(general[row], general_query) if has_general[row] else half
        total = 10 * far + general_distance if both else far
        if (allowed is None or allowed[row]) and (within is None or far <= within):
            expected.append((total, row))
    limit = 8 * codes.shape[1] if within is None else within
    compared = GeneralCodes(general_query, general, has_general, copy_bits) if both else None
    nearest, copies = scan.nearest(codes, query, k, allowed, limit, compared)
    assert nearest.tolist() == [row for _, row in sorted(expected)[:k]]
    rows = [row for row in range(count) if both and has_general[row] and (allowed is None or allowed[row])]
    distances = [(distance(general[row], general_query), row) for row in rows]
    near = sorted(pair for pair in distances if pair[0] <= copy_bits)
    assert copies.tolist() == [row for _, row in near[:k]]


@pytest.mark.parametrize("share", [None, 0.01, 0.5])
def test_top_rows_with_and_without_numba(monkeypatch: pytest.MonkeyPatch, share: float | None) -> None:
    generator = np.random.default_rng(3)
    count = 5000
    arrays = {
        "semantic": random_codes(generator, count, 64, 4),
        "general": random_codes(generator, count, 128, 4),
        "flags": np.where(generator.random(count) < 0.7, 0, 4).astype(np.uint8),
    }
    columns = View(Meta(1, count, count), arrays)
    allowed = None if share is None else generator.random(count) < share
    queries = [
        SemanticRanking(columns["semantic"][7]),
        SemanticRanking(columns["semantic"][7], within=9),
        SemanticRanking(columns["semantic"][9], arrays["general"][3:5]),
        SemanticRanking(columns["semantic"][9], arrays["general"][3:5], 20, copies=True),
        GeneralRanking(arrays["general"][3:5], copies=True),
    ]
    plain = [query.top_rows(columns, 50, allowed).tolist() for query in queries]
    monkeypatch.setattr(ranking, "NUMPY_ROWS", 0)
    monkeypatch.setattr(ranking, "NUMPY_ROWS_AT_FIRST", 0)
    assert [query.top_rows(columns, 50, allowed).tolist() for query in queries] == plain
    monkeypatch.setattr(ranking, "find_spec", lambda name: None)  # without numba
    assert [query.top_rows(columns, 50, allowed).tolist() for query in queries] == plain
