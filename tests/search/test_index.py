from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import hamming, pack, unpack
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError
from centerhash.data import Dataset, content_key
from centerhash.model import HashModel
from centerhash.search import Collection, verify_collection
from centerhash.training.run import train
from tests.toys import toy_config, write_images

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    return sorted((scene_folder / "images").iterdir())[:14]


@pytest.fixture(scope="module")
def stored(image_run: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of fourteen scenes with predicted labels; not to be changed."""
    folder = tmp_path_factory.mktemp("collections") / "scenes"
    with Collection.create(folder, image_run) as made:
        made.add(pictures)
    return folder


@pytest.fixture
def opened(stored: Path) -> Iterator[Collection]:
    with Collection.open(stored, read_only=True) as collection:
        yield collection


def id_of(path: Path) -> str:
    return content_key(path)[:16]


def expected_order(opened: Collection, code: np.ndarray) -> list[tuple[int, str]]:
    """All items by distance to a code (K,), then by id, from the items one by one."""
    items = list(opened.items())
    codes = np.concatenate([unpack(item.code[None], opened.model.bits) for item in items])
    distances = hamming(code[None], codes)[0].tolist()
    return sorted(zip(distances, [str(item.id) for item in items], strict=True))


def test_items_are_the_images_by_content(opened: Collection, pictures: list[Path]) -> None:
    assert len(opened) == 14
    assert list(opened.index.ids()) == sorted(map(id_of, pictures))
    codes, labels = (
        opened.model.encode(pictures, device="cpu"),
        opened.model.features_of(pictures, device="cpu"),
    )
    predicted = opened.model.predict_labels(labels)
    for path, code, row in zip(pictures, codes, predicted, strict=True):
        item = opened.index.get([id_of(path)])[0]
        assert np.array_equal(item.code, pack(code[None])[0])
        assert item.path == str(path.resolve())
        assert set(item.labels) == {opened.model.classes[j] for j in np.flatnonzero(row)}
        assert opened.image(id_of(path)) == path.resolve()


def test_by_image(opened: Collection, pictures: list[Path]) -> None:
    code = opened.model.encode(pictures[:1], device="cpu")[0]
    answer = opened.by_image(pictures[0], k=14)
    assert [(found.distance, found.id) for found in answer.found] == expected_order(opened, code)
    assert answer.found[0].id == id_of(pictures[0])
    assert answer.found[0].path == str(pictures[0].resolve())
    assert np.array_equal(answer.code, pack(code[None])[0])
    assert sum(row.weight for row in answer.labels) == pytest.approx(1, abs=1e-5)
    assert {row.label for row in answer.labels} == set(answer.found[0].labels)
    again = opened.by_image(pictures[0].read_bytes(), k=14)
    assert (again.found, again.labels) == (answer.found, answer.labels)
    assert opened.by_image(str(pictures[0]), k=3).found == answer.found[:3]


def test_by_id_leaves_the_item_itself_out(opened: Collection, pictures: list[Path]) -> None:
    own = id_of(pictures[3])
    code = opened.model.encode(pictures[3:4], device="cpu")[0]
    others = [pair for pair in expected_order(opened, code) if pair[1] != own]
    for k in (1, 5, 13, 100):
        found = opened.by_id(own, k=k).found
        assert [(row.distance, row.id) for row in found] == others[:k]
    labels = opened.index.get([own])[0].labels
    assert {row.label for row in opened.by_id(own).labels} == set(labels)


def test_by_labels(opened: Collection) -> None:
    classes, centers = opened.model.classes, opened.model.centers.numpy()
    answer = opened.by_labels({classes[2]: 5}, k=14)
    expected = expected_order(opened, centers[2].astype(np.int8))
    assert [(found.distance, found.id) for found in answer.found] == expected
    assert [(row.label, row.weight, row.distance) for row in answer.labels] == [(classes[2], 1.0, 0)]


def test_label_filter_and_radius(opened: Collection, pictures: list[Path]) -> None:
    counts = opened.index.labels()
    name = min(counts, key=lambda label: (counts[label], label))
    found = opened.by_image(pictures[0], k=14, labels=[name]).found
    assert len(found) == counts[name]
    assert all(name in row.labels for row in found)
    assert opened.by_image(pictures[0], labels=["no such label"]).found == []
    whole = opened.by_image(pictures[0], k=14).found
    radius = whole[5].distance
    near = opened.by_image(pictures[0], k=14, within=radius).found
    assert near == [row for row in whole if row.distance <= radius]
    assert opened.by_image(pictures[0], k=2, within=radius).found == whole[:2]
    own = id_of(pictures[0])
    assert opened.by_id(own, k=14, within=radius).found == [row for row in near if row.id != own]


@pytest.mark.parametrize(
    ("k", "within", "message"),
    [
        (0, None, "k must be at least 1, got 0"),
        (1, -1, "within must be 0 to 32, the number of bits, got -1"),
        (1, 33, "within must be 0 to 32, the number of bits, got 33"),
    ],
)
def test_bounds_that_are_refused(opened: Collection, k: int, within: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened.by_labels({opened.model.classes[0]: 1}, k=k, within=within)


def test_what_is_not_there(opened: Collection, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no item 'unknown' in the index, which holds 14"):
        opened.by_id("unknown")
    with pytest.raises(InputError, match="no item 'unknown'"):
        opened.image("unknown")
    with pytest.raises(ImageError, match="no such file"):
        opened.by_image(tmp_path / "none.jpg")
    with pytest.raises(ImageError, match="not an image of a known format"):
        opened.by_image(b"I am no picture")


def test_a_reader_changes_nothing(opened: Collection, pictures: list[Path]) -> None:
    changes = (
        lambda: opened.add(pictures),
        lambda: opened.add_bytes(pictures[0].read_bytes()),
        lambda: opened.add_codes(np.zeros((0, 4), np.uint8), []),
        lambda: opened.remove([id_of(pictures[0])]),
        opened.compact,
    )
    for change in changes:
        with pytest.raises(InputError, match="opened for reading only"):
            change()


def test_info(opened: Collection, stored: Path) -> None:
    facts = opened.info()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["folder"] == str(stored)
    assert (facts["engine"], facts["exact"], facts["items"], facts["bits"]) == ("flat", True, 14, 32)
    assert (facts["method"], facts["backbone"]) == ("ics-softmax", "efficientnet-lite0")
    assert sum(facts["labels"].values()) == sum(len(item.labels) for item in opened.items())
    assert opened.verify() == verify_collection(stored) == []


def test_a_collection_stands_on_its_own(stored: Path, pictures: list[Path], tmp_path: Path) -> None:
    """It can be moved, and the run can go: the model is its own."""
    moved = Path(shutil.copytree(stored, tmp_path / "elsewhere"))
    with Collection.open(stored, read_only=True) as first, Collection.open(moved) as second:
        assert second.by_image(pictures[2]).found == first.by_image(pictures[2]).found
    assert sorted(entry.name for entry in moved.iterdir()) == ["collection.json", "items", "model"]


def test_two_writers_are_refused(stored: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    with Collection.open(place) as writer, pytest.raises(InputError, match="is being written by process"):
        Collection.open(place)
    assert len(writer.spec.classes) == len(writer.model.classes)
    with Collection.open(place), Collection.open(place, read_only=True) as reader:
        assert len(reader) == 14


def test_a_reader_refreshes(image_run: Path, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 2)
    Collection.create(tmp_path / "index", image_run).close()
    with (
        Collection.open(tmp_path / "index") as writer,
        Collection.open(tmp_path / "index", read_only=True) as reader,
    ):
        writer.add(paths)
        assert len(reader) == 0
        reader.refresh()
        assert len(reader) == 2


def test_create_refuses_what_is_there(stored: Path, image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a collection already: add to it with"):
        Collection.create(stored, image_run)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty: name a new folder"):
        Collection.create(tmp_path, image_run)
    with pytest.raises(ConfigError, match="is not empty"):
        Collection.create(tmp_path / "notes.txt", image_run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    Collection.create(tmp_path / "empty", image_run).close()


def test_create_leaves_nothing_half_made(image_run: Path, tmp_path: Path) -> None:
    for engine in ("flatt", "flat:here", "milvus", "milvus:", "faiss?kind=none"):
        with pytest.raises(InputError):
            Collection.create(tmp_path / "index", image_run, engine=engine)
        assert list(tmp_path.iterdir()) == [], engine
    with pytest.raises(DataError, match="holds no finished model"):
        Collection.create(tmp_path / "index", tmp_path / "none")


@pytest.mark.parametrize("engine", ["flatt", "fais?kind=hnsw"])
def test_an_unknown_engine_names_the_nearest(engine: str, image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown engine '\w+'. Did you mean '(flat|faiss)'"):
        Collection.create(tmp_path / "index", image_run, engine=engine)


def test_open_refuses_what_is_no_collection(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no collection \(collection.json is missing\): make one with"):
        Collection.open(tmp_path)
    with pytest.raises(DataError, match="is no collection"):
        verify_collection(tmp_path / "none")
    for name, content in (("collection.json", "{"), ("collection.json", '{"format": 2}')):
        place = Path(shutil.copytree(stored, tmp_path / "copy", dirs_exist_ok=True))
        (place / name).write_text(content)
        with pytest.raises(DataError, match="damaged or of another version"):
            Collection.open(place)
        assert "collection.json" in verify_collection(place)[0]


def test_parts_of_different_collections_are_refused(
    stored: Path, toy_model: HashModel, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    toy_model.save(place / "model")
    with pytest.raises(DataError, match="is of 32 bits, its model of 16, its items of 32"):
        Collection.open(place)


def test_methods_without_centers_know_no_labels(toy_dataset: Dataset, tmp_path: Path) -> None:
    model = train(toy_dataset, config=toy_config(method="lsh"))
    model.save(tmp_path / "run")
    packed = pack(model.encode_features(toy_dataset.features))  # type: ignore[arg-type]
    with Collection.create(tmp_path / "index", tmp_path / "run") as collection:
        collection.add_codes(packed, [f"item {row:03d}" for row in range(len(packed))])
        answer = collection.by_id("item 000", k=3)
        assert answer.labels == []
        assert [found.path for found in answer.found] == [None] * 3
        with pytest.raises(ConfigError, match="method 'lsh' has no hash centers"):
            collection.by_labels({"cat": 1})
        with pytest.raises(ConfigError, match="trained on features and has no backbone"):
            collection.by_image(b"")
        with pytest.raises(InputError, match="the item 'item 000' has no image"):
            collection.image("item 000")
