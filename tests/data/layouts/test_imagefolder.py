from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from centerhash.data.layouts.contents import Contents
from centerhash.data.layouts.tabular import read_imagefolder
from tests.toys import refusal


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"not opened here")


def read(root: Path, text: str, name: str = "metadata.jsonl", classes: str | None = None) -> Contents:
    fill(root, "a.jpg", "b.jpg", "c.jpg")
    (root / name).write_text(text)
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return read_imagefolder(root)


def lines(*labels: Any, column: str = "labels") -> str:
    return "\n".join(
        json.dumps({"file_name": f"{'abc'[row]}.jpg", column: cell}) for row, cell in enumerate(labels)
    )


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        (lines(["dog", "cat"], ["cat"], []), None),
        (lines("dog|cat", "cat", None), None),
        (lines([1, 0], [0], []), "cat\ndog\n"),
        (lines(["1", 0], 0, -1), "cat\ndog\n"),
        (lines({"category": ["dog", "dog", "cat"]}, {"categories": ["cat"]}, {"category": []}), None),
        (lines([{"category": "dog"}, {"category": "cat"}], [{"label": "cat"}], [], column="objects"), None),
        (lines({"bbox": [], "category": [1, 0]}, {"category": [0]}, None, column="objects"), "cat\ndog\n"),
        (lines(["dog", "cat"], ["cat"], [], column="label"), None),
    ],
)
def test_labels_in_jsonl(tmp_path: Path, text: str, classes: str | None) -> None:
    folder = read(tmp_path, text, classes=classes)
    assert folder.classes == ("cat", "dog")
    assert folder.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert folder.names == ("a.jpg", "b.jpg", "c.jpg")
    assert folder.paths == tuple(tmp_path / name for name in folder.names)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (("dog|cat", "cat", ""), None),
        (('"[""dog"", ""cat""]"', "cat", "[]"), None),
        (('"[1, 0]"', "0", "-1"), "cat\ndog\n"),
        (("1|0", "0", ""), "cat\ndog\n"),
    ],
)
def test_labels_in_csv(tmp_path: Path, cells: tuple[str, ...], classes: str | None) -> None:
    text = "file_name,width,labels\n" + "".join(
        f"{'abc'[row]}.jpg,9,{cell}\n" for row, cell in enumerate(cells)
    )
    folder = read(tmp_path, text, "metadata.csv", classes)
    assert folder.classes == ("cat", "dog")
    assert folder.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]


def test_numbers_may_be_names(tmp_path: Path) -> None:
    assert read(tmp_path, lines(10, 2, [2, 0])).classes == ("0", "2", "10")
    folder = read(tmp_path, lines("1", 1, "7"), classes="7\n1\n")
    assert folder.labels.astype(int).tolist() == [[0, 1], [0, 1], [1, 0]]


def test_one_file_per_split(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.jpg", "train/sub/2.jpg", "test/1.jpg")
    (tmp_path / "train" / "metadata.csv").write_text("file_name,label\n1.jpg,dog\nsub/2.jpg,cat\n")
    (tmp_path / "test" / "metadata.jsonl").write_text('{"file_name": "1.jpg", "label": "cat"}\n')
    folder = read_imagefolder(tmp_path)
    assert folder.names == ("test/1.jpg", "train/1.jpg", "train/sub/2.jpg")
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == {"train": [1, 2], "query": [0]}
    assert folder.source == "folders"


def test_one_file_for_split_folders(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.jpg", "test/1.jpg")
    (tmp_path / "metadata.csv").write_text("file_name,label\ntrain/1.jpg,dog\ntest/1.jpg,cat\n")
    assert read_imagefolder(tmp_path).splits["query"].tolist() == [1]


def test_one_file_per_folder(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,labels\na.jpg,dog\n")
    text = refusal(read, tmp_path, lines("dog"))
    assert "holds both metadata.csv and metadata.jsonl: keep one file for the whole folder" in text
    (tmp_path / "metadata.csv").unlink()
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "metadata.csv").write_text("file_name,labels\na.jpg,dog\n")
    assert "holds both metadata.jsonl and test/metadata.csv" in refusal(read, tmp_path, lines("dog"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ('{"file_name": "a.jpg"', "line 1: not valid json"),
        (lines("dog") + "\n\n[1]", "line 3: not a json object"),
        ('{"filename": "a.jpg", "labels": []}', "Did you mean 'filename'? Rename it to 'file_name'."),
        ('{"file_name": "a.jpg", "lables": []}', "Did you mean 'lables'? Rename it to 'labels'."),
        ('{"file_name": "a.jpg"}', "it has: no other."),
        ('{"file_name": 3, "labels": []}', "file_name is 3"),
        ('{"file_name": "../a.jpg", "labels": []}', "leads out of the folder"),
        ('{"file_name": "z.jpg", "labels": "dog"}', "1 of 1 images"),
        (lines("dog") + "\n" + lines("dog"), "described more than once: 'a.jpg'"),
        (lines(True), "the label True"),
        (lines([0.5]), "the label 0.5"),
        (lines("dog||cat"), "an empty label in 'dog||cat'"),
        (lines("[dog]"), "not a json list"),
        (lines({"bbox": [], "categry": []}), "objects need a 'category' each, got bbox, categry."),
        (lines([], []), "line 1 and all others carry no label"),
    ],
)
def test_malformed_jsonl(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(read, tmp_path, text)


@pytest.mark.parametrize("text", ["", "file,labels\na.jpg,dog\n", "file_name,labelz\na.jpg,dog\n"])
def test_malformed_csv(tmp_path: Path, text: str) -> None:
    assert "metadata.csv'" in refusal(read, tmp_path, text, "metadata.csv")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2, "line 2: class number 2, but classes.txt names 2 classes, 0 to 1."),
        (-2, "class number -2"),
        ("9", "class number 9"),
        ("cta", "label 'cta' is not in classes.txt. Did you mean 'cat'?"),
    ],
)
def test_labels_outside_classes_txt(tmp_path: Path, label: Any, expected: str) -> None:
    assert expected in refusal(read, tmp_path, lines("cat", [label]), classes="cat\ndog\n")
