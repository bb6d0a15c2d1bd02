"""A photo index that is created, opened, searched and listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.index import Index
from centerhash.photos import PhotoIndex, PhotoResults, is_photo_index
from centerhash.photos.photo_index import read_date
from tests.photos.pictures import id_of, picture, save, save_many, set_time

pytestmark = pytest.mark.usefixtures("kept_networks")

DAYS = ("2023:05:01 10:00:00", "2024:06:01 00:00:00", "2024:06:30 23:59:59", "2024:07:01 00:00:00")


@pytest.fixture(scope="module")
def stored(scene_folder: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of fourteen drawn pictures with predicted labels; not to be changed."""
    folder = tmp_path_factory.mktemp("indexes") / "shapes"
    with PhotoIndex.create(folder, image_run) as photos:
        photos.add(sorted((scene_folder / "images").iterdir())[:14], labels="predicted", progress=False)
    return folder


@pytest.fixture
def opened(stored: Path) -> Iterator[PhotoIndex]:
    with PhotoIndex.open(stored, read_only=True) as photos:
        yield photos


@pytest.fixture
def first(scene_folder: Path) -> Path:
    """The first picture of the index."""
    return min((scene_folder / "images").iterdir())


def ids(results: PhotoResults) -> list[str]:
    return [row.id for row in results]


# --- searches


def test_search_by_image(opened: PhotoIndex, first: Path) -> None:
    results = opened.search(first, k=14)
    assert (results[0].id, results[0].distance, results[0].general) == (id_of(first), 0, 0)
    assert (results[0].path, results[0].name) == (str(first.resolve()), first.name)
    assert (results.size, len(results)) == (14, 14)
    assert sum(row.weight for row in results.labels) == pytest.approx(1, abs=1e-5)
    assert set(results[0].share or ()) == set(results[0].labels)
    image = Image.open(first).convert("RGB")
    for same in (str(first), first.read_bytes(), image, np.asarray(image)):
        assert ids(opened.search(same, k=14)) == ids(results)
    by_id = opened.search(id=id_of(first), k=14, by="semantic")
    assert ids(by_id) == ids(opened.search(first, k=14, by="semantic"))[1:]
    by_code = opened.index.search(code=results.code, k=14, by="semantic")
    assert [row.id for row in by_code][1:] == ids(by_id)


@pytest.mark.parametrize("by", ["both", "semantic", "general"])
def test_search_order(opened: PhotoIndex, first: Path, by: str) -> None:
    rows = opened.search(first, k=14, by=by, rotations=False)
    values = {"both": (10, 1), "semantic": (1, 0), "general": (0, 1)}[by]
    ranked = [values[0] * row.distance + values[1] * (row.general or 0) for row in rows]
    assert ranked == sorted(ranked)


def test_search_by_copies(opened: PhotoIndex, first: Path) -> None:
    image = np.asarray(Image.open(first).convert("RGB"))
    height, width, _ = image.shape
    screen = np.full((2 * height, width, 3), 20, np.uint8)
    screen[height // 2 : height // 2 + height] = image
    for copy in (np.rot90(image), np.rot90(image, 2), np.rot90(image, 3), screen):
        assert opened.search(copy, k=1)[0].id == id_of(first)
    alone = {row.id: row.general or 0 for row in opened.search(np.rot90(image), k=14, rotations=False)}
    rotated = opened.search(np.rot90(image), k=14)
    assert all((row.general or 0) <= alone[row.id] for row in rotated)
    assert (rotated[0].general or 0) < alone[rotated[0].id]


def test_search_by_words(opened: PhotoIndex) -> None:
    name, other = (name for name, _ in sorted(opened.labels().items(), key=lambda pair: -pair[1])[:2])
    results = opened.search(labels=f"a {name}s without {other}", k=14)
    assert results
    expected = ids(opened.search(labels=[name], without=other, k=14))
    assert ids(results) == expected == ids(opened.search(labels={name: 3.0}, without=[other], k=14))
    alone = opened.search(labels=f"without {other}", k=14)
    assert alone.code is None
    assert set(ids(alone)) == {row.id for row in opened.list(0, 14, without=other)[0]}
    weighted = opened.search(labels=f"{name}:0.7, {other}:0.3")
    assert [(row.label, round(row.weight, 6)) for row in weighted.labels] == [(name, 0.7), (other, 0.3)]
    with pytest.raises(ConfigError, match="unicorn"):
        opened.search(labels="unicorn")


def test_search_like_examples(opened: PhotoIndex, first: Path, scene_folder: Path) -> None:
    second = sorted((scene_folder / "images").iterdir())[1]
    by_path = opened.search(like=[first], unlike=[second], k=14)
    assert ids(by_path) == ids(opened.search(like=[id_of(first)], unlike=[id_of(second)], k=14))
    assert id_of(first) not in ids(by_path)
    model = opened.index.model
    features = model.features_of([first, second], device="cpu")
    by_embedding = opened.search(like=features[:1], unlike=features[1:], k=14)
    assert by_embedding[0].id == id_of(first)
    with pytest.raises(InputError, match="nowhere"):
        opened.search(like=["nowhere"])


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({}, InputError),
        ({"id": "a", "labels": "star"}, InputError),
        ({"id": "unknown"}, InputError),
        ({"image": 7}, InputError),
        ({"image": b"no image"}, DataError),
        ({"labels": "star", "k": 0}, InputError),
        ({"labels": "star", "by": "looks"}, ConfigError),
        ({"labels": ["unicorn"]}, ConfigError),
        ({"labels": "the"}, ConfigError),
        ({"labels": "star", "under": ""}, InputError),
        ({"labels": "star", "after": "june"}, InputError),
        ({"labels": "star", "afer": "2024"}, TypeError),
    ],
)
def test_search_errors(opened: PhotoIndex, query: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        opened.search(**query)


# --- lists and filters


def test_list_and_count(photos: PhotoIndex, tmp_path: Path) -> None:
    home = tmp_path / "photos"
    for seed, taken in enumerate(DAYS):
        save(home / taken[:4] / f"{seed}.jpg", picture(seed, 48), taken)
    old = save(home / "old.jpg", picture(9, 60))
    set_time(old, datetime(2001, 2, 3, 4, 5).timestamp())
    photos.add(home, progress=False)

    def names(**filters: Any) -> list[str]:
        rows, total = photos.list(0, 100, **filters)
        searched = photos.search(labels="star", k=9, by="semantic", **filters)
        assert total == len(rows) == photos.count(**filters).total
        assert {row.id for row in rows} == set(ids(searched))
        return [Path(row.path or "").stem for row in rows]

    assert names() == ["3", "2", "1", "0", "old"]
    assert names(after="2024-06", before="2024-07") == ["2", "1"]
    assert names(after=2024) == ["3", "2", "1"]
    assert names(before="2024-06-01") == ["0", "old"]
    assert names(before=date(2024, 1, 1), under=home / "2023") == ["0"]
    assert names(under=home / "202") == names(under=tmp_path / "nowhere") == []
    row = photos.get(id_of(home / "2024" / "1.jpg"))
    assert (row.taken, row.width, row.height) == (datetime(2024, 6, 1), 48, 48)
    assert photos.get(id_of(old)).taken == datetime(2001, 2, 3, 4, 5)
    assert photos.count().folders == {str(home): 1, str(home / "2023"): 1, str(home / "2024"): 3}
    assert photos.count(after=2024).folders == {str(home / "2024"): 3}
    assert photos.list(1, 2)[0] == photos.list(0, 100)[0][1:3]


def test_read_date() -> None:
    day = 24 * 3600
    texts = ("1970", "1970-02", "1970-01-02", " 1969-12-31 ")
    assert [read_date(text) for text in texts] == [0, 31 * day, day, -day]
    assert read_date(1970) == read_date(date(1970, 1, 1)) == read_date(datetime(1970, 1, 1)) == 0
    for wrong in ("70", "2024-13", "2024-02-30", "2024-6", "0000", "2024/06", "june", "", None):
        with pytest.raises(InputError, match="2024-06"):
            read_date(wrong)  # type: ignore[arg-type]


def test_count_by_label(opened: PhotoIndex) -> None:
    name = max(opened.labels(), key=lambda label: opened.labels()[label])
    rows, total = opened.list(0, 100, having=name.upper())
    counts = opened.count(having=name)
    assert counts.total == total == len(rows)
    assert sum(counts.folders.values()) == total
    assert counts.labels[name] == opened.labels()[name]


def test_find(photos: PhotoIndex, tmp_path: Path) -> None:
    paths = save_many(tmp_path / "photos", 2)
    photos.add(tmp_path / "photos", progress=False)
    every = list(map(id_of, paths))
    assert photos.find([every[0], paths[1], tmp_path, "nowhere"]) == {
        every[0]: [every[0]],
        str(paths[1]): [every[1]],
        str(tmp_path): every,
        "nowhere": [],
    }
    assert photos.image(every[0]) == paths[0]
    assert photos.get(every[1]).paths == (str(paths[1]),)
    with pytest.raises(InputError):
        photos.find([7])  # type: ignore[list-item]


# --- results


def test_results_to_dict(opened: PhotoIndex, first: Path) -> None:
    results = opened.search(first, k=2)
    facts = json.loads(json.dumps(results.to_dict()))
    assert facts["results"][0]["path"] == str(first.resolve())
    assert facts["results"][0]["taken"] == (results[0].taken or datetime.min).isoformat()
    assert results.to_pandas()["id"].tolist() == ids(results)
    page = results._repr_html_()
    assert page.count("data:image/jpeg;base64") == 2
    assert str(first.resolve()) in page


# --- opening


def test_is_photo_index(tmp_path: Path, image_run: Path, stored: Path) -> None:
    Index.create(tmp_path / "codes", bits=16).close()
    assert not is_photo_index(tmp_path / "codes")
    assert not is_photo_index(tmp_path)
    assert is_photo_index(stored)
    for folder in ("codes", "nowhere"):
        with pytest.raises(DataError, match=folder):
            PhotoIndex.open(tmp_path / folder)
    with pytest.raises(InputError, match="shapes"):
        PhotoIndex.create(stored, image_run)


def test_read_only(opened: PhotoIndex, tmp_path: Path) -> None:
    save_many(tmp_path / "photos", 1)
    for change in (lambda: opened.add(tmp_path / "photos", progress=False), lambda: opened.remove([])):
        with pytest.raises(InputError):
            change()


def test_info(opened: PhotoIndex) -> None:
    info = opened.info()
    assert json.loads(json.dumps(info)) == info
    assert (info["missing"], info["roots"]) == (0, [])
    assert (len(opened), opened.verify()) == (14, [])
