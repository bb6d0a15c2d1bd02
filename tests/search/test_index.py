from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.codes import hamming, pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data import Dataset, content_key
from centerhash.model.model import HashModel
from centerhash.search import Index, Result, verify_index
from centerhash.training.run import train
from tests.toys import noise_image, toy_config, write_images

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    return sorted((scene_folder / "images").iterdir())[:14]


@pytest.fixture(scope="module")
def stored(image_run: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of fourteen scenes with predicted labels; not to be changed."""
    folder = tmp_path_factory.mktemp("indexes") / "scenes"
    with Index.create(folder, image_run) as made:
        made.add(pictures)
    return folder


@pytest.fixture
def opened(stored: Path) -> Iterator[Index]:
    with Index.open(stored, read_only=True) as index:
        yield index


def id_of(path: Path) -> str:
    return content_key(path)[:16]


def expected_order(
    opened: Index, code: np.ndarray, visual: np.ndarray | None = None, factor: float = 0.1
) -> list[tuple[int, str]]:
    """All items by distance to a code (K,), with a part of that to a visual code, then by id, one by one."""
    rows = []
    for item in opened.items():
        distance = int(hamming(code[None], unpack(item.code[None], opened.model.bits))[0, 0])
        look = 0
        if visual is not None and item.visual is not None:
            look = int(hamming(visual[None], unpack(item.visual[None], 128))[0, 0])
        rows.append((round(distance + factor * look, 9), distance, str(item.id)))
    return [row[1:] for row in sorted(rows)]


def codes_of(opened: Index, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The semantic and the visual code of an image."""
    features = opened.model.features_of([path], device="cpu")
    return opened.model.encode_features(features)[0], opened.model.visual_codes(features)[0]


def test_items_are_the_images_by_content(opened: Index, pictures: list[Path]) -> None:
    assert len(opened) == 14
    assert list(opened.store.ids()) == sorted(map(id_of, pictures))
    codes, labels = (
        opened.model.encode(pictures, device="cpu"),
        opened.model.features_of(pictures, device="cpu"),
    )
    predicted = opened.model.predict_labels(labels)
    for path, code, row in zip(pictures, codes, predicted, strict=True):
        item = opened.store.get([id_of(path)])[0]
        assert np.array_equal(item.code, pack(code[None])[0])
        assert item.path == str(path.resolve())
        assert set(item.labels) == {opened.model.classes[j] for j in np.flatnonzero(row)}
        assert opened.image(id_of(path)) == path.resolve()


def pairs(results: Sequence[Result]) -> list[tuple[int, str]]:
    return [(row.distance, row.id) for row in results]


def test_search_by_an_image(opened: Index, pictures: list[Path]) -> None:
    code, visual = codes_of(opened, pictures[0])
    results = opened.search(pictures[0], k=14)
    assert pairs(results) == expected_order(opened, code, visual)
    assert pairs(opened.search(pictures[0], k=14, by="meaning")) == expected_order(opened, code)
    looks = opened.search(pictures[0], k=14, by="look")
    assert [row.look for row in looks] == sorted(row.look or 0 for row in results)
    assert (looks[0].id, looks[0].look) == (results[0].id, 0)
    assert (results[0].id, results[0].path) == (id_of(pictures[0]), str(pictures[0].resolve()))
    assert np.array_equal(results.code, code)
    assert sum(row.weight for row in results.labels) == pytest.approx(1, abs=1e-5)
    assert {row.label for row in results.labels} == set(results[0].labels)
    for same in (str(pictures[0]), pictures[0].read_bytes()):
        assert pairs(opened.search(same, k=3)) == pairs(results[:3])


def test_an_image_in_memory_is_the_same_as_its_file(opened: Index, tmp_path: Path) -> None:
    image = noise_image(seed=3)
    image.save(tmp_path / "image.png")
    expected = opened.search(tmp_path / "image.png")
    grey, transparent = image.convert("L"), image.convert("RGBA")
    for same in (image, np.asarray(image), transparent, Image.fromarray(np.asarray(image))):
        assert np.array_equal(opened.search(same).code, expected.code)
    assert np.array_equal(opened.search(grey).code, opened.search(np.asarray(grey)).code)
    assert len(opened.search(image.convert("CMYK"))) == 10


def test_search_by_an_id_leaves_the_item_itself_out(opened: Index, pictures: list[Path]) -> None:
    own = id_of(pictures[3])
    code, visual = codes_of(opened, pictures[3])
    others = [pair for pair in expected_order(opened, code, visual) if pair[1] != own]
    for k in (1, 5, 13, 100):
        assert pairs(opened.search(id=own, k=k)) == others[:k]
    assert {row.label for row in opened.search(id=own).labels} == set(opened.get(own).labels)


def test_search_by_labels(opened: Index) -> None:
    classes, centers = opened.model.classes, opened.model.centers.numpy()
    results = opened.search(labels={classes[2]: 5}, k=14, by="meaning")
    assert pairs(results) == expected_order(opened, centers[2].astype(np.int8))
    name = next(iter(opened.labels()))
    present = [(row.presence or {}).get(name, 0.0) for row in opened.search(labels=[name], k=14)]
    assert present == sorted(present, reverse=True)
    assert present[0] > 0
    assert [(row.label, row.weight, row.distance) for row in results.labels] == [(classes[2], 1.0, 0)]
    two = opened.search(labels={classes[0]: 1, classes[1]: 1.0})
    for same in ([classes[0], classes[1]], (classes[1], classes[0]), f"{classes[0]}:2, {classes[1]}:2"):
        assert np.array_equal(opened.search(labels=same).code, two.code)


def test_label_filter_and_radius(opened: Index, pictures: list[Path]) -> None:
    counts = opened.labels()
    name = min(counts, key=lambda label: (counts[label], label))
    results = opened.search(pictures[0], k=14, having=[name])
    assert len(results) == counts[name]
    assert all(name in row.labels for row in results)
    assert pairs(opened.search(pictures[0], k=14, having=name)) == pairs(results)
    assert len(opened.search(pictures[0], having=["no such label"])) == 0
    whole = opened.search(pictures[0], k=14)
    radius = whole[5].distance
    near = opened.search(pictures[0], k=14, within=radius)
    assert list(near) == [row for row in whole if row.distance <= radius]
    assert tuple(opened.search(pictures[0], k=2, within=radius)) == near[:2]
    own = id_of(pictures[0])
    assert list(opened.search(id=own, k=14, within=radius)) == [row for row in near if row.id != own]


def test_filters_by_what_is_not_there_and_by_folder(opened: Index, pictures: list[Path]) -> None:
    counts = opened.labels()
    name = max(counts, key=lambda label: (counts[label], label))
    others = opened.search(pictures[0], k=14, without=name.upper())
    assert len(others) == 14 - counts[name]
    assert not any(name in row.labels for row in others)
    assert len(opened.search(pictures[0], k=14, having=name, without=name)) == 0
    folder = pictures[0].parent
    for under in (folder, f"{folder}/", folder.parent, Path("/")):
        assert len(opened.search(pictures[0], k=14, under=under)) == 14
    for under in (folder / "nothing", str(folder)[:-1]):
        assert len(opened.search(pictures[0], k=14, under=under)) == 0


def test_uploads_lie_under_the_index(image_run: Path, pictures: list[Path], tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", image_run) as made:
        made.add_bytes(pictures[0].read_bytes())
        assert len(made.search(pictures[0], under=tmp_path / "index")) == 1
        assert len(made.search(pictures[0], under=pictures[0].parent)) == 0


def test_items_without_looks_are_searched_by_what_they_have(
    image_run: Path, pictures: list[Path], tmp_path: Path
) -> None:
    with Index.create(tmp_path / "index", image_run) as made:
        made.add(pictures[:2])
        known = made.store.get([id_of(pictures[0])])[0]
        made.add_codes(known.code[None], ["imported"], [["person"]])
        first, second, _ = made.search(pictures[0])
        assert [(first.id, first.look), (second.id, second.look)] == [(str(known.id), 0), ("imported", None)]
        assert second.presence is None
        assert "imported" in [row.id for row in made.search(labels="person")]
        assert "imported" not in [row.id for row in made.search(pictures[0], by="look")]
        assert [row.id for row in made.search(id="imported", k=1)] == [known.id]
        with pytest.raises(InputError):
            made.search(id="imported", by="look")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"labels": "person", "by": "look"}, "labels have no look"),
        ({"labels": "person", "by": "looks"}, "unknown way to search 'looks'"),
        ({"labels": "person", "under": 7}, "a folder of images is needed"),
        ({}, "exactly one of an image, an id or labels, got none"),
        ({"image": b"", "id": "x"}, "got image and id"),
        ({"labels": "person", "k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"labels": "person", "k": "5"}, "got '5'"),
        ({"labels": "person", "within": -1}, "within must be 0 to 32, the number of bits, got -1"),
        ({"labels": "person", "within": 33}, "got 33"),
        ({"labels": "person", "within": 2.5}, "got 2.5"),
        ({"labels": "person", "having": 7}, "labels of an item are a list"),
        ({"labels": ["persn"]}, "unknown label 'persn'"),
        ({"labels": ["person", "person"]}, "named twice"),
        ({"labels": []}, "no label was named"),
        ({"labels": [3]}, "names with weights"),
        ({"labels": 3}, "names with weights"),
        ({"labels": {3: 0.5}}, "unknown label '3'"),
        ({"labels": {"person": "much"}}, "got 'much'"),
        ({"labels": {"person": None}}, "got None"),
        ({"id": "unknown"}, "no item 'unknown' in the index, which holds 14"),
        ({"id": Path("a.jpg")}, "an id is an integer or a string"),
        ({"image": "none.jpg"}, "no such file"),
        ({"image": b"I am no picture"}, "not an image of a known format"),
        ({"image": ["a.jpg"]}, "got list"),
        ({"image": 7}, "got int"),
        ({"image": np.zeros((4, 4, 3))}, "got float64 of shape"),
        ({"image": np.zeros((4,), np.uint8)}, "got uint8 of shape"),
    ],
)
def test_slips_in_a_question_are_told(opened: Index, question: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        opened.search(**question)
    assert message in str(refused.value)
    assert "--" not in str(refused.value)


def test_an_index_is_told_in_short(opened: Index, stored: Path, pictures: list[Path]) -> None:
    assert repr(opened) == f"Index('{stored}', 14 items, 32 bits, flat)"
    assert id_of(pictures[0]) in opened
    assert "unknown" not in opened
    assert [item.id for item in opened] == sorted(map(id_of, pictures))
    with pytest.raises(InputError):
        opened.image("unknown")
    opened.close()
    assert "closed" in repr(opened)


def test_a_reader_changes_nothing(opened: Index, pictures: list[Path]) -> None:
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


def test_info(opened: Index, stored: Path) -> None:
    facts = opened.info()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["index"] == str(stored)
    assert (facts["store"], facts["size"], facts["bits"]) == ("flat", 14, 32)
    assert (facts["method"], facts["backbone"]) == ("ics-softmax", "efficientnet-lite0")
    assert sum(facts["labels"].values()) == sum(len(item.labels) for item in opened.items())
    assert opened.verify() == verify_index(stored) == []


def test_an_index_stands_on_its_own(stored: Path, pictures: list[Path], tmp_path: Path) -> None:
    """It can be moved, and the run can go: the model is its own."""
    moved = Path(shutil.copytree(stored, tmp_path / "elsewhere"))
    with Index.open(stored, read_only=True) as first, Index.open(moved) as second:
        assert list(second.search(pictures[2])) == list(first.search(pictures[2]))
    assert sorted(entry.name for entry in moved.iterdir()) == ["index.json", "items", "model"]


def test_two_writers_are_refused(stored: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    with Index.open(place) as writer, pytest.raises(InputError):
        Index.open(place)
    assert len(writer.spec.classes) == len(writer.model.classes)
    with Index.open(place), Index.open(place, read_only=True) as reader:
        assert len(reader) == 14


def test_a_reader_refreshes(image_run: Path, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 2)
    Index.create(tmp_path / "index", image_run).close()
    with (
        Index.open(tmp_path / "index") as writer,
        Index.open(tmp_path / "index", read_only=True) as reader,
    ):
        writer.add(paths)
        assert len(reader) == 0
        reader.refresh()
        assert len(reader) == 2


def test_create_refuses_what_is_there(stored: Path, image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is an index already"):
        Index.create(stored, image_run)
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="is not empty"):
            Index.create(place, image_run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    Index.create(tmp_path / "empty", image_run).close()


def test_create_leaves_nothing_half_made(image_run: Path, tmp_path: Path) -> None:
    for store in ("flatt", "flat:here", "milvus", "milvus:", "faiss", "flat?kind=hnsw"):
        with pytest.raises(ConfigError):
            Index.create(tmp_path / "index", image_run, store=store)
        assert list(tmp_path.iterdir()) == [], store
    with pytest.raises(DataError):
        Index.create(tmp_path / "index", tmp_path / "none")
    with pytest.raises(InputError):
        Index.create(tmp_path / "index", 7)  # type: ignore[arg-type]


def test_create_takes_a_model_as_it_is(toy_model: HashModel, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", toy_model) as index:
        assert index.model.classes == toy_model.classes
        assert len(index) == 0
        assert index  # an empty index is no reason to take the other branch


def test_open_refuses_what_is_no_index(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no index \(index.json is missing\)"):
        Index.open(tmp_path)
    with pytest.raises(DataError):
        verify_index(tmp_path / "none")
    for content in ("{", '{"format": 2}'):
        place = Path(shutil.copytree(stored, tmp_path / "copy", dirs_exist_ok=True))
        (place / "index.json").write_text(content)
        with pytest.raises(DataError):
            Index.open(place)
        assert "index.json" in verify_index(place)[0]


def test_an_index_of_before_opens_and_takes_more(stored: Path, tmp_path: Path) -> None:
    """Its spec was called collection.json, and the store the engine."""
    place = Path(shutil.copytree(stored, tmp_path / "old"))
    spec = json.loads((place / "index.json").read_text())
    (place / "index.json").unlink()
    spec["engine"] = spec.pop("store")
    (place / "collection.json").write_text(json.dumps(spec))
    with Index.open(place) as index:
        assert index.info()["store"] == "flat"
        assert index.add(write_images(tmp_path / "more", 1)).added == 1
    assert verify_index(place) == []
    with pytest.raises(ConfigError):
        Index.create(place, place / "model")


def test_parts_of_different_indexes_are_refused(stored: Path, toy_model: HashModel, tmp_path: Path) -> None:
    place = Path(shutil.copytree(stored, tmp_path / "copy"))
    toy_model.save(place / "model")
    with pytest.raises(DataError, match="is of 32 bits, its model of 16, its items of 32"):
        Index.open(place)


def test_methods_without_centers_know_no_labels(toy_dataset: Dataset, tmp_path: Path) -> None:
    model = train(toy_dataset, config=toy_config(method="lsh"))
    model.save(tmp_path / "run")
    packed = pack(model.encode_features(toy_dataset.features))  # type: ignore[arg-type]
    with Index.create(tmp_path / "index", tmp_path / "run") as index:
        index.add_codes(packed, [f"item {row:03d}" for row in range(len(packed))])
        answer = index.search(id="item 000", k=3)
        assert answer.labels == ()
        assert [found.path for found in answer] == [None] * 3
        with pytest.raises(ConfigError):
            index.search(labels={"cat": 1})
        with pytest.raises(ConfigError):
            index.search(b"")
        with pytest.raises(InputError, match="the item 'item 000' has no image"):
            index.image("item 000")
