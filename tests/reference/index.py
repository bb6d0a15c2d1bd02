"""A store as a plain list, searched by looking at every item: what all stores must return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from centerhash.search.items import File, Filter, Item, ItemStore, PhotoInfo
from centerhash.search.rankings import FITS, NEAR, SHARES, ByBoth, ByGeneral, ByLabels, BySemantic
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, unpack
from centerhash.model.base import FILTERED

BITS = 16
NAMES = ("cat", "dog", "emu")
CAMERAS = (None, "Canon EOS 5D", "Apple iPhone 12")
CENTERS: Codes = np.random.default_rng(4).choice([-1, 1], size=(3, BITS)).astype(np.int8)


def codes(count: int, seed: int = 0, distinct: int = 256) -> Packed:
    """Random packed codes of 16 bits; few distinct byte values make many ties."""
    return np.random.default_rng(seed).integers(0, distinct, (count, BITS // 8), dtype=np.uint8)


def random_items(count: int, seed: int = 0, first: int = 0) -> list[Item]:
    """Items of which every fifth lacks a general code, every seventh label scores, and every fourth a path.

    Every third of those with a path has a second one, every eleventh is hidden, and every sixth has no date.
    """
    generator = np.random.default_rng(seed)
    items = []
    for row in range(count):
        scores = {
            name: (int(generator.integers(0, 256)), int(generator.integers(0, 256)))
            for name in NAMES
            if generator.random() < 0.7
        }
        items.append(
            Item(
                f"{first + row:04d}",
                generator.integers(0, 4, BITS // 8, dtype=np.uint8),
                tuple(name for name in NAMES if generator.random() < 0.4),
                () if row % 4 == 0 else _files(first + row),
                generator.integers(0, 4, 16, dtype=np.uint8) if row % 5 else None,
                scores if row % 7 else {},
                PhotoInfo(
                    None if row % 6 == 0 else float(1e6 * generator.integers(0, 40)),
                    CAMERAS[row % 3],
                    100 + row,
                    50,
                ),
            )
        )
    return items


def _files(row: int) -> tuple[File, ...]:
    gone = row % 11 == 0
    files = [File(f"/photos/{'ab'[row % 2]}/{row}.jpg", row, float(row), gone)]
    if row % 3 == 0:
        files.append(File(f"/photos/{'bc'[row % 2]}/copy of {row}.jpg", row, 7.5, gone or row % 9 == 0))
    return tuple(sorted(files))


def rankings(within: int | None = None) -> list[Any]:
    """Queries of every kind."""
    code, general = codes(1, 50, distinct=4)[0], np.array([[3] * 16, [0] * 16], np.uint8)
    classes = {name: row for row, name in enumerate(NAMES)}
    return [
        BySemantic(code, within),
        ByBoth(code, general, within),
        ByGeneral(code, general, within),
        ByLabels(code, {"cat": 0.7, "emu": 0.3}, CENTERS, classes, within),
        ByLabels(code, {"dog": 1.0}, CENTERS, classes, within),
        ByLabels(code, dict.fromkeys(NAMES, 1 / 3), CENTERS, classes, within),
    ]


FILTERS = (
    Filter(),
    Filter(("cat",)),
    Filter((), ("dog",)),
    Filter(("emu",), ("cat", "unknown"), ("/photos/a/",)),
    Filter(under=("/photos/a/", "/photos/b/")),
    Filter(under=("/photo/",)),
    Filter(under=("/photos/c/",), before=30e6),
    Filter(after=10e6),
    Filter(("cat",), after=10e6, before=20e6, cameras=("Canon EOS 5D",)),
    Filter(cameras=("Canon EOS 5D", "Apple iPhone 12", "unknown")),
    Filter(cameras=()),
    Filter(under=()),
)


def distance(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    return sum(bin(a ^ b).count("1") for a, b in zip(first.tolist(), second.tolist(), strict=True))


def penalty(item: Item, ranking: Any) -> float:
    """The formulas of docs/how-to/search.md, in plain Python."""
    far = distance(item.code, ranking.code)
    if isinstance(ranking, BySemantic):
        return far
    if isinstance(ranking, ByGeneral):
        return math.inf if item.general is None else distance(item.general, ranking.general[0])
    if isinstance(ranking, ByBoth):
        return round(
            far + 0.1 * (64 if item.general is None else distance(item.general, ranking.general[0])), 9
        )
    if item.scores:
        probable = {name: item.scores.get(name, (0, 0))[0] / 255 for name in ranking.weights}
        if min(probable.values()) < FITS:
            return math.inf
        shares = {name: item.scores.get(name, (0, 0))[1] / 255 for name in ranking.weights}
    else:
        code = unpack(item.code[None], BITS)[0]
        sizes = [math.exp(8 * int(center @ code.astype(int)) / BITS) for center in CENTERS.astype(int)]
        shares = {name: sizes[ranking.classes[name]] / sum(sizes) for name in ranking.weights}
        probable = {name: min(max(share * len(shares), 0.01), 1) for name, share in shares.items()}
    off = sum(abs(shares[name] - weight) for name, weight in ranking.weights.items()) / 2
    return round(SHARES * off - sum(math.log(value) for value in probable.values()), 9)


def passes(item: Item, only: Filter) -> bool:
    under = only.under is None or any(path.startswith(only.under) for path in item.paths)
    taken = math.nan if item.photo.taken is None else item.photo.taken
    labels = {*item.labels, *(name for name, (level, _) in item.scores.items() if level / 255 >= FILTERED)}
    return (
        set(only.having) <= labels
        and not set(only.without) & labels
        and under
        and (only.after is None or taken >= only.after)
        and (only.before is None or taken < only.before)
        and (only.cameras is None or item.photo.camera in only.cameras)
        and not (item.files and all(file.gone for file in item.files))
    )


@dataclass
class ListStore:
    """The items in the order in which they were added."""

    every: list[Item] = field(default_factory=list)  # with hidden ones

    @property
    def items(self) -> list[Item]:
        return [item for item in self.every if passes(item, Filter())]

    def ids(self) -> list[str]:
        return [item.id for item in self.every]

    def add(self, items: Sequence[Item]) -> None:
        assert not {item.id for item in items} & set(self.ids())
        self._take({file.path for item in items for file in item.files})
        self.every += items

    def _take(self, paths: set[str]) -> None:
        """Take paths from the items that have them, and remove those that have none left."""
        left = []
        for item in self.every:
            files = tuple(file for file in item.files if file.path not in paths)
            if files or not item.files:
                left.append(replace(item, files=files))
        self.every = left

    def change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str]) -> None:
        self._set(
            [replace(file, gone=True) if file.path in gone else file for file in item.files]
            for item in self.every
        )
        for id, _ in found:
            self._set(
                [file for file in item.files if not (file.gone and item.id == id)] for item in self.every
            )
        known = [(id, file) for id, file in found if id in self.ids()]
        empty = {item.id for item in self.every if not item.files}  # they may have a file soon
        paths = {file.path for _, file in known}
        self._set([file for file in item.files if file.path not in paths] for item in self.every)
        self._set(
            sorted([*item.files, *(file for id, file in known if id == item.id)]) for item in self.every
        )
        self.every = [item for item in self.every if item.files or item.id in empty]

    def _set(self, files: Any) -> None:
        self.every = [replace(item, files=tuple(own)) for item, own in zip(self.every, files, strict=True)]

    def remove(self, ids: Sequence[str]) -> int:
        before = len(self.every)
        self.every = [item for item in self.every if item.id not in ids]
        return before - len(self.every)

    def search(self, ranking: Any, k: int, only: Filter) -> list[tuple[str, int]]:
        """Ids and distances of the first k items."""
        rows = []
        for place, item in enumerate(self.items):
            value, far = penalty(item, ranking), distance(item.code, ranking.code)
            limited = value if isinstance(ranking, ByGeneral) else far
            near = ranking.within is None or limited <= ranking.within
            if passes(item, only) and value < math.inf and near:
                tie = far if isinstance(ranking, ByLabels) else 0
                rows.append((value, tie, place, item.id, far))
        first = self.copies(ranking, only)[:k]
        rest = [(id, far) for _, _, _, id, far in sorted(rows) if (id, far) not in first]
        return [*first, *rest][:k]

    def copies(self, ranking: Any, only: Filter) -> list[tuple[str, int]]:
        """Ids and distances of the items that are very near to a view of the query, and nearly as near as the nearest."""
        if not isinstance(ranking, ByBoth | ByGeneral):
            return []
        rows = []
        for place, item in enumerate(self.items):
            if item.general is not None and passes(item, only):
                near = min(distance(item.general, view) for view in ranking.general)
                rows.append((near, place, item.id, distance(item.code, ranking.code)))
        within = BITS if ranking.within is None else ranking.within
        most = NEAR if isinstance(ranking, ByBoth) or ranking.within is None else min(NEAR, within)
        rows = sorted(row for row in rows if row[0] <= most)
        return [
            (id, far)
            for near, _, id, far in rows
            if near <= rows[0][0] + 2 and (isinstance(ranking, ByGeneral) or far <= within)
        ]

    def newest(self, only: Filter) -> list[str]:
        rows = [
            (-math.inf if item.photo.taken is None else item.photo.taken, place, item.id)
            for place, item in enumerate(self.items)
            if item.files and passes(item, only)
        ]
        return [id for _, _, id in sorted(rows, reverse=True)]

    def months(self, only: Filter) -> dict[str, int]:
        taken = [item.photo.taken for item in self.items if item.files and passes(item, only)]
        months = [f"{datetime.fromtimestamp(time, UTC):%Y-%m}" for time in taken if time is not None]
        return {month: months.count(month) for month in sorted(set(months), reverse=True)}

    def cameras(self) -> dict[str, int]:
        cameras = [item.photo.camera for item in self.items]
        return {name: cameras.count(name) for name in sorted(set(filter(None, cameras)))}

    def folders(self) -> dict[str, int]:
        places = [{path.rpartition("/")[0] for path in item.paths} for item in self.items]
        return {name: sum(name in own for own in places) for name in set().union(*places)}

    def labels(self) -> dict[str, int]:
        names = sorted({label for item in self.items for label in item.labels})
        return {name: sum(name in item.labels for item in self.items) for name in names}


def found(store: ItemStore, ranking: Any, k: int, only: Filter | None = None) -> list[tuple[str, int]]:
    return [(item.id, far) for item, far in store.search(ranking, k, only)]


def same_item(first: Item, second: Item) -> bool:
    texts = [(item.id, item.labels, item.files, item.scores, item.photo) for item in (first, second)]
    arrays = [
        (item.code.tolist(), None if item.general is None else item.general.tolist())
        for item in (first, second)
    ]
    return texts[0] == texts[1] and arrays[0] == arrays[1]


def check_contents(store: ItemStore, model: ListStore) -> None:
    """Compare everything that is not a search."""
    assert (len(store), store.hidden) == (len(model.items), len(model.every) - len(model.items))
    for hidden, items in ((False, model.items), (True, model.every)):
        stored = list(store.items(hidden=hidden))
        assert [item.id for item in stored] == [item.id for item in items]
        assert all(map(same_item, stored, items))
    assert all(map(same_item, store.get(model.ids()), model.every))
    assert (store.labels(), store.cameras()) == (model.labels(), model.cameras())
    assert store.folders() == model.folders()
    assert list(store.paths()) == [(item.id, path) for item in model.every for path in item.paths]
    assert store.present([*model.ids(), "none"]) == model.ids()
    for folder in ("/photos/a", "/photos/c", "/a", "", "/unknown"):
        assert store.files(folder) == {
            file.path.rpartition("/")[2]: (item.id, file)
            for item in model.every
            for file in item.files
            if file.path.rpartition("/")[0] == folder
        }


def check_searches(store: ItemStore, model: ListStore) -> None:
    """Compare every kind of ranking and filter, and the newest items."""
    for only in FILTERS:
        for ranking in (*rankings(), *rankings(6)):
            for k in (1, 7, 500):
                assert found(store, ranking, k, only) == model.search(ranking, k, only), (ranking, k, only)
        assert store.months(only) == model.months(only)
        newest = model.newest(only)
        for offset, limit in ((0, 5), (3, 4), (0, 500)):
            page, total = store.newest(offset, limit, only)
            assert ([item.id for item in page], total) == (newest[offset : offset + limit], len(newest))


def packed_of(text: str) -> Packed:
    """A code of 0 and 1, packed."""
    code: Packed = pack(np.array([[1 if digit == "1" else -1 for digit in text]], np.int8))[0]
    return code
