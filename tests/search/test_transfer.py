from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.core.errors import DataError, InputError
from centerhash.core.files import read_npz, write_npz
from centerhash.encoding.code_files import encode_to_file, evaluate_codes, read_code_file
from centerhash.model import HashModel
from centerhash.search import Added, Collection
from centerhash.search.transfer import export_codes, given_labels, import_codes
from tests.toys import CLASSES, separable


@pytest.fixture
def index(feature_run: Path, tmp_path: Path) -> Iterator[Collection]:
    """An empty collection of a model of features."""
    with Collection.create(tmp_path / "index", feature_run) as made:
        yield made


def test_codes_of_a_data_set_come_with_their_labels(
    index: Collection, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "codes.npz"
    encode_to_file(HashModel.load(feature_run), [str(feature_folder)], file)
    assert import_codes(index, file) == Added(160, 0, {})
    assert import_codes(index, file) == Added(0, 160, {})
    _, labels = separable(160)
    for row in (0, 7, 159):
        assert index.get(str(row)).labels == tuple(CLASSES[j] for j in np.flatnonzero(labels[row]))
    found = index.by_labels({"cat": 1}, k=20).found
    assert np.mean(["cat" in row.labels for row in found]) > 0.9


def test_codes_without_names_are_called_after_their_file(index: Collection, tmp_path: Path) -> None:
    packed = pack(index.model.encode_features(separable(3)[0]))
    write_npz(tmp_path / "today.npz", {"packed": packed, "bits": np.array(16)})
    assert import_codes(index, tmp_path / "today.npz").added == 3
    assert list(index.index.ids()) == ["today-0", "today-1", "today-2"]
    assert index.get("today-1").labels == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packed": None}, "holds bits: it needs `packed` and `bits`"),
        ({"packed": np.uint8(3)}, r"`packed` must be \(N, 2\), got shape \(\)"),
        ({"bits": np.array(32)}, "holds codes of 32 bits, the collection of 16"),
        ({"bits": np.array("many")}, "`bits` must be one whole number, got <U4"),
        ({"names": np.array(["one"])}, r"names of shape \(1,\) do not fit codes of shape \(3, 2\)"),
        ({"labels": np.ones((3, 2), bool)}, r"labels of shape \(3, 2\) do not fit 3 codes and 6 classes"),
        ({"names": np.array(["a", "b", "a"])}, "the id 'a' comes twice"),
        ({"names": np.array(["a", "", "c"])}, "a string id has 1 to 512 bytes, got 0"),
    ],
)
def test_code_files_that_are_refused(
    index: Collection, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arrays = {"packed": np.zeros((3, 2), np.uint8), "bits": np.array(16), **changes}
    write_npz(tmp_path / "codes.npz", {name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(InputError, match=message):
        import_codes(index, tmp_path / "codes.npz")
    assert len(index) == 0


def test_what_is_exported_can_be_imported_and_evaluated(
    index: Collection, feature_run: Path, tmp_path: Path
) -> None:
    features, labels = separable(30, seed=4)
    packed = pack(index.model.encode_features(features))
    names = [tuple(CLASSES[j] for j in np.flatnonzero(row)) for row in labels]
    names[3] = (*names[3], "not a class")
    ids = [f"{row:02d}" for row in range(30)]
    index.add_codes(packed, ids, names)
    file = tmp_path / "out.npz"
    assert export_codes(index, file) == 30
    arrays = read_npz(file)
    assert np.array_equal(arrays["packed"], packed)
    assert arrays["names"].tolist() == ids
    assert arrays["classes"].tolist() == [*CLASSES, "not a class"]
    assert np.array_equal(arrays["labels"][:, :6], labels)
    with Collection.create(tmp_path / "copy", feature_run) as copy:
        import_codes(copy, file)
        assert [(item.id, item.labels) for item in copy.items()] == list(zip(ids, names, strict=True))
    both = (read_code_file(file), read_code_file(file))
    assert evaluate_codes(both).queries == 30


def test_codes_ids_and_labels_must_fit(index: Collection) -> None:
    packed = np.zeros((3, 2), np.uint8)
    with pytest.raises(InputError, match="3 codes, 2 ids and 2 labels do not fit"):
        index.add_codes(packed, ["a", "b"])
    with pytest.raises(InputError, match="3 codes, 3 ids and 1 labels do not fit"):
        index.add_codes(packed, ["a", "b", "c"], [("cat",)])


def test_an_empty_collection_is_exported(index: Collection, tmp_path: Path) -> None:
    assert export_codes(index, tmp_path / "out.npz") == 0
    assert import_codes(index, tmp_path / "out.npz") == Added(0, 0, {})


def test_given_labels_are_those_of_folders_with_labels_csv(scene_folder: Path, tmp_path: Path) -> None:
    given = given_labels([scene_folder, tmp_path, "no/such/folder"])
    assert len(given) == 40
    line = (scene_folder / "labels.csv").read_text().splitlines()[1].split(",")
    assert sorted(given[scene_folder / line[0]]) == sorted(line[1].split("|"))
    (tmp_path / "labels.csv").write_text("file_name,labels\nnone.jpg,dog\n")
    with pytest.raises(DataError, match="1 of 1 images of"):
        given_labels([tmp_path])
