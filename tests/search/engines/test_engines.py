"""What every engine must do, whatever is behind it: the same answers as looking at every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.search.engines.base import HammingIndex, Id
from centerhash.search.engines.table import create_store
from tests.reference.index import ModelIndex, check_contents, check_search, check_within
from tests.search.engines.places import Place

NAMES = ("cat", "dog", "a 'quoted' \"label\"", "back\\slash", "und Größe, 漢字 😀", "new\nline", "100%", "")
ODD_IDS = (
    "'",
    '"',
    "\\",
    '" or id > "',
    "%25",
    "tab\t",
    "new\nline",
    "nul\0",
    "ü",
    "漢字",
    "😀",
    "\U0010ffff",
    " ",
)


def random_codes(count: int, bits: int = 16, seed: int = 0) -> NDArray[np.uint8]:
    """Packed codes (n, ceil(K/8)) near to a few centers, so that many distances are equal."""
    generator = np.random.default_rng(seed)
    centers = generator.integers(0, 2, size=(4, bits))
    flips = generator.random((count, bits)) < 0.15
    return np.packbits(centers[generator.integers(0, 4, size=count)] ^ flips, axis=1)


def random_labels(count: int, seed: int = 0) -> list[tuple[str, ...]]:
    generator = np.random.default_rng(seed)
    return [tuple(name for name in NAMES if generator.random() < 0.3) for _ in range(count)]


def filled(index: HammingIndex, ids: list[Id], bits: int = 16, seed: int = 0) -> ModelIndex:
    """Add items in two parts to the index and to its model."""
    model = ModelIndex()
    codes, labels = random_codes(len(ids), bits, seed), random_labels(len(ids), seed)
    paths = [None if row % 3 == 0 else f"folder/{row} ü.jpg" for row in range(len(ids))]
    half = len(ids) // 2
    for part in (slice(0, half), slice(half, None)):
        index.add(codes[part], ids[part], labels[part], paths[part])
        model.add(codes[part], ids[part], labels[part], paths[part])
    return model


def integers(count: int, seed: int = 0) -> list[Id]:
    """Integer ids in no order, the smallest and the largest among them."""
    drawn = np.random.default_rng(seed).choice(10 * count, size=count - 2, replace=False) - 5 * count
    return [2**63 - 1, *drawn.tolist(), -(2**63)]


def strings(count: int) -> list[Id]:
    """String ids in no order, difficult ones and the longest among them."""
    longest = ["ü" * 256, "x" * 512, "x" * 511 + "w"]
    plain = [f"image {number}.jpg" for number in range(count - len(ODD_IDS) - len(longest))]
    return [*plain[::-1], *ODD_IDS, *longest]


@pytest.fixture
def index(place: Place) -> Iterator[HammingIndex]:
    with place.create() as empty:
        yield empty


@pytest.mark.parametrize("make_ids", [integers, strings])
def test_answers_are_those_of_looking_at_every_item(
    place: Place, make_ids: Callable[[int], list[Id]]
) -> None:
    with place.create() as index:
        model = filled(index, make_ids(200))
        queries = np.concatenate([random_codes(3), random_codes(3, seed=9)])
        for k in (1, 7, 60, 500):
            check_search(index, model, queries, k)
        for radius in (0, 3, 16):
            check_within(index, model, queries, radius)
        check_contents(index, model)


def test_labels_filter_by_all_that_are_asked_for(index: HammingIndex) -> None:
    model = filled(index, integers(200))
    queries = random_codes(3, seed=5)
    for name in NAMES:
        check_search(index, model, queries, 5, [name])
    for labels in (["cat", "dog"], ["cat", "cat", "100%"], list(NAMES), ["unknown"], ["cat", "unknown"]):
        check_search(index, model, queries, 20, labels)
        check_within(index, model, queries, 6, labels)
    assert [len(hits) for hits in index.search(queries, 5, ["ca"])] == [0, 0, 0]
    assert [len(hits) for hits in index.search(queries, 5, ['x") or ARRAY_CONTAINS(labels, "cat'])] == [
        0,
        0,
        0,
    ]


def test_removed_items_are_gone_and_may_come_back(index: HammingIndex) -> None:
    ids = integers(120)
    model = filled(index, ids)
    gone = [*ids[:70], 10**15, ids[0]]
    assert index.remove(gone) == model.remove(gone) == 70
    assert index.remove(gone) == 0
    assert ids[0] not in index
    check_contents(index, model)
    check_search(index, model, random_codes(4), 30)
    again = random_codes(10, seed=77)
    index.add(again, ids[:10], [("new",)] * 10)
    model.add(again, ids[:10], [("new",)] * 10)
    check_contents(index, model)
    check_search(index, model, again, 10, ["new"])


def test_all_is_there_after_closing_and_opening(place: Place) -> None:
    with place.create() as index:
        model = filled(index, strings(80))
        removed = sorted(model.items)[::7]
        index.remove(removed)
        model.remove(removed)
        before = index.search(random_codes(3), 10)
    with place.open(read_only=True) as index:
        assert index.bits == 16
        check_contents(index, model)
        assert [hits.ids for hits in index.search(random_codes(3), 10)] == [hits.ids for hits in before]
    with place.open() as index:
        index.add(random_codes(2, seed=5), ["late", "later"])
        model.add(random_codes(2, seed=5), ["late", "later"])
        check_contents(index, model)


def test_more_ties_than_one_request_brings(index: HammingIndex) -> None:
    model = ModelIndex()
    codes = np.repeat(random_codes(3), 500, axis=0)
    ids = np.random.default_rng(3).permutation(len(codes)).tolist()
    index.add(codes, ids)
    model.add(codes, ids)
    for k in (1, 40, 510, 1_000):
        check_search(index, model, codes[::500], k)


@pytest.mark.parametrize("bits", [8, 20, 64, 128])
def test_codes_of_other_lengths(place: Place, bits: int) -> None:
    if place.engine == "milvus-server" and bits != 128:
        pytest.skip("one length besides 16 is enough for a server, where making an index takes seconds")
    if place.engine.startswith("milvus") and bits % 8:
        with pytest.raises(InputError):
            place.create(bits)
        return
    with place.create(bits) as index:
        model = filled(index, integers(60), bits)
        check_search(index, model, random_codes(4, bits, seed=1), 10)
        check_within(index, model, random_codes(4, bits, seed=1), bits // 4)
        check_contents(index, model)


def test_an_empty_index_answers(index: HammingIndex) -> None:
    assert (len(index), list(index.ids()), index.labels()) == (0, [], {})
    assert [len(hits) for hits in index.search(random_codes(2), 3)] == [0, 0]
    assert [len(hits) for hits in index.within(random_codes(2), 16, ["cat"])] == [0, 0]
    assert index.search(random_codes(0), 3) == []
    assert index.within(random_codes(0), 3) == []
    assert index.get([]) == []
    assert index.remove([]) == index.remove(["nothing"]) == index.remove([1]) == 0
    index.add(random_codes(0), [])
    assert len(index) == 0


def test_what_is_in_the_index(index: HammingIndex) -> None:
    index.add(random_codes(2), [np.int64(5), -7])
    assert 5 in index
    assert np.int64(-7) in index
    assert not any(other in index for other in (6, "5", True, 5.0, None, 2**63, -(2**63) - 1, "", "x" * 600))
    ids = index.search(random_codes(1), 2)[0].ids
    assert {type(id) for id in ids} == {int}
    with pytest.raises(InputError):
        index.get([5, 6])


def test_paths_are_those_of_the_items_that_have_one(index: HammingIndex) -> None:
    index.add(random_codes(3), ["b", "a", "d"], paths=["/x/b.jpg", None, "/x/ä.jpg"])
    index.add(random_codes(2, seed=1), ["c", "e"], paths=["images/0", ""])
    assert list(index.paths()) == [("b", "/x/b.jpg"), ("c", "images/0"), ("d", "/x/ä.jpg"), ("e", "")]
    index.remove(["b", "a"])
    assert [id for id, _ in index.paths()] == ["c", "d", "e"]


def test_refused_items_leave_the_index_as_it_was(index: HammingIndex) -> None:
    index.add(random_codes(2), ["a", "b"], [("cat",), ()])
    before = dict(index.labels())
    refused = ((["c", "b", "d"], "'b'"), (["c", "d", "c"], "'c'"), ([1], "holds string ids, got 1"))
    for ids, words in refused:
        with pytest.raises(InputError, match=words):
            index.add(random_codes(len(ids)), ids)
    with pytest.raises(InputError):
        index.add(random_codes(2), ["c", "d"], [("cat",)])
    assert (list(index.ids()), index.labels()) == (["a", "b"], before)


def test_a_reader_does_not_write(place: Place) -> None:
    with place.create() as index:
        index.add(random_codes(1), [1])
    with place.open(read_only=True) as index:
        for change in (lambda: index.add(random_codes(1), [2]), lambda: index.remove([1])):
            with pytest.raises(InputError):
                change()
        assert list(index.ids()) == [1]


def test_a_closed_index_says_so(place: Place) -> None:
    index = place.create()
    index.close()
    index.close()
    for use in (lambda: len(index), lambda: index.search(random_codes(1)), lambda: list(index.ids())):
        with pytest.raises(InputError):
            use()


def test_an_index_is_made_once_and_opened_where_it_is(place: Place) -> None:
    with place.create():
        pass
    with pytest.raises(InputError):
        create_store(place.store(16), place.folder / "16", 16)
    with pytest.raises(InputError):
        place.open(24)
