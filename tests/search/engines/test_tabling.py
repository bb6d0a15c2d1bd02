from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from centerhash.search.engines.tables import GROUPED, Tables, table_edges
from centerhash.search.engines.tabling import build, fits, spans_of
from tests.search.engines.test_scan import random_codes


def test_stretches_do_not_overlap_and_are_no_longer_than_pays() -> None:
    for bits in (1, 7, 16, 24, 32, 48, 64, 100, 128, 1024):
        for different in (1, 2, 1000, 10**6, 10**7, 10**9):
            begins, lengths = spans_of(bits, different).T
            assert (lengths >= 1).all()
            assert (begins[1:] >= (begins + lengths)[:-1]).all()
            assert begins[0] == 0
            assert begins[-1] + lengths[-1] <= bits
            assert 2 ** int(lengths.max()) <= max(2, different)


def test_tables_take_at_most_twice_the_bytes_of_the_codes() -> None:
    for count in (10**6, 10**7, 10**8):
        for bits in (48, 64, 128, 256):
            spans = spans_of(bits, count)
            assert 4 * (len(spans) * count + table_edges(spans)[-1]) <= 2 * count * bits // 8


def test_every_code_is_listed_once_and_equal_ones_are_its_group() -> None:
    packed = random_codes(np.random.default_rng(0), 400, 16, 6)
    tables = build(packed, 16)
    values = packed.astype(np.int64) @ [256, 1]
    groups = {value: np.flatnonzero(values == value).tolist() for value in np.unique(values)}
    expected = {rows[0]: rows for rows in groups.values()}
    [order] = tables.orders
    assert sorted(entry & (GROUPED - 1) for entry in order.tolist()) == sorted(expected)
    marked = {entry - GROUPED for entry in order.tolist() if entry >= GROUPED}
    assert marked == {row for row, rows in expected.items() if len(rows) > 1} == set(tables.heads.tolist())
    for head, begin, end in zip(tables.heads, tables.starts, tables.starts[1:], strict=False):
        assert tables.members[begin:end].tolist() == expected[int(head)]
    [(first, length)] = tables.spans.tolist()
    for row, key in zip(order & (GROUPED - 1), range(1 << length), strict=False):
        rows = order[tables.offsets[key] : tables.offsets[key + 1]] & (GROUPED - 1)
        assert (values[rows] >> (16 - first - length) == key).all(), row


def sound() -> Tables:
    return build(np.repeat(random_codes(np.random.default_rng(0), 150, 64, 4), 2, axis=0), 64)


def changed(array: Any, place: int, value: int) -> Any:
    other = array.copy()
    other.reshape(-1)[place] = value
    return other


def test_tables_that_were_built_fit() -> None:
    assert fits(sound(), 300, 64)
    assert fits(build(np.zeros((1, 1), np.uint8), 3), 1, 3)


def test_numbers_that_lead_out_of_an_array_are_refused() -> None:
    for name, place, value in [
        *[("spans", 0, -1), ("spans", 1, 0), ("spans", 1, 40), ("spans", 0, 31), ("spans", 1, 9)],
        *[("offsets", 0, 1), ("offsets", 5, 10**6), ("offsets", -1, 10**6), ("orders", 3, 300)],
        *[("starts", 0, 1), ("starts", 1, 10**6), ("starts", -1, 0), ("members", 2, 300)],
    ]:
        tables = sound()
        assert not fits(replace(tables, **{name: changed(getattr(tables, name), place, value)}), 300, 64)


def test_arrays_of_other_kinds_and_shapes_are_refused() -> None:
    tables = sound()
    for name in ("spans", "offsets", "orders", "heads", "starts", "members"):
        array = getattr(tables, name)
        for other in (array[:-1], array.astype(np.float64), array[None], array[:0]):
            assert not fits(replace(tables, **{name: other}), 300, 64), name
    assert not fits(tables, int((tables.orders & (GROUPED - 1)).max()), 64)
    assert not fits(tables, 300, 46)
