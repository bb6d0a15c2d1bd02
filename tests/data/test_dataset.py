from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import Dataset, Splits, open_dataset

SPLITS = Splits(np.array([1, 2]), np.array([0]), np.array([1, 2]))
LABELS = np.array([[True, False], [False, True], [True, True]])


def image_folder(root: Path, count: int = 30, extra: str = "") -> Path:
    rows = "".join(f"{i:03}.jpg,{'dog|cat' if i % 2 else 'dog'}\n" for i in range(count))
    (root / "labels.csv").write_text("file_name,labels\n" + rows + extra)
    for i in range(count):
        (root / f"{i:03}.jpg").write_bytes(b"x")
    return root


def message(path: str | Path) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(path)
    return str(caught.value)


def test_open_images_without_splits_draws_them(tmp_path: Path) -> None:
    data = open_dataset(str(image_folder(tmp_path)), seed=5)
    assert (data.kind, data.size, data.name) == ("images", 30, tmp_path.name)
    assert data.classes == ("cat", "dog")
    assert data.features is None
    assert data.image_paths is not None
    assert data.image_paths[29] == tmp_path / "029.jpg"
    assert data.names[0] == "000.jpg"
    assert data.splits.made == "drawn with seed 5"
    assert (data.splits.query.size, data.splits.database.size) == (3, 27)
    assert data.warnings == ()
    assert np.array_equal(data.splits.query, open_dataset(tmp_path, seed=5).splits.query)


def test_a_relative_path_still_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(image_folder(tmp_path))
    assert open_dataset(".").name == tmp_path.name


def test_warnings_of_all_kinds_are_collected(tmp_path: Path) -> None:
    root = image_folder(tmp_path, 4)
    (root / "labels.csv").write_text(
        "file_name,labels,width,split\n000.jpg,dog,1,train|query\n001.jpg,,1,database|query\n002.jpg,,1,\n"
    )
    data = open_dataset(root)
    assert [text.partition(":")[0].replace(str(root), "") for text in data.warnings] == [
        "'/labels.csv'",
        "leak",
        "1 of 2 queries are also in the database, so a query would retrieve itself",
        "1 of 3 rows are in no split and will not be used.",
        "2 of 3 rows carry no label",
    ]
    assert data.splits.made == "column"


def test_missing_path(tmp_path: Path) -> None:
    text = message(tmp_path / "nowhere")
    assert text.startswith(
        f"no such folder: '{tmp_path / 'nowhere'}'. Give a folder of images with labels.csv"
    )


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    text = message(image_folder(tmp_path) / "labels.csv")
    assert text.startswith(f"'{tmp_path / 'labels.csv'}' is a file, not a folder. Give a folder of images")


def test_empty_folder(tmp_path: Path) -> None:
    assert message(tmp_path) == (
        f"'{tmp_path}' is no data set: it is empty. Give a folder of images with "
        "labels.csv (columns file_name and labels, names joined by '|'; or file_name and one column of 0/1 "
        "per class),\n  or a folder of features with features.npy (N, D), labels.npy (N, C) and classes.txt,\n"
        "  or a folder with COCO's json (annotations/instances_*.json, or one json file beside the images),\n"
        "  or a Hugging Face imagefolder (metadata.csv or metadata.jsonl with file_name and labels),\n"
        "  or a parquet file, or a folder of them, as the library datasets writes them (image, labels),\n"
        "  or a folder per class (photos/dog/1.jpg; also photos/train/dog/1.jpg, photos/test/dog/2.jpg)."
    )


def test_a_folder_of_something_else_says_what_it_holds(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "label.csv", "z.jpg"):
        (tmp_path / name).write_text("")
    (tmp_path / "e").mkdir()
    text = message(tmp_path)
    assert "it holds 'a.jpg', 'b.jpg', 'c.jpg', 'd.jpg', 'e/' and 2 more" in text
    assert "(rename 'label.csv' to 'labels.csv'?)" in text


def test_both_layouts_in_one_folder(tmp_path: Path) -> None:
    np.save(image_folder(tmp_path) / "features.npy", np.zeros((30, 2), np.float32))
    assert "holds both labels.csv (images) and features.npy (features): keep them in two" in message(tmp_path)


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    assert "1 row(s) cannot be split" in message(image_folder(tmp_path, 1))


def test_queries_that_are_everything_leave_an_empty_database(tmp_path: Path) -> None:
    root = image_folder(tmp_path, 3)
    np.save(root / "query.npy", np.arange(3))
    np.save(root / "train.npy", np.arange(3))
    assert "the split 'database' is empty: it needs at least one row" in message(root)


# ---------------------------------------------------------------- Dataset


def test_arrays_are_read_only_and_the_callers_stay_writable() -> None:
    labels, areas = LABELS.copy(), np.zeros((3, 2), np.float32)
    data = Dataset("d", Path(), ("a", "b"), labels, SPLITS, features=np.zeros((3, 4)), areas=areas)
    with pytest.raises(ValueError, match="read-only"):
        data.labels[0, 0] = False
    assert data.areas is not None
    with pytest.raises(ValueError, match="read-only"):
        data.areas[0, 0] = 1
    labels[0, 0] = False
    areas[0, 0] = 1


def test_names_default_to_row_numbers() -> None:
    data = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, features=np.zeros((3, 4)))
    assert data.names == ("0", "1", "2")


def test_features_win_where_there_are_images_too() -> None:
    paths = tuple(Path(f"{i}.jpg") for i in range(3))
    images = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, image_paths=paths)
    both = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, np.zeros((3, 4)), paths)
    assert (images.kind, both.kind) == ("images", "features")


def test_with_splits() -> None:
    data = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, features=np.zeros((3, 4)))
    other = data.with_splits(Splits(np.array([0]), np.array([1]), np.array([0, 2])))
    assert other.splits.train.tolist() == [0]
    assert data.splits.train.tolist() == [1, 2]
    assert other.names == data.names
    with pytest.raises(DataError, match="the split 'query' points outside the data"):
        data.with_splits(Splits(np.array([0]), np.array([3]), np.array([0])))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"labels": LABELS.astype(int)}, "labels must be (N, C) bool, got int64 (3, 2)."),
        ({"labels": LABELS[0]}, "labels must be (N, C) bool, got bool (2,)."),
        ({"classes": ("a",)}, "1 classes for 2 label columns."),
        ({"features": None}, "a data set needs features or image paths."),
        ({"features": np.zeros((2, 4))}, "features has 2 entries for 3 rows of labels."),
        ({"names": ("x",)}, "names has 1 entries for 3 rows of labels."),
        ({"image_paths": (Path("x"),)}, "image_paths has 1 entries for 3 rows of labels."),
        ({"areas": np.zeros((3, 1), np.float32)}, "areas has shape (3, 1), labels (3, 2)."),
    ],
)
def test_fields_must_agree(change: dict[str, object], text: str) -> None:
    fields: dict[str, object] = {
        "name": "d",
        "root": Path(),
        "classes": ("a", "b"),
        "labels": LABELS,
        "splits": SPLITS,
        "features": np.zeros((3, 4)),
    }
    with pytest.raises(DataError) as caught:
        Dataset(**{**fields, **change})  # type: ignore[arg-type]
    assert str(caught.value) == text
