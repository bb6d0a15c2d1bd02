"""Tables of labels: labels.csv in both forms, metadata.csv and metadata.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.data.layouts.common import Contents
from centerhash.data.layouts.tabular import read_image_folder, read_imagefolder
from tests.toys import refusal

FORM_A = "file_name,labels\na.jpg,dog|cat\nb.jpg,cat\nc.jpg,bird|dog\n"


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"not opened here")


def read(root: Path, text: str | bytes, name: str = "labels.csv", classes: str | None = None) -> Contents:
    fill(root, "a.jpg", "b.jpg", "c.jpg", "sub/ä.jpg", "12:30.jpg")
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return read_image_folder(root) if name == "labels.csv" else read_imagefolder(root)


def lines(*labels: Any, column: str = "labels") -> str:
    rows = [{"file_name": f"{'abc'[row]}.jpg", column: cell} for row, cell in enumerate(labels)]
    return "\n".join(map(json.dumps, rows))


def test_read_image_folder_areas(tmp_path: Path) -> None:
    text = 'file_name,labels,areas,boxes\na.jpg,dog|cat,0.5|0.25,"{""dog"":[[0,0,1,1]]}"\nb.jpg,cat,1,\nc.jpg,,,\n'
    contents = read(tmp_path, text)
    assert contents.areas is not None
    assert contents.areas.dtype == np.float32
    assert contents.areas.tolist() == [[0.25, 0.5], [1.0, 0.0], [0.0, 0.0]]
    assert contents.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]


WINDOWS = b"\xef\xbb\xbf" + FORM_A.replace("\n", "\r\n").encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "names", "classes", "labels"),
    [
        (WINDOWS, "a.jpg b.jpg c.jpg", "bird|cat|dog", "011 010 101"),
        ("file_name , labels\na.jpg , dog | cat\n", "a.jpg", "cat|dog", "11"),
        ("file_name,dog\na.jpg,TRUE\nb.jpg,false\nc.jpg, 1.0 \n", "a.jpg b.jpg c.jpg", "dog", "1 0 1"),
        ("file_name,boxes,bag\na.jpg,1,0\n", "a.jpg", "bag|boxes", "01"),
        ("file_name,labels\n./sub/ä.jpg,vélo\n12:30.jpg,\n", "sub/ä.jpg 12:30.jpg", "vélo", "1 0"),
    ],
)
def test_read_image_folder(tmp_path: Path, text: str | bytes, names: str, classes: str, labels: str) -> None:
    contents = read(tmp_path, text)
    assert contents.names == tuple(names.split())
    assert contents.classes == tuple(classes.split("|"))
    assert contents.labels.astype(int).tolist() == [list(map(int, row)) for row in labels.split()]


@pytest.mark.parametrize(
    ("header", "cell"), [("file_name,labels,split", "dog"), ("file_name,dog,split", "1")]
)
def test_read_image_folder_splits(tmp_path: Path, header: str, cell: str) -> None:
    text = f"{header}\na.jpg,{cell},train|database\nb.jpg,{cell},query\nc.jpg,{cell},database\n"
    contents = read(tmp_path, text)
    assert contents.source == "column"
    splits = {name: rows.tolist() for name, rows in contents.splits.items()}
    assert splits == {"train": [0], "query": [1], "database": [0, 2]}
    (tmp_path / "query.txt").write_text("a.jpg\n")
    assert read(tmp_path, f"{header}\na.jpg,{cell},\nb.jpg,{cell},\n").source == "files"


@pytest.mark.parametrize(
    ("text", "name", "classes"),
    [
        (lines(["dog", "cat"], ["cat"], []), "metadata.jsonl", None),
        (lines("dog|cat", "cat", None), "metadata.jsonl", None),
        (lines([1, 0], [0], []), "metadata.jsonl", "cat\ndog\n"),
        (lines(["1", 0], 0, -1), "metadata.jsonl", "cat\ndog\n"),
        (lines({"category": ["dog", "dog", "cat"]}, {"categories": ["cat"]}, {"category": []}), "metadata.jsonl", None),
        (lines([{"category": "dog"}, {"category": "cat"}], "cat", [], column="objects"), "metadata.jsonl", None),
        (lines(["dog", "cat"], ["cat"], [], column="label"), "metadata.jsonl", None),
        ("file_name,width,labels\na.jpg,9,dog|cat\nb.jpg,9,cat\nc.jpg,9,\n", "metadata.csv", None),
        ('file_name,labels\na.jpg,"[""dog"", ""cat""]"\nb.jpg,cat\nc.jpg,[]\n', "metadata.csv", None),
        ('file_name,labels\na.jpg,"[1, 0]"\nb.jpg,0\nc.jpg,-1\n', "metadata.csv", "cat\ndog\n"),
        ("file_name,labels\na.jpg,1|0\nb.jpg,0\nc.jpg,\n", "metadata.csv", "cat\ndog\n"),
    ],
)  # fmt: skip
def test_read_imagefolder(tmp_path: Path, text: str, name: str, classes: str | None) -> None:
    contents = read(tmp_path, text, name, classes)
    assert contents.classes == ("cat", "dog")
    assert contents.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert contents.names == ("a.jpg", "b.jpg", "c.jpg")


def test_read_imagefolder_splits(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.jpg", "train/sub/2.jpg", "test/1.jpg")
    (tmp_path / "train" / "metadata.csv").write_text("file_name,label\n1.jpg,dog\nsub/2.jpg,cat\n")
    (tmp_path / "test" / "metadata.jsonl").write_text('{"file_name": "1.jpg", "label": "cat"}\n')
    contents = read_imagefolder(tmp_path)
    assert contents.names == ("test/1.jpg", "train/1.jpg", "train/sub/2.jpg")
    assert {name: rows.tolist() for name, rows in contents.splits.items()} == {"train": [1, 2], "query": [0]}
    (tmp_path / "metadata.csv").write_text("file_name,label\ntrain/1.jpg,dog\ntest/1.jpg,cat\n")
    assert read_imagefolder(tmp_path).splits["query"].tolist() == [1]


# ---------------------------------------------------------------- errors

CSV_ERRORS = [
    ("\n\n", "labels.csv"),
    ("file_name,labels\n", "labels.csv"),
    ("file_name,labels\n\na.jpg,dog,x\n", "line 3"),
    ("file_name;labels\na.jpg;dog\n", "file_name"),
    ("file_name,labels,labels\na.jpg,x,y\n", "'labels'"),
    ('file_name,labels\na.jpg,"dog\nb.jpg,cat\n', "line 3"),
    ("file_name,labels\na.jpg,caf\xe9\n".encode("latin-1"), "byte 0xe9 at position 26"),
    ("filename,labels\na.jpg,dog\n", "file_name"),
    ("file_name,split\na.jpg,train\n", "any class"),
    ("file_name,lables\na.jpg,dog|cat\n", "Did you mean 'labels'?"),
    ("file_name,dog,cat\na.jpg,1,0\nb.jpg,0,2\n", "line 3: column 'cat' holds '2'"),
    (",file_name,dog\n0,a.jpg,1\n", "'(no name)'"),
    ("file_name,labels\na.jpg,dog\nb.jpg,dog||cat\n", "line 3"),
    ("file_name,labels\na.jpg,\nb.jpg,\n", "line 2"),
    ("file_name,labels\na.jpg,dog\n ,dog\n", "line 3"),
    ("file_name,labels\na.jpg,dog\n./a.jpg,dog\n", "line 2 and in '"),
    ("file_name,labels\na.jpg,dog\nz.jpg,dog\n", "'z.jpg'"),
    ("file_name,labels,split\na.jpg,dog,train\nb.jpg,dog,test\n", "line 3: unknown split 'test'"),
    *(
        (f"file_name,labels,areas\na.jpg,dog|cat,{areas}\n", "line 2")
        for areas in ("0.5", "", "0.5|big", "0.5|1.5", "0.5|-0.1", "0.5|nan", "0.5|")
    ),
]


@pytest.mark.parametrize(("text", "fault"), CSV_ERRORS)
def test_read_image_folder_error(tmp_path: Path, text: str | bytes, fault: str) -> None:
    assert fault in refusal(read, tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "metadata.jsonl"),
        ('{"file_name": "a.jpg"', "line 1"),
        (lines("dog") + "\n\n[1]", "line 3"),
        ('{"filename": "a.jpg", "labels": []}', "file_name"),
        ('{"file_name": "a.jpg", "lables": []}', "'labels'"),
        ('{"file_name": 3, "labels": []}', "file_name"),
        (lines(True), "True"),
        (lines("[dog]"), "'[dog]'"),
        (lines({"bbox": [], "categry": []}), "'categry'"),
        (lines([], []), "line 1"),
        ('{"file_name": "a.jpg", "labels": ' + "[" * 900 + "]" * 900 + "}", "deep"),
    ],
)
def test_read_imagefolder_error(tmp_path: Path, text: str, fault: str) -> None:
    assert fault in refusal(read, tmp_path, text, "metadata.jsonl")


@pytest.mark.parametrize("label", [2, -2, "9", "9" * 5000, "cta"])
def test_read_imagefolder_unknown_class(tmp_path: Path, label: Any) -> None:
    text = refusal(read, tmp_path, lines("cat", [label]), "metadata.jsonl", classes="cat\ndog\n")
    assert f"line 2: label '{label}'" in text
    assert ("Did you mean 'cat'?" in text) == (label == "cta")
