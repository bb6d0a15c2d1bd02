"""Rankings by more than the semantic code, against a loop over all items; and items with and without all parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import Packed, unpack
from centerhash.core.errors import InputError
from centerhash.search.engines import answers
from centerhash.search.engines.base import Filter, HammingIndex, Hits, Item
from centerhash.search.engines.flat import FlatIndex
from centerhash.search.engines.rankings import FLOOR, SHARES, ByBoth, ByLabels, ByLook, Ranking
from tests.search.engines.flat_toys import BITS, codes, small_segments
from tests.search.engines.places import Place

COUNT = 120
NAMES = ("cat", "dog", "emu")
CENTERS = np.random.default_rng(4).choice([-1, 1], size=(3, BITS)).astype(np.int8)


def random_seen(generator: np.random.Generator) -> dict[str, tuple[int, int]]:
    kept = [name for name in NAMES if generator.random() < 0.7]
    return {name: (int(generator.integers(0, 256)), int(generator.integers(0, 256))) for name in kept}


def fill(index: HammingIndex, first: int = 0, *, whole: bool = True, count: int = COUNT) -> None:
    """Add items of which every fifth lacks a visual code and every seventh presences; or none has either."""
    generator = np.random.default_rng(first)
    looks: list[Packed | None] = list(generator.integers(0, 4, (count, 16), dtype=np.uint8))
    looks[::5] = [None] * len(looks[::5])
    seen = [random_seen(generator) if row % 7 else {} for row in range(count)]
    labels = [tuple(name for name in NAMES if generator.random() < 0.4) for _ in range(count)]
    paths = [None if row % 4 == 0 else f"/photos/{'ab'[row % 2]}/{row}.jpg" for row in range(count)]
    ids = [f"{first + row:04d}" for row in generator.permutation(count)]
    parts: dict[str, Any] = {"visual": looks, "seen": seen} if whole else {}
    index.add(codes(count, first, distinct=4), ids, labels, paths, **parts)


def far(first: Packed, second: Packed) -> int:
    return sum(bin(a ^ b).count("1") for a, b in zip(first.tolist(), second.tolist(), strict=True))


def naive_both(item: Item, asked: ByBoth) -> float:
    look = 64 if item.visual is None else far(item.visual, asked.visual)
    return round(far(item.code, asked.code) + asked.factor * look, 9)


def naive_look(item: Item, asked: ByLook) -> float:
    return math.inf if item.visual is None else far(item.visual, asked.visual)


def naive_labels(item: Item, asked: ByLabels) -> float:
    """The formula of docs/search.md, in plain Python."""
    if item.seen:
        present = {name: max(item.seen.get(name, (0, 0))[0] / 255, FLOOR) for name in asked.weights}
        shares = {name: item.seen.get(name, (0, 0))[1] / 255 for name in asked.weights}
    else:
        code = unpack(item.code[None], BITS)[0]
        sizes = [math.exp(8 * int(center @ code.astype(int)) / BITS) for center in CENTERS.astype(int)]
        shares = {name: sizes[asked.classes[name]] / sum(sizes) for name in asked.weights}
        present = {name: min(max(share * len(shares), FLOOR), 1) for name, share in shares.items()}
    off = sum(abs(shares[name] - weight) for name, weight in asked.weights.items()) / 2
    return SHARES * off - sum(math.log(value) for value in present.values())


def passes(item: Item, only: Filter) -> bool:
    under = only.under is None or (item.path or "").startswith(only.under)
    return set(only.having) <= set(item.labels) and not set(only.without) & set(item.labels) and under


def expected(index: HammingIndex, asked: Any, only: Filter) -> list[tuple[float, int, str]]:
    naive: Any = {ByBoth: naive_both, ByLook: naive_look, ByLabels: naive_labels}[type(asked)]
    rows = [
        (naive(item, asked), far(item.code, asked.code), str(item.id))
        for item in index.get(list(index.ids()))
        if passes(item, only)
    ]
    limited = [row for row in rows if row[0] < math.inf]
    if asked.within is not None:
        limited = [
            row for row in limited if (row[0] if isinstance(asked, ByLook) else row[1]) <= asked.within
        ]
    return sorted((round(penalty, 9), distance, id) for penalty, distance, id in limited)


def questions(within: int | None = None) -> list[Ranking]:
    code, visual = codes(1, 50, distinct=4)[0], np.full(16, 3, np.uint8)
    classes = {name: row for row, name in enumerate(NAMES)}
    return [
        ByBoth(code, visual, within=within),
        ByBoth(code, visual, 0.5, within=within),
        ByLook(code, visual, within),
        ByLabels(code, {"cat": 0.7, "emu": 0.3}, CENTERS, classes, within),
        ByLabels(code, {"dog": 1.0}, CENTERS, classes, within),
        ByLabels(code, dict.fromkeys(NAMES, 1 / 3), CENTERS, classes, within),
    ]


@pytest.fixture(params=[True, False], ids=["plain", "compiled"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few items are compared by numpy, many by compiled loops; the answers are the same."""
    if not request.param:
        monkeypatch.setattr(answers, "PLAIN", 0)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlatIndex]:
    """Items in two segments, of which some are removed, and in the journal; the oldest without any part."""
    small_segments(monkeypatch, 50)
    with FlatIndex.create(tmp_path / "index", BITS) as made:
        fill(made, 1000, whole=False, count=60)
        fill(made)
        made.remove([f"{row:04d}" for row in range(0, 30, 2)])
        fill(made, 2000, count=20)
        yield made


FILTERS = (
    Filter(),
    Filter(("cat",)),
    Filter((), ("dog",)),
    Filter(("emu",), ("cat", "unknown"), ("/photos/a/",)),
    Filter(under=("/photos/a/", "/photos/b/")),
    Filter(under=("/photo",)),
    Filter(under=()),
)


@pytest.mark.usefixtures("both_ways")
def test_every_ranking_is_that_of_a_loop(index: FlatIndex) -> None:
    for only, asked in product(FILTERS, [*questions(None), *questions(6)]):
        whole = expected(index, asked, only)
        for k in (1, 7, 500):
            hits = index.rank(asked, k, only)
            assert [(far_, id) for id, far_ in hits] == [row[1:] for row in whole[:k]], only


@pytest.mark.usefixtures("both_ways")
def test_filters_hold_for_the_semantic_code_too(index: FlatIndex) -> None:
    (query,) = codes(1, 50, distinct=4)
    items = index.get(list(index.ids()))
    for only in FILTERS:
        ranked = sorted((far(item.code, query), str(item.id)) for item in items if passes(item, only))
        assert [(d, id) for id, d in index.search(query[None], 9, only=only)[0]] == ranked[:9]
        near = [pair for pair in ranked if pair[0] <= 4]
        assert [(d, id) for id, d in index.within(query[None], 4, only=only)[0]] == near


def test_parts_survive_closing_and_compacting(index: FlatIndex) -> None:
    before = {item.id: item for item in index.get(list(index.ids()))}
    assert any(item.visual is not None and item.seen for item in before.values())
    index.compact()
    index.close()
    with FlatIndex.open(index.folder, read_only=True) as again:
        for item in again.get(list(again.ids())):
            old = before[item.id]
            assert (item.labels, item.path, item.seen) == (old.labels, old.path, old.seen)
            assert (item.visual is None) == (old.visual is None)
            assert old.visual is None or np.array_equal(item.visual, old.visual)
        assert again.labels() == {
            name: sum(name in item.labels for item in before.values()) for name in NAMES
        }


def test_an_index_without_parts_is_stored_as_it_was_before(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path / "old", BITS) as old:
        fill(old, whole=False)
        old.compact()
        (part,) = old._now.parts
        assert not {"visual", "looks", "seen.starts"} & part.segment.arrays().keys()
        assert not len(old.rank(questions()[2]))
        assert len(old.rank(questions()[0], 500)) == COUNT


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        packed = codes(2)
        for parts, words in (
            ({"visual": np.zeros((2, 8), np.uint8)}, "visual codes of 128 bits"),
            ({"visual": [None]}, "visual has 1 entries for 2"),
            ({"seen": [{}, {"dog": (1, 256)}]}, "'dog' are two numbers"),
        ):
            with pytest.raises(InputError, match=words):
                index.add(packed, ["a", "b"], **parts)  # type: ignore[arg-type]
        assert not len(index)


def test_every_store_keeps_and_ranks_by_all_parts(place: Place) -> None:
    with place.create(BITS) as index:
        fill(index)
        items = index.get(list(index.ids()))
        assert sum(item.visual is not None for item in items) == COUNT - COUNT // 5
        for asked in questions():
            hits: Hits = index.rank(asked, 10, Filter(("cat",)))
            whole = expected(index, asked, Filter(("cat",)))
            assert [(distance, id) for id, distance in hits] == [row[1:] for row in whole[:10]]
