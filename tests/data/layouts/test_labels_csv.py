from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.data.layouts.contents import Contents
from centerhash.data.layouts.tabular import read_image_folder
from tests.toys import refusal

FORM_A = "file_name,labels\na.jpg,dog|cat\nb.jpg,cat\nc.jpg,bird|dog\n"
FORM_B = "file_name,dog,cat,bird\na.jpg,1,1,0\nb.jpg,0,1,0\nc.jpg,1,0,1\n"


def read(
    root: Path, text: str | bytes, files: str = "a.jpg b.jpg c.jpg", classes: str | None = None
) -> Contents:
    (root / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    for name in files.split():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not opened here")
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return read_image_folder(root)


# ---------------------------------------------------------------- what is accepted


@pytest.mark.parametrize("text", [FORM_A, FORM_B])
def test_both_forms_say_the_same_with_sorted_classes(tmp_path: Path, text: str) -> None:
    folder = read(tmp_path, text)
    assert folder.classes == ("bird", "cat", "dog")
    assert folder.labels.dtype == np.bool_
    assert folder.labels.astype(int).tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 1]]
    assert folder.names == ("a.jpg", "b.jpg", "c.jpg")
    assert folder.paths == tuple(tmp_path / name for name in folder.names)
    assert (folder.areas, folder.splits, folder.warnings) == (None, {}, ())


@pytest.mark.parametrize("text", [FORM_A, FORM_B])
def test_classes_txt_fixes_the_order(tmp_path: Path, text: str) -> None:
    folder = read(tmp_path, text, classes="dog\nbird\ncat\n")
    assert folder.classes == ("dog", "bird", "cat")
    assert folder.labels.astype(int).tolist() == [[1, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_areas_follow_the_order_of_the_labels(tmp_path: Path) -> None:
    text = 'file_name,labels,areas,boxes\na.jpg,dog|cat,0.5|0.25,"{""dog"":[[0,0,1,1]]}"\nb.jpg,cat,1,\nc.jpg,,,\n'
    folder = read(tmp_path, text)
    assert folder.areas is not None
    assert folder.areas.dtype == np.float32
    assert folder.areas.tolist() == [[0.25, 0.5], [1.0, 0.0], [0.0, 0.0]]
    assert folder.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert folder.warnings == ()


@pytest.mark.parametrize(
    ("text", "names", "classes", "labels"),
    [
        (
            b"\xef\xbb\xbf" + FORM_A.replace("\n", "\r\n").encode() + b"\r\n\r\n",
            "abc",
            "bird|cat|dog",
            "011 010 101",
        ),
        ("file_name , labels\na.jpg , dog | cat\n", "a", "cat|dog", "11"),
        ("file_name,dog\na.jpg,TRUE\nb.jpg,false\nc.jpg, 1.0 \n", "abc", "dog", "1 0 1"),
        ("file_name,labels\na.jpg,dog\nb.jpg,\n", "ab", "dog", "1 0"),
        ("file_name,boxes,bag\na.jpg,1,0\n", "a", "bag|boxes", "01"),  # columns of the other form
        ("file_name,labels\n./a.jpg,vélo\n", "a", "vélo", "1"),
    ],
)
def test_what_spreadsheets_write(
    tmp_path: Path, text: str | bytes, names: str, classes: str, labels: str
) -> None:
    folder = read(tmp_path, text)
    assert folder.names == tuple(f"{name}.jpg" for name in names)
    assert folder.classes == tuple(classes.split("|"))
    assert folder.labels.astype(int).tolist() == [list(map(int, row)) for row in labels.split()]


def test_subfolders_and_odd_names(tmp_path: Path) -> None:
    text = "file_name,labels\nsub/ä.jpg,vélo\n12:30.jpg,vélo\n"
    assert read(tmp_path, text, "sub/ä.jpg 12:30.jpg").names == ("sub/ä.jpg", "12:30.jpg")


@pytest.mark.parametrize(
    ("text", "classes", "ignored"),
    [
        ("file_name,width,labels,license,\na.jpg,640,dog,4,x\n", None, "'width', 'license', '(no name)'"),
        ("file_name,dog,width\na.jpg,1,640\n", "dog\n", "'width'"),
        ("file_name,labels,label\na.jpg,dog,7\n", None, "'label'"),
    ],
)
def test_other_columns_are_ignored_with_a_warning(
    tmp_path: Path, text: str, classes: str | None, ignored: str
) -> None:
    assert read(tmp_path, text, classes=classes).warnings == (
        f"'{tmp_path / 'labels.csv'}': ignored the columns {ignored}.",
    )


@pytest.mark.parametrize("header", ["file_name,labels,split", "file_name,dog,split"])
def test_split_column(tmp_path: Path, header: str) -> None:
    one = "dog" if "labels" in header else "1"
    folder = read(
        tmp_path, f"{header}\na.jpg,{one},train|database\nb.jpg,{one},query\nc.jpg,{one},database\n"
    )
    assert folder.source == "column"
    splits = {name: indices.tolist() for name, indices in folder.splits.items()}
    assert splits == {"train": [0], "query": [1], "database": [0, 2]}


def test_an_empty_split_column_leaves_it_to_the_files(tmp_path: Path) -> None:
    (tmp_path / "query.txt").write_text("a.jpg\n")
    assert read(tmp_path, "file_name,labels,split\na.jpg,dog,\nb.jpg,dog,\n").source == "files"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n", "is empty"),
        ("file_name,labels\n", "no rows"),
        ("file_name,labels\n\na.jpg,dog,x\n", "line 3: 3 cells, but the header names 2"),
        ("file_name;labels\na.jpg;dog\n", "semicolons"),
        ("file_name\tlabels\na.jpg\tdog\n", "tabs"),
        ("file_name,labels,labels\na.jpg,x,y\n", "more than once: 'labels'"),
        ('file_name,labels\na.jpg,"dog\nb.jpg,cat\n', "line 3: not valid csv"),
        ("file_name,labels\na.jpg,caf\xe9\n".encode("latin-1"), "not UTF-8 text (byte 0xe9 at position 26)"),
        ("filename,labels\na.jpg,dog\n", "Did you mean 'filename'? Rename it to 'file_name'."),
        ("url,labels\na.jpg,dog\n", "has no column 'file_name'; it has: url, labels."),
        ("file_name,split\na.jpg,train\n", "has no column of classes"),
        ("file_name,labels,spilt\na.jpg,dog,train\n", "unknown column 'spilt'. Did you mean 'split'?"),
        ("file_name,lables\na.jpg,dog|cat\n", "holds 'dog|cat', not 0 or 1. Did you mean"),
        ("file_name,dog,areas\na.jpg,1,0.5\n", "A column 'areas' needs a column 'labels'"),
        ("file_name,dog,cat\na.jpg,1,0\nb.jpg,0,2\n", "line 3: column 'cat' holds '2'"),
        ("file_name,dog,cat\na.jpg,,0\n", "column 'dog' holds ''"),
        (",file_name,dog\n0,a.jpg,1\n", "column 1 has no name"),
        ("file_name,labels\na.jpg,dog\nb.jpg,dog||cat\n", "line 3: an empty label in 'dog||cat'"),
        ("file_name,labels\na.jpg,\nb.jpg,\n", "carry no label"),
        ("file_name,labels\na.jpg,dog\n ,dog\n", "line 3: the file name is empty"),
        ("file_name,labels,split\na.jpg,dog,train\nb.jpg,dog,test\n", "line 3: unknown split 'test'."),
    ],
)
def test_malformed_files(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert expected in refusal(read, tmp_path, text)


def test_a_class_of_classes_txt_without_its_column(tmp_path: Path) -> None:
    text = refusal(read, tmp_path, "file_name,dog,cats\na.jpg,1,0\n", classes="cat\ndog\n")
    assert "no column for the class 'cat' of classes.txt. Did you mean 'cats'?" in text


@pytest.mark.parametrize(
    ("areas", "expected"),
    [
        ("0.5", "line 2: 1 areas for 2 labels"),
        ("", "0 areas for 2 labels"),
        *((f"0.5|{wrong}", f"the area '{wrong}'") for wrong in ("big", "1.5", "-0.1", "nan", "")),
    ],
)
def test_bad_areas(tmp_path: Path, areas: str, expected: str) -> None:
    assert expected in refusal(read, tmp_path, f"file_name,labels,areas\na.jpg,dog|cat,{areas}\n")
