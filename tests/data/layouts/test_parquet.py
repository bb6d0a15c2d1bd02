from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from centerhash.core.errors import DataError, ImageError
from centerhash.data import content_key, list_images, load_image, open_dataset
from centerhash.data.layouts.contents import Contents
from centerhash.data.layouts.parquet import read_parquet, stored_image
from tests.own_images import CLASSES, described, items, parquet_table, png

NAMES = {"names": ["cat", "dog"], "_type": "ClassLabel"}
IMAGE = {"_type": "Image"}


def write(
    path: Path, columns: Mapping[str, Any], features: Mapping[str, Any] | None = None, group: int = 2
) -> Path:
    table = pa.table(dict(columns))
    if features is not None:
        table = table.replace_schema_metadata(described(features))
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=group)
    return path


def pictures(count: int = 3) -> list[dict[str, Any]]:
    return [{"bytes": png(row), "path": f"{row}.png"} for row in range(count)]


def read(
    root: Path, labels: Any, features: Mapping[str, Any] | None = None, column: str = "labels"
) -> Contents:
    return read_parquet(write(root / "x.parquet", {"image": pictures(), column: labels}, features))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("labels", "features", "column"),
    [
        ([["cat", "dog"], ["cat"], []], None, "labels"),
        ([[0, 1], [0], []], {"labels": {"feature": NAMES, "_type": "Sequence"}}, "labels"),
        ([[0, 1], [0], []], {"labels": {"feature": NAMES, "_type": "List"}}, "labels"),
        ([[0, 1], [0], []], {"labels": [NAMES]}, "labels"),
        (
            [{"category": [0, 1]}, {"category": [0]}, {"category": []}],
            {"objects": {"feature": {"bbox": {}, "category": NAMES}, "_type": "Sequence"}},
            "objects",
        ),
        (
            [[{"category": 0}, {"category": 1}], [{"category": 0}], []],
            {"objects": {"feature": {"category": NAMES}, "_type": "List"}},
            "objects",
        ),
        ([[0, 1], [0], []], {"tags": {"feature": NAMES, "_type": "Sequence"}}, "tags"),
    ],
)
def test_labels(tmp_path: Path, labels: Any, features: Mapping[str, Any] | None, column: str) -> None:
    folder = read(tmp_path, labels, features, column)
    assert folder.classes == ("cat", "dog")
    assert folder.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert folder.names == ("0.png", "1.png", "2.png")
    assert folder.paths == tuple(tmp_path / "x.parquet" / str(row) for row in range(3))


@pytest.mark.parametrize(
    ("labels", "features"), [([1, 0, -1], {"label": NAMES}), (["dog", "cat", None], None)]
)
def test_one_label_per_image(tmp_path: Path, labels: Any, features: Mapping[str, Any] | None) -> None:
    folder = read(tmp_path, labels, features, "label")
    assert folder.labels.astype(int).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_classes_txt_names_the_numbers_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", {"image": pictures(), "label": [0, 1, 1]})
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    assert read_parquet(tmp_path).classes == ("ant", "bee")


def test_a_description_that_makes_no_sense_is_left_alone(tmp_path: Path) -> None:
    table = pa.table({"image": pictures(), "labels": ["a", "b", "c"]})
    for text in ("{", "[]", '{"info": {"features": 3}}', '{"info": 3}'):
        parquet.write_table(table.replace_schema_metadata({"huggingface": text}), tmp_path / "x.parquet")
        assert read_parquet(tmp_path / "x.parquet").classes == ("a", "b", "c")


def test_the_column_that_is_described_as_images_may_have_any_name(tmp_path: Path) -> None:
    file = write(
        tmp_path / "x.parquet", {"img": pictures(), "label": [0, 1, 0]}, {"img": IMAGE, "label": NAMES}
    )
    folder = read_parquet(file)
    assert load_image(folder.paths[2]).size == (32, 32)


def test_a_column_of_plain_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", {"image": [png(row) for row in range(3)], "label": ["a", "b", "a"]})
    folder = read_parquet(file)
    assert folder.names == ("x.parquet/0", "x.parquet/1", "x.parquet/2")
    assert stored_image(folder.paths[1]) == png(1)


# ---------------------------------------------------------------- files and splits


def test_one_file_is_a_data_set(tmp_path: Path) -> None:
    parquet.write_table(parquet_table(items(20)), tmp_path / "photos.parquet")
    data = open_dataset(tmp_path / "photos.parquet", seed=1)
    assert (data.name, data.size, data.classes) == ("photos", 20, CLASSES)
    assert data.splits.made == "drawn with seed 1"


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (("train.parquet", "test.parquet"), {"train": [3, 4, 5], "query": [0, 1, 2]}),
        (
            ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001-abc.parquet"),
            {"train": [0, 1, 2], "query": [3, 4, 5]},
        ),
        (("train/0000.parquet", "test/0000.parquet"), {"train": [3, 4, 5], "query": [0, 1, 2]}),
        (("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"), {}),
        (("a.parquet", "b.parquet"), {}),
    ],
)
def test_splits_by_name(tmp_path: Path, files: tuple[str, ...], splits: dict[str, list[int]]) -> None:
    for name in files:
        write(tmp_path / name, {"image": pictures(), "label": ["a", "b", "c"]})
    folder = read_parquet(tmp_path)
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == splits
    assert set(folder.names) == {f"{name}/{row}" for name in files for row in range(3)}, "paths repeat"


def test_files_that_name_their_classes_differently(tmp_path: Path) -> None:
    other = {"names": ["dog", "cat"], "_type": "ClassLabel"}
    write(tmp_path / "train.parquet", {"image": pictures(), "label": [0, 1, 1]}, {"label": NAMES})
    write(tmp_path / "test.parquet", {"image": pictures(), "label": [0, 1, 1]}, {"label": other})
    with pytest.raises(DataError, match=r"test.parquet' and .*train.parquet' name their classes differently"):
        read_parquet(tmp_path)


# ---------------------------------------------------------------- image bytes


def test_images_come_in_any_order_and_from_threads(tmp_path: Path) -> None:
    rows = items(75)
    parquet.write_table(parquet_table(rows), tmp_path / "x.parquet", row_group_size=40)
    wanted = [hashlib.sha256(png(row)).hexdigest() for row in range(75)]
    paths = [tmp_path / "x.parquet" / str(row) for row in range(75)]
    assert [content_key(path) for path in paths] == wanted
    assert [content_key(path) for path in paths[::-1]] == wanted[::-1]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(content_key, paths)) == wanted


def test_few_images_are_kept_in_memory(tmp_path: Path) -> None:
    from centerhash.data.layouts import parquet as module

    parquet.write_table(parquet_table(items(400)), tmp_path / "x.parquet", row_group_size=400)
    for row in range(400):
        stored_image(tmp_path / "x.parquet" / str(row))
    status = (tmp_path / "x.parquet").stat()
    opened = module._stored_images(tmp_path / "x.parquet", status.st_mtime_ns, status.st_size)
    kept = sum(map(len, opened._blocks.values()))
    assert 0 < kept <= module._BLOCK * module._KEPT_BLOCKS < 400


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    for row in (3, 4):
        write(tmp_path / "x.parquet", {"image": [{"bytes": png(row)}] * row, "label": ["a"] * row})
        assert stored_image(tmp_path / "x.parquet" / "0") == png(row)


def test_an_image_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", {"image": pictures(), "label": ["a", "b", "c"]})
    path = tmp_path / "x.parquet" / "2"
    assert list_images([str(path)]) == [path]
    assert load_image(str(path)).size == (32, 32)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"bytes": b"no picture", "path": "a"}, "not an image of a known format"),
        ({"bytes": b"", "path": "a"}, "0 bytes"),
        ({"bytes": None, "path": "a"}, "no image bytes"),
        (None, "no image bytes"),
        ({"bytes": png(0)[:400], "path": "a"}, ""),
    ],
)
def test_bytes_that_are_no_image(tmp_path: Path, entry: Any, text: str) -> None:
    file = write(tmp_path / "x.parquet", {"image": [*pictures(1), entry], "label": ["a", "b"]})
    with pytest.raises(ImageError, match=rf"x\.parquet/1': .*{text}"):
        load_image(file / "1")
    assert load_image(file / "0").size == (32, 32)


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", {"image": pictures(), "label": ["a", "b", "c"]})
    with pytest.raises(ImageError, match=r"x.parquet/3': the file has 3 rows"):
        load_image(file / "3")
    with pytest.raises(ImageError):
        load_image(file / "three")


def test_a_damaged_block_is_an_error_of_its_images(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write(file, {"image": [png(row) for row in range(4)], "label": list("abab")})
    start = parquet.ParquetFile(file).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + 60] = b"\xff" * 60
    file.write_bytes(data)
    for _ in range(2):
        assert load_image(file / "1").size == (32, 32)
        with pytest.raises(ImageError, match=r"x\.parquet/2': the parquet file is damaged"):
            load_image(file / "2")


# ---------------------------------------------------------------- malformed files


@pytest.mark.parametrize(
    ("columns", "features", "words"),
    [
        ({"images": pictures(), "label": [0, 1, 1]}, None, "no column 'image'; .*'images'"),
        ({"image": pictures(), "lable": [0, 1, 1]}, None, "no column 'labels'; .*'lable'"),
        (
            {"image": pictures(), "fine": [0, 1, 1], "coarse": [0, 0, 0]},
            {"fine": NAMES, "coarse": NAMES},
            "several columns of classes, fine, coarse",
        ),
        ({"image": ["a.jpg", "b.jpg"], "label": [0, 1]}, None, "the column 'image' holds string"),
        ({"image": pictures(), "label": [0.5, 1.0, 2.0]}, None, "x.parquet/0': the label 0.5"),
        (
            {"image": pictures(), "label": [0, 1, 7]},
            {"label": NAMES},
            "x.parquet/2': class number 7.*2 classes",
        ),
    ],
)
def test_bad_columns(tmp_path: Path, columns: Any, features: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_parquet(write(tmp_path / "x.parquet", columns, features))


def test_a_file_without_rows(tmp_path: Path) -> None:
    kind = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    parquet.write_table(kind.empty_table(), tmp_path / "x.parquet")
    with pytest.raises(DataError):
        read_parquet(tmp_path)


def test_files_that_are_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"x.parquet' is no parquet file, or a damaged one: "):
        open_dataset(tmp_path)
    with pytest.raises(ImageError):
        load_image(tmp_path / "x.parquet" / "0")


def test_a_small_file_of_very_many_rows_is_refused(tmp_path: Path) -> None:
    """All rows have the same label and no image, so they take 14 kilobytes."""
    rows = 3_000_000
    labels = pa.DictionaryArray.from_arrays(pa.array(bytes(rows), pa.int8()), ["dog"])
    file = write(tmp_path / "a.parquet", {"image": pa.nulls(rows, pa.binary()), "labels": labels}, group=rows)
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError) as caught:
        read_parquet(file)
    assert "the labels of its 3,000,000 rows would take 1.8 GB" in str(caught.value)


def test_a_long_label_of_many_rows_is_kept_once_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["x" * 10_000] * 600
    images = pa.nulls(len(labels), pa.binary())
    file = write(tmp_path / "a.parquet", {"image": images, "labels": labels}, group=len(labels))
    assert read_parquet(file).classes == ("x" * 10_000,)
    monkeypatch.setattr("centerhash.core.files.ALWAYS", 5_000_000)
    monkeypatch.setattr("centerhash.core.files.RATIO", 1)
    with pytest.raises(DataError, match="the labels of its 600 rows would take"):
        read_parquet(file)
