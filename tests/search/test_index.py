"""An index that is created, opened and searched; test_changes.py is about changing it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from centerhash.codes import hamming, pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.data import Dataset, content_key
from centerhash.data.images import load_image
from centerhash.model.base import FILTERED
from centerhash.model.model import HashModel
from centerhash.search import Index, Result, verify_index
from centerhash.search.items import LEVELS, File, Item
from centerhash.search.rankings import NEAR
from centerhash.training.run import train
from tests.toys import CLASSES, names, separable, toy_config

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    """Fourteen scenes, in the order in which they are added: not that of their names or ids."""
    found = sorted((scene_folder / "images").iterdir())[:14]
    return [found[place] for place in np.random.default_rng(0).permutation(14)]


@pytest.fixture(scope="module")
def stored(image_run: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of fourteen scenes with predicted labels; not to be changed."""
    folder = tmp_path_factory.mktemp("indexes") / "scenes"
    with Index.create(folder, image_run) as made:
        for path in pictures:
            made.add(path)
    return folder


@pytest.fixture
def opened(stored: Path) -> Iterator[Index]:
    with Index.open(stored, read_only=True) as index:
        yield index


@pytest.fixture
def empty(feature_run: Path, tmp_path: Path) -> Iterator[Index]:
    """An empty index of a model of features, whose codes have 16 bits."""
    with Index.create(tmp_path / "index", feature_run) as index:
        yield index


def id_of(path: Path) -> str:
    return content_key(path)[:16]


def expected_order(index: Index, code: Any, visual: Any = None) -> list[tuple[int, str]]:
    """Distances and ids by semantic distance, plus a tenth of the visual one; equal ones as they were added."""
    rows = []
    for item in index:
        distance = int(hamming(code[None], unpack(item.code[None], len(code)))[0, 0])
        apart = 0 if visual is None else visual_distance(item, visual)
        rows.append((10 * distance + apart, distance, item.id))
    return [row[1:] for row in sorted(rows, key=lambda row: row[0])]


def visual_distance(item: Item, visual: Any) -> int:
    assert item.visual is not None
    return int(hamming(visual[None], unpack(item.visual[None], 128))[0, 0])


def codes_of(index: Index, path: Path) -> tuple[Any, Any]:
    """The semantic and the visual code of an image."""
    features = index.model.features_of([path], device="cpu")
    return index.model.encode_features(features)[0], index.model.visual_codes(features)[0]


def pairs(results: Sequence[Result]) -> list[tuple[int, str]]:
    return [(row.distance, row.id) for row in results]


# --- items


def test_items_are_the_images_by_content_in_the_order_of_adding(opened: Index, pictures: list[Path]) -> None:
    assert len(opened) == 14
    assert [item.id for item in opened] == list(map(id_of, pictures))
    features = opened.model.features_of(pictures, device="cpu")
    codes, predicted = opened.model.encode_features(features), opened.model.label_names(features)
    for item, path, code, labels in zip(opened, pictures, codes, predicted, strict=True):
        assert np.array_equal(item.code, pack(code[None])[0])
        status, (height, width) = path.stat(), load_image(path).size[::-1]
        assert item.files == (File(str(path.resolve()), status.st_size, status.st_mtime),)
        assert (item.photo.width, item.photo.height, item.photo.camera) == (width, height, None)
        assert opened.get(item.id).taken == datetime.fromtimestamp(status.st_mtime)
        assert set(item.labels) == set(labels)
        result = opened.get(item.id)
        assert (result.id, result.distance, result.path) == (item.id, 0, item.path)
        assert result.visual is None
        assert set(result.probability or {}) == set(result.share or {}) == set(labels)
        assert opened.image(item.id) == path.resolve()
    assert id_of(pictures[0]) in opened
    assert not any(other in opened for other in ("unknown", "", "x" * 600, 7, None))


def test_labels_folders_and_newest(opened: Index, pictures: list[Path]) -> None:
    counts = opened.labels()
    assert list(counts) == sorted(counts)
    assert counts == {name: sum(name in item.labels for item in opened) for name in counts}
    assert opened.folders() == {str(pictures[0].parent.resolve()): 14}
    assert opened.missing() == []
    times = [(item.photo.taken, row, item) for row, item in enumerate(opened)]
    latest = [item for *_, item in sorted(times, reverse=True)]  # equally old ones: the last added first
    page, total = opened.newest(3, 5)
    assert ([row.id for row in page], total) == ([item.id for item in latest[3:8]], 14)
    name = min(counts, key=lambda label: counts[label])
    some, total = opened.newest(having=name, under=pictures[0].parent)
    assert [row.id for row in some] == [item.id for item in latest if name in item.labels]
    assert total == counts[name]
    assert opened.newest(20) == ([], 14)
    assert opened.newest(under="/nowhere") == ([], 0)
    for page_of in ({"offset": -1}, {"limit": -1}, {"limit": "5"}):
        with pytest.raises(InputError, match=next(iter(page_of))):
            opened.newest(**page_of)  # type: ignore[arg-type]


def test_info_and_repr(opened: Index, stored: Path) -> None:
    info = opened.info()
    assert json.loads(json.dumps(info)) == info
    assert (info["index"], info["store"], info["size"], info["bits"]) == (str(stored), "sqlite", 14, 32)
    assert (info["method"], info["backbone"]) == ("ics-softmax", "efficientnet-lite0")
    assert (info["uploads"], info["missing"], info["details"]["removed"]) == (0, 0, 0)
    assert info["details"]["bytes"] > 0
    assert info["labels"] == opened.labels()
    assert opened.verify() == verify_index(stored) == []
    assert repr(opened) == f"Index('{stored}', 14 items, 32 bits, sqlite)"
    opened.close()
    opened.close()
    assert "closed" in repr(opened)
    for use in (lambda: len(opened), lambda: opened.search(labels="person"), lambda: list(opened)):
        with pytest.raises(InputError):
            use()


# --- search


def test_search_by_an_image(opened: Index, pictures: list[Path]) -> None:
    code, visual = codes_of(opened, pictures[0])
    results = opened.search(pictures[0], k=14)
    assert pairs(results) == expected_order(opened, code, visual)
    assert pairs(opened.search(pictures[0], k=14, by="semantic")) == expected_order(opened, code)
    by_id = {item.id: item for item in opened}
    assert [row.visual for row in results] == [visual_distance(by_id[row.id], visual) for row in results]
    found = opened.search(pictures[0], k=14, by="visual")
    nearest = sorted(opened, key=lambda item: visual_distance(item, visual))
    assert [row.id for row in found] == [item.id for item in nearest]
    assert (results[0].id, results[0].visual) == (id_of(pictures[0]), 0)
    assert np.array_equal(results.code, code)
    assert results.size == 14
    assert sum(row.weight for row in results.labels) == pytest.approx(1, abs=1e-5)
    assert {row.label for row in results.labels} == set(results[0].labels) == set(results[0].share or ())
    image = Image.open(pictures[0]).convert("RGB")
    for same in (str(pictures[0]), pictures[0].read_bytes(), image, np.asarray(image), image.convert("RGBA")):
        assert pairs(opened.search(same, k=3)) == pairs(results[:3])


def test_a_rotated_copy_and_a_screenshot_are_found(opened: Index, pictures: list[Path]) -> None:
    image = np.asarray(Image.open(pictures[0]).convert("RGB"))
    height, width, _ = image.shape
    screen = np.full((2 * height, width, 3), 20, np.uint8)
    screen[height // 2 : height // 2 + height] = image
    for copy in (np.rot90(image), np.rot90(image, 2), np.rot90(image, 3), screen):
        first = opened.search(copy, k=1)[0]
        assert (first.id, (first.visual or 0) <= NEAR) == (id_of(pictures[0]), True)
    alone = opened.search(np.rot90(image), k=14, rotations=False)
    turned = opened.search(np.rot90(image), k=14)
    visual = {row.id: row.visual or 0 for row in alone}
    assert all((row.visual or 0) <= visual[row.id] for row in turned)
    assert (turned[0].visual or 0) < visual[turned[0].id]


def test_a_search_does_not_wait_for_a_change(opened: Index, pictures: list[Path]) -> None:
    with ThreadPoolExecutor(1) as pool, opened.lock:
        assert pool.submit(opened.search, pictures[0], k=1).result(timeout=60)[0].id == id_of(pictures[0])


def test_search_by_an_id_leaves_the_item_itself_out(opened: Index, pictures: list[Path]) -> None:
    own = id_of(pictures[3])
    others = [pair for pair in expected_order(opened, *codes_of(opened, pictures[3])) if pair[1] != own]
    for k in (1, 5, 13, 100):
        assert pairs(opened.search(id=own, k=k)) == others[:k]
    assert {row.label for row in opened.search(id=own).labels} == set(opened.get(own).labels)


def test_search_by_labels(opened: Index) -> None:
    classes, centers = opened.model.classes, opened.model.centers
    results = opened.search(labels={classes[2]: 5}, k=14, by="semantic")
    assert pairs(results) == expected_order(opened, centers[2].astype(np.int8))
    assert [(row.label, row.weight, row.distance) for row in results.labels] == [(classes[2], 1.0, 0)]
    name = next(iter(opened.labels()))
    found = opened.search(labels=[name], k=14)
    probabilities = [(row.probability or {}).get(name, 0.0) for row in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert probabilities[0] > 0
    assert all(set(row.share or {}) <= {name} and row.visual is None for row in found)
    two = opened.search(labels={classes[0]: 1, classes[1]: 1.0})
    for same in ([classes[0], classes[1]], (classes[1], classes[0]), f"{classes[0]}:2, {classes[1]}:2"):
        assert np.array_equal(opened.search(labels=same).code, two.code)


def test_filters_and_radius(opened: Index, pictures: list[Path]) -> None:
    counts, folder = opened.labels(), pictures[0].parent
    rare, common = (choose(counts, key=lambda label: (counts[label], label)) for choose in (min, max))
    whole = opened.search(pictures[0], k=14)
    radius = whole[5].distance
    items = {item.id: item for item in opened}

    def has(row: Result, label: str) -> bool:
        item = items[row.id]
        return label in item.labels or item.scores.get(label, (0, 0))[0] >= FILTERED * LEVELS

    cases: list[tuple[dict[str, Any], Callable[[Result], bool]]] = [
        ({"having": rare}, lambda row: has(row, rare)),
        ({"having": [rare.upper()]}, lambda row: has(row, rare)),
        ({"without": common}, lambda row: not has(row, common)),
        ({"having": rare, "without": [common]}, lambda row: has(row, rare) and not has(row, common)),
        ({"having": common, "without": common}, lambda row: False),
        ({"having": "no such label"}, lambda row: False),
        ({"without": "no such label"}, lambda row: True),
        ({"within": radius}, lambda row: row.distance <= radius),
        *(({"under": place}, lambda row: True) for place in (folder, f"{folder}/", folder.parent, "/")),
        *(({"under": place}, lambda row: False) for place in (folder / "nothing", str(folder)[:-1])),
    ]
    for given, passes in cases:
        expected = tuple(row for row in whole if passes(row))
        assert tuple(opened.search(pictures[0], k=14, **given)) == expected, given
        assert tuple(opened.search(pictures[0], k=2, **given)) == expected[:2], given
        own = whole[0].id
        others = {row.id for row in expected if row.id != own}
        assert {row.id for row in opened.search(id=own, k=14, **given)} == others, given
    apart = sorted(row.visual or 0 for row in whole)
    near = opened.search(pictures[0], k=14, by="visual", within=apart[5])
    assert [row.visual for row in near] == [far for far in apart if far <= apart[5]]


def test_ties_are_in_the_order_of_adding(empty: Index) -> None:
    packed = pack(empty.model.encode_features(separable(40, seed=2)[0]))[[0, 1] * 20]
    ids = [f"{number:02d}" for number in np.random.default_rng(1).permutation(40)]
    for start in range(0, 40, 8):
        empty.add_codes(packed[start : start + 8], ids[start : start + 8])
    empty.remove(ids[:4])
    empty.add_codes(packed[:2], ids[:2])  # last now
    order = [*ids[4:], *ids[:2]]
    same = [id for id in order if ids.index(id) % 2 == 0]
    assert [row.id for row in empty.search(id=ids[0], k=18)] == same[:-1]
    empty.compact()
    assert [item.id for item in empty] == order
    assert [row.id for row in empty.search(id=ids[0], k=18)] == same[:-1]


def test_items_without_visual_code_or_scores(image_run: Path, pictures: list[Path], tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", image_run) as made:
        made.add(pictures[:2])
        known = next(iter(made))
        made.add_codes(known.code[None], ["imported"], [["person"]])
        first, second, _ = made.search(pictures[0])
        assert [(first.id, first.visual), (second.id, second.visual)] == [(known.id, 0), ("imported", None)]
        assert (second.probability, second.share, second.path) == (None, None, None)
        assert made.newest()[1] == 2
        assert "imported" in [row.id for row in made.search(labels="person")]
        assert "imported" not in [row.id for row in made.search(pictures[0], by="visual")]
        assert [row.id for row in made.search(id="imported", k=1)] == [known.id]
        with pytest.raises(InputError, match="imported"):
            made.search(id="imported", by="visual")
        with pytest.raises(InputError, match="imported"):
            made.image("imported")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"labels": "person", "by": "visual"}, "visual"),
        ({"labels": "person", "by": "looks"}, "'looks'"),
        ({"labels": "person", "under": 7}, "got 7"),
        ({"labels": "person", "under": ""}, "got ''"),
        ({}, "got none"),
        ({"image": b"", "id": "x"}, "got image and id"),
        ({"labels": "person", "k": 0}, "k must .* got 0"),
        ({"labels": "person", "k": "5"}, "got '5'"),
        ({"labels": "person", "within": -1}, "within must be 0 to 32.* got -1"),
        ({"labels": "person", "within": 33}, "got 33"),
        ({"labels": "person", "within": 2.5}, "got 2.5"),
        ({"labels": "person", "having": 7}, "got 7"),
        ({"labels": "person", "without": [7]}, "got 7"),
        ({"labels": ["persn"]}, "'persn'"),
        ({"id": "unknown"}, "'unknown'"),
        ({"id": "\ud800"}, "id"),
        ({"id": Path("a.jpg")}, r"a\.jpg"),
        ({"image": "none.jpg"}, r"none\.jpg"),
        ({"image": b"I am no picture"}, "image"),
        ({"image": ["a.jpg"]}, "got list"),
        ({"image": 7}, "got int"),
        ({"image": np.zeros((4, 4, 3))}, "float64"),
        ({"image": np.zeros((4,), np.uint8)}, "uint8"),
    ],
)
def test_bad_queries(opened: Index, query: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named) as refused:
        opened.search(**query)
    assert "--" not in str(refused.value)


def test_methods_without_centers_support_no_labels(toy_dataset: Dataset, tmp_path: Path) -> None:
    model = train(toy_dataset, config=toy_config(method="lsh"))
    packed = pack(model.encode_features(toy_dataset.features))  # type: ignore[arg-type]
    with Index.create(tmp_path / "index", model) as index:
        index.add_codes(packed, [f"item {row:03d}" for row in range(len(packed))])
        found = index.search(id="item 000", k=3)
        assert found.labels == ()
        assert [row.path for row in found] == [None] * 3
        for query in ({"labels": {"cat": 1}}, {"image": b""}):
            with pytest.raises(ConfigError):
                index.search(**query)  # type: ignore[arg-type]


# --- the folder


def test_an_index_does_not_depend_on_other_files(stored: Path, pictures: list[Path], tmp_path: Path) -> None:
    """It can be moved and renamed, and the run can be deleted: the model is a copy."""
    moved = Path(shutil.copytree(stored, tmp_path / "what? a:b #1 ü"))
    with Index.open(stored, read_only=True) as first, Index.open(moved) as second:
        assert list(second.search(pictures[2])) == list(first.search(pictures[2]))
    assert names(moved) == ["index.json", "items.commits", "items.db", "lock", "lock.pid", "model"]


def test_one_writer_and_any_number_of_readers(stored: Path, pictures: list[Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    with Index.open(place) as writer, Index.open(place, read_only=True) as reader:
        with mock.patch("centerhash.search.index._WAIT", 0), pytest.raises(InputError, match="copy"):
            Index.open(place)
        assert not reader.refresh()
        before = reader.version
        assert reader.version == before
        writer.remove(id_of(pictures[0]))
        assert len(reader) == 13
        assert reader.refresh()
        assert not reader.refresh()
        assert reader.version != before
        for change in (
            lambda: reader.add(pictures),
            lambda: reader.add_bytes(pictures[0].read_bytes()),
            lambda: reader.add_codes(np.zeros((0, 4), np.uint8), []),
            lambda: reader.remove([id_of(pictures[1])]),
            reader.compact,
            lambda: reader.import_codes(tmp_path / "codes.npz"),
        ):
            with pytest.raises(InputError):
                change()
        assert len(reader) == 13
    Index.open(place).close()


def test_create_refuses_what_is_there(stored: Path, image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (stored, tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match=str(place)):
            Index.create(place, image_run)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OutputError):
        Index.create(tmp_path / "round", image_run)
    for store in ("sqlit", "sqlite:here", "flat", "milvus", "milvus:", "milvus:items.db", "faiss"):
        with pytest.raises(ConfigError):
            Index.create(tmp_path / "index", image_run, store=store)
    with pytest.raises(DataError):
        Index.create(tmp_path / "index", tmp_path / "none")
    with pytest.raises(InputError, match="int"):
        Index.create(tmp_path / "index", 7)  # type: ignore[arg-type]
    assert names(tmp_path) == ["notes.txt", "round"]  # nothing is half made


def test_create_accepts_a_model_and_an_empty_folder(toy_model: HashModel, tmp_path: Path) -> None:
    with Index.create(tmp_path, toy_model) as index:
        assert index.model.classes == index.spec.classes == CLASSES
        assert (len(index), list(index), index.newest(), index.labels()) == (0, [], ([], 0), {})
        assert len(index.search(labels="cat")) == len(index.search(labels="cat", having="cat")) == 0
        assert index  # also an empty one


OTHER_STORE = '{"format": 2, "store": "sqlhte", "bits": 32, "classes": ["cat"]}'


@pytest.mark.parametrize(
    "content", [None, "{", '"text"', '{"format": 3}', '{"format": 2}', b"\xff", OTHER_STORE]
)
def test_open_refuses_what_is_no_index(stored: Path, tmp_path: Path, content: str | bytes | None) -> None:
    with pytest.raises(DataError, match=r"none.*index\.json"):
        verify_index(tmp_path / "none")
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    (place / "index.json").unlink()
    if content is not None:
        (place / "index.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        assert "index.json" in verify_index(place)[0]
    with pytest.raises(DataError, match=r"index\.json"):
        Index.open(place)


@pytest.mark.parametrize("store", ["flat", "milvus:http://127.0.0.1:19530#photos"])
def test_an_index_of_an_earlier_format(stored: Path, tmp_path: Path, store: str) -> None:
    place = tmp_path / "old"
    shutil.copytree(stored / "model", place / "model")
    if store == "flat":
        (place / "items").mkdir()
    (place / "index.json").write_text(
        json.dumps({"format": 1, "store": store, "bits": 32, "classes": ["cat"]})
    )
    with pytest.raises(
        DataError, match=r"^'[^']*old' .*`centerhash index create` and `centerhash index add`"
    ):
        Index.open(place)


def test_parts_of_different_indexes_are_refused(stored: Path, toy_model: HashModel, tmp_path: Path) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    toy_model.save_portable(place / "model")
    with pytest.raises(DataError, match="32 bits, its model 16"):
        Index.open(place)
    shutil.rmtree(place / "model")
    with pytest.raises(DataError, match="model"):
        Index.open(place)
