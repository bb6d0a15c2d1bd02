"""What is stored in Milvus: keys in the order of ids, and text that cannot leave its quotes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.search.engines.base import Filter
from centerhash.search.engines.milvus_rows import (
    any_of,
    bits_of,
    check_bits,
    check_collection,
    check_consistency,
    escaped,
    expression,
    fits,
    id_of,
    insert_batches,
    item_of,
    key_of,
    row_of,
    unescaped,
)

integers = st.integers(-(2**63), 2**63 - 1)


def test_keys_by_hand() -> None:
    assert key_of(0) == "i8000000000000000"
    assert key_of(-(2**63)) == "i0000000000000000"
    assert key_of(2**63 - 1) == "iffffffffffffffff"
    assert key_of('a"') == "s6122"
    assert any_of([key_of(0), key_of("a")]) == 'id in ["i8000000000000000", "s61"]'


@given(st.lists(integers) | st.lists(st.text(min_size=1)))
def test_keys_have_the_order_of_the_ids_and_lead_back(ids: list[int] | list[str]) -> None:
    keys = sorted(key_of(id) for id in ids)
    assert [id_of(key) for key in keys] == sorted(ids)
    assert all(re.fullmatch("[is][0-9a-f]*", key) for key in keys)


@given(st.text(st.characters()))
def test_escaped_text_is_safe_and_leads_back(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.~%/ -]*", escaped(text))
    assert unescaped(escaped(text)) == text


def test_only_possible_ids_fit() -> None:
    assert all(fits(id) for id in (0, -(2**63), 2**63 - 1, "x" * 512, "ü" * 256))
    assert not any(fits(id) for id in (2**63, -(2**63) - 1, "", "x" * 513, "ü" * 257))


def test_filters_by_hand() -> None:
    assert expression(Filter()) == ""
    assert expression(Filter(("hot dog",))) == 'ARRAY_CONTAINS(labels, "hot dog")'
    assert (
        expression(Filter(("a", '") or true')))
        == 'ARRAY_CONTAINS(labels, "a") and ARRAY_CONTAINS(labels, "%22%29 or true")'
    )


def test_rows_lead_back_to_items() -> None:
    for path in (None, "", "%", "a/b c.jpg", "ü\udcff.jpg"):
        row = row_of("id", b"\x01\xff", ("cat", "100%"), path)
        item = item_of({**row, "code": [row["code"]]})  # as Milvus gives it
        assert (item.id, item.labels, item.path) == ("id", ("cat", "100%"), path)
        np.testing.assert_array_equal(item.code, np.array([1, 255], dtype=np.uint8))


def test_filters_by_labels_and_folders_by_hand() -> None:
    only = Filter(("a",), ("b",), ("/x y/",))
    assert expression(only) == (
        'ARRAY_CONTAINS(labels, "a") and not ARRAY_CONTAINS(labels, "b") and '
        '((path >= "/x y/" and path < "/x y0"))'
    )
    assert expression(Filter(under=())) == 'id == ""'


def test_all_parts_of_an_item_come_back() -> None:
    row = row_of("id", b"\x01", (), None, b"\xff" * 16, {"dog": (255, 3)})
    item = item_of({**row, "code": [row["code"]]})
    assert item.visual is not None
    assert item.visual.tolist() == [255] * 16
    assert item.seen == {"dog": (255, 3)}
    del row["parts"]  # of a collection of before
    old = item_of({**row, "code": [row["code"]]})
    assert (old.visual, old.seen) == (None, {})


@pytest.mark.parametrize(
    ("labels", "path", "words"),
    [
        (["ü" * 257], None, r"a label of up to 512 bytes, got 514: 'ü{40}\.\.\.'"),
        ([], "x" * 4_097, "a path of up to 4,096 bytes, got 4,097"),
        (["x"] * 1_025, None, "up to 1,024 labels per item, got 1,025"),
    ],
)
def test_what_does_not_fit_is_refused(labels: list[str], path: str | None, words: str) -> None:
    row_of(1, b"a", ["ü" * 256] * 1_024, "x" * 4_096)
    with pytest.raises(InputError, match=words):
        row_of(1, b"a", labels, path)


def test_requests_are_bounded_by_rows_and_by_bytes() -> None:
    small = [row_of(number, b"ab", (), None) for number in range(1_201)]
    batches = list(insert_batches(small))
    assert [len(batch) for batch in batches] == [500, 500, 201]
    assert [row for batch in batches for row in batch] == small
    large = [row_of(number, b"ab", ["x" * 500] * 1_000, None) for number in range(20)]  # half a MB each
    assert [len(batch) for batch in insert_batches(large)] == [8, 8, 4]
    assert list(insert_batches([])) == []


def test_bits_of_a_collection() -> None:
    fields = [{"name": name, "params": {}} for name in ("id", "labels", "path")]
    fields.append({"name": "code", "params": {"dim": "64"}})
    assert bits_of({"description": "centerhash", "fields": fields}, "mine") == (64, False)  # of before
    whole = [*fields, {"name": "parts", "params": {}}]
    assert bits_of({"description": "centerhash", "fields": whole}, "mine") == (64, True)
    for other in ({"description": "", "fields": fields}, {"description": "centerhash", "fields": fields[:2]}):
        with pytest.raises(DataError, match="the collection 'theirs' is not an index of centerhash"):
            bits_of(other, "theirs")


def test_bits_are_a_multiple_of_8() -> None:
    for bits in (0, -8, 7, 20):
        with pytest.raises(
            ConfigError, match=f"multiple of 8, got {bits}: use such a length, or the flat store"
        ):
            check_bits(bits)


def test_names_of_collections() -> None:
    for name in ("", "1st", "a-b", "a b", "a;drop", "ü", "x" * 256):
        check_collection("My_images_2")
        with pytest.raises(ConfigError, match="named with letters, digits and '_'"):
            check_collection(name)


def test_levels_of_consistency() -> None:
    check_consistency("Bounded")
    with pytest.raises(ConfigError):
        check_consistency("strong")
