from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from centerhash.search.adding import given_labels

from centerhash.codes import pack
from centerhash.core.errors import DataError, InputError
from centerhash.core.files import read_npz, write_npz
from centerhash.encoding.bulk import encode_shards, encode_to_file
from centerhash.encoding.code_files import evaluate_files
from centerhash.encoding.shards import read_shards
from centerhash.model.model import HashModel
from centerhash.search import Added, Index, transfer
from centerhash.training.run import train
from tests.toys import CLASSES, feature_dataset, separable, toy_config


@pytest.fixture
def index(feature_run: Path, tmp_path: Path) -> Iterator[Index]:
    """An empty index of a model of features."""
    with Index.create(tmp_path / "index", feature_run) as made:
        yield made


def test_codes_of_a_data_set_come_with_their_labels(
    index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "codes.npz"
    encode_to_file(HashModel.load(feature_run), [str(feature_folder)], file)
    assert index.import_codes(file) == Added(160, 0, {})
    assert index.import_codes(file) == Added(0, 160, {})
    _, labels = separable(160)
    for row in (0, 7, 159):
        assert index.get(str(row)).labels == tuple(CLASSES[j] for j in np.flatnonzero(labels[row]))
    found = list(index.search(labels={"cat": 1}, k=20))
    assert np.mean(["cat" in row.labels for row in found]) > 0.9


def test_codes_without_names_are_called_after_their_file(index: Index, tmp_path: Path) -> None:
    packed = pack(index.model.encode_features(separable(3)[0]))
    write_npz(tmp_path / "today.npz", {"packed": packed, "bits": np.array(16)})
    assert index.import_codes(tmp_path / "today.npz").added == 3
    assert list(index.store.ids()) == ["today-0", "today-1", "today-2"]
    assert index.get("today-1").labels == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packed": None}, "it holds bits, but needs `packed`"),
        ({"packed": np.uint8(3)}, r"must be uint8 of shape \(N, 2\), got uint8 of shape \(\)"),
        (
            {"packed": np.zeros((3, 4), np.uint8), "bits": np.array(32)},
            "holds codes of 32 bits, the index of 16",
        ),
        ({"bits": np.array("many")}, "`bits` must be one whole number, got <U4"),
        ({"names": np.array(["one"])}, r"names of shape \(1,\) do not fit 3 codes"),
        ({"labels": np.ones((3, 2), bool)}, r"labels of shape \(3, 2\) do not fit 6 classes"),
        ({"names": np.array(["a", "b", "a"])}, "the id 'a' comes twice"),
        ({"names": np.array(["a", "", "c"])}, "a string id has 1 to 512 bytes, got 0"),
    ],
)
def test_code_files_that_are_refused(
    index: Index, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arrays = {"packed": np.zeros((3, 2), np.uint8), "bits": np.array(16), **changes}
    write_npz(tmp_path / "codes.npz", {name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(InputError, match=message):
        index.import_codes(tmp_path / "codes.npz")
    assert len(index) == 0


def test_what_is_exported_can_be_imported_and_evaluated(
    index: Index, feature_run: Path, tmp_path: Path
) -> None:
    features, labels = separable(30, seed=4)
    packed = pack(index.model.encode_features(features))
    names = [tuple(CLASSES[j] for j in np.flatnonzero(row)) for row in labels]
    names[3] = (*names[3], "not a class")
    ids = [f"{row:02d}" for row in range(30)]
    index.add_codes(packed, ids, names)
    file = tmp_path / "out.npz"
    assert index.export(file) == 30
    arrays = read_npz(file)
    assert np.array_equal(arrays["packed"], packed)
    assert arrays["names"].tolist() == ids
    assert arrays["classes"].tolist() == [*CLASSES, "not a class"]
    assert np.array_equal(arrays["labels"][:, :6], labels)
    with Index.create(tmp_path / "copy", feature_run) as copy:
        copy.import_codes(file)
        assert [(item.id, item.labels) for item in copy.items()] == list(zip(ids, names, strict=True))
    assert evaluate_files([file, file]).queries == 30


def test_all_parts_are_exported_and_imported(index: Index, feature_run: Path, tmp_path: Path) -> None:
    packed = pack(index.model.encode_features(separable(3)[0]))
    looks = [np.arange(16, dtype=np.uint8), None, np.ones(16, np.uint8)]
    seen = [{"cat": (200, 255), "not a class": (9, 0)}, {}, {"dog": (3, 4)}]
    index.add_codes(packed, "abc", [("not a class",), (), ()], ["/x/a.jpg", None, None], looks, seen)
    index.export(tmp_path / "out.npz")
    with Index.create(tmp_path / "copy", feature_run) as copy:
        copy.import_codes(tmp_path / "out.npz")
        for item, same in zip(index, copy, strict=True):
            assert (item.id, item.labels, item.path, item.seen) == (
                same.id,
                same.labels,
                same.path,
                same.seen,
            )
            assert (item.visual is None) == (same.visual is None)
            assert item.visual is None or np.array_equal(item.visual, same.visual)


def test_codes_ids_and_labels_must_fit(index: Index) -> None:
    packed = np.zeros((3, 2), np.uint8)
    with pytest.raises(InputError, match="3 codes, 2 ids and 2 labels do not fit"):
        index.add_codes(packed, ["a", "b"])
    with pytest.raises(InputError):
        index.add_codes(packed, ["a", "b", "c"], [("cat",)])
    with pytest.raises(InputError):
        index.add_codes(packed[:, :1], ["a", "b", "c"])
    index.add_codes(packed, range(3))
    assert [row.id for row in index.search(id="1")] == ["0", "2"]


def test_an_empty_index_is_exported(index: Index, tmp_path: Path) -> None:
    assert index.export(tmp_path / "out.npz") == 0
    assert index.import_codes(tmp_path / "out.npz") == Added(0, 0, {})


def test_given_labels_are_those_of_folders_with_labels_csv(scene_folder: Path, tmp_path: Path) -> None:
    given = given_labels([scene_folder, tmp_path, "no/such/folder"])
    assert len(given) == 40
    line = (scene_folder / "labels.csv").read_text().splitlines()[1].split(",")
    assert sorted(given[scene_folder / line[0]]) == sorted(line[1].split("|"))
    (tmp_path / "labels.csv").write_text("file_name,labels\nnone.jpg,dog\n")
    with pytest.raises(DataError):
        given_labels([tmp_path])


def test_parts_are_added_once(index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "parts", shard_size=70)
    assert index.import_codes(tmp_path / "parts") == Added(160, 0, {})
    assert index.import_codes(tmp_path / "parts") == Added(0, 160, {})
    items = {str(item.id): item for item in index}
    assert len(items) == 160
    for ids, packed, labels in read_shards(tmp_path / "parts"):
        for id, code, names in zip(ids, packed, labels, strict=True):
            assert items[id].code.tobytes() == code.tobytes()
            assert set(items[id].labels) == set(names)


def test_parts_are_stored_several_at_a_time(
    index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "parts", shard_size=30)
    monkeypatch.setattr(transfer, "_PAGE", 70)
    before = index.store.changes
    assert index.import_codes(tmp_path / "parts") == Added(160, 0, {})
    assert index.store.changes == before + 3  # 60, 60 and 40


def test_an_import_that_was_stopped_goes_on_where_it_was(
    index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "parts", shard_size=30)
    monkeypatch.setattr(transfer, "_PAGE", 70)
    broken = (tmp_path / "parts" / "shard-00004.parquet").read_bytes()
    (tmp_path / "parts" / "shard-00004.parquet").write_bytes(broken[:-9])
    with pytest.raises(DataError, match=r"shard-00004\.parquet' is damaged"):
        index.import_codes(tmp_path / "parts")
    assert len(index) == 60  # what was stored stays, and what was read is not half there
    (tmp_path / "parts" / "shard-00004.parquet").write_bytes(broken)
    assert index.import_codes(tmp_path / "parts") == Added(100, 60, {})


def test_an_id_that_comes_again_in_a_later_part_is_known_by_then(
    index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "parts", shard_size=80)
    first, second = (tmp_path / "parts" / f"shard-0000{number}.parquet" for number in (0, 1))
    second.write_bytes(first.read_bytes())
    assert index.import_codes(tmp_path / "parts") == Added(80, 80, {})


def test_parts_of_another_model_or_unfinished_ones_are_refused(
    index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    train(feature_dataset(), config=toy_config(seed=5, epochs=1)).save(tmp_path / "model")
    encode_shards(tmp_path / "model", [str(feature_folder)], tmp_path / "others")
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "parts", shard_size=70)
    (tmp_path / "parts" / "shard-00001.parquet").unlink()
    with pytest.raises(DataError, match="of another model"):
        index.import_codes(tmp_path / "others")
    with pytest.raises(DataError):
        index.import_codes(tmp_path / "parts")
    assert len(index) == 0
