from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.layouts.folder import ImageFolder, read_image_folder, subfolders

FORM_A = "file_name,labels\na.jpg,dog|cat\nb.jpg,cat\nc.jpg,bird|dog\n"
FORM_B = "file_name,dog,cat,bird\na.jpg,1,1,0\nb.jpg,0,1,0\nc.jpg,1,0,1\n"


def fill(root: Path, text: str | bytes, files: str = "a.jpg b.jpg c.jpg", classes: str | None = None) -> Path:
    (root / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    for name in files.split():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not opened here")
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root


def read(
    root: Path, text: str | bytes, files: str = "a.jpg b.jpg c.jpg", classes: str | None = None
) -> ImageFolder:
    return read_image_folder(fill(root, text, files, classes))


def message(
    root: Path, text: str | bytes, files: str = "a.jpg b.jpg c.jpg", classes: str | None = None
) -> str:
    with pytest.raises(DataError) as caught:
        read(root, text, files, classes)
    return str(caught.value)


# ---------------------------------------------------------------- what is accepted


@pytest.mark.parametrize("text", [FORM_A, FORM_B])
def test_both_forms_say_the_same_with_sorted_classes(tmp_path: Path, text: str) -> None:
    folder = read(tmp_path, text)
    assert folder.classes == ("bird", "cat", "dog")
    assert folder.labels.dtype == np.bool_
    assert folder.labels.astype(int).tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 1]]
    assert folder.names == ("a.jpg", "b.jpg", "c.jpg")
    assert folder.paths == tuple(tmp_path / name for name in folder.names)
    assert folder.areas is None
    assert folder.splits == {}
    assert folder.warnings == ()


@pytest.mark.parametrize("text", [FORM_A, FORM_B])
def test_classes_txt_fixes_the_order(tmp_path: Path, text: str) -> None:
    folder = read(tmp_path, text, classes="dog\nbird\ncat\n")
    assert folder.classes == ("dog", "bird", "cat")
    assert folder.labels.astype(int).tolist() == [[1, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_classes_txt_may_name_classes_that_do_not_occur(tmp_path: Path) -> None:
    folder = read(tmp_path, FORM_A, classes="dog\nbird\ncat\nzebra\n")
    assert folder.labels[:, 3].tolist() == [False, False, False]


@pytest.mark.parametrize("text", [FORM_A, FORM_B])
def test_byte_order_mark_crlf_and_blank_lines(tmp_path: Path, text: str) -> None:
    spreadsheet = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    assert read(tmp_path, spreadsheet).labels.sum() == 5


def test_areas_follow_the_order_of_the_labels(tmp_path: Path) -> None:
    text = 'file_name,labels,areas,boxes\na.jpg,dog|cat,0.5|0.25,"{""dog"":[[0,0,1,1]]}"\nb.jpg,cat,1,\nc.jpg,,,\n'
    folder = read(tmp_path, text)
    assert folder.areas is not None
    assert folder.areas.dtype == np.float32
    assert folder.areas.tolist() == [[0.25, 0.5], [1.0, 0.0], [0.0, 0.0]]
    assert folder.labels.astype(int).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert folder.warnings == ()


def test_spaces_around_names_do_not_matter(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name , labels\na.jpg , dog | cat\n")
    assert folder.names == ("a.jpg",)
    assert folder.classes == ("cat", "dog")


def test_truth_values(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name,dog\na.jpg,TRUE\nb.jpg,false\nc.jpg, 1.0 \n")
    assert folder.labels[:, 0].tolist() == [True, False, True]


def test_subfolders_and_unicode(tmp_path: Path) -> None:
    folder = read(
        tmp_path,
        "file_name,labels\nsub/ä.jpg,vélo\n./b.jpg,vélo\n12:30.jpg,vélo\n",
        "sub/ä.jpg b.jpg 12:30.jpg",
    )
    assert folder.names == ("sub/ä.jpg", "b.jpg", "12:30.jpg")
    assert folder.classes == ("vélo",)


def test_other_columns_are_ignored_with_a_warning(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name,width,labels,license,\na.jpg,640,dog,4,x\n")
    assert folder.warnings == (
        f"'{tmp_path / 'labels.csv'}': ignored the columns 'width', 'license', '(no name)'.",
    )


def test_columns_that_are_no_class_of_classes_txt_are_ignored_with_a_warning(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name,dog,width\na.jpg,1,640\n", classes="dog\n")
    assert folder.classes == ("dog",)
    assert folder.warnings == (f"'{tmp_path / 'labels.csv'}': ignored the columns 'width'.",)


def test_a_class_may_be_called_like_a_column_of_the_other_form(tmp_path: Path) -> None:
    assert read(tmp_path, "file_name,boxes,bag\na.jpg,1,0\n").classes == ("bag", "boxes")


@pytest.mark.parametrize("header", ["file_name,labels,split", "file_name,dog,split"])
def test_split_column(tmp_path: Path, header: str) -> None:
    one = "dog" if "labels" in header else "1"
    folder = read(
        tmp_path, f"{header}\na.jpg,{one},train|database\nb.jpg,{one},query\nc.jpg,{one},database\n"
    )
    assert folder.source == "column"
    assert {name: indices.tolist() for name, indices in folder.splits.items()} == {
        "train": [0],
        "query": [1],
        "database": [0, 2],
    }


def test_split_files(tmp_path: Path) -> None:
    (tmp_path / "query.txt").write_text("c.jpg\n")
    folder = read(tmp_path, FORM_A)
    assert folder.source == "files"
    assert folder.splits["query"].tolist() == [2]


def test_an_empty_split_column_leaves_it_to_the_files(tmp_path: Path) -> None:
    (tmp_path / "query.txt").write_text("a.jpg\n")
    folder = read(tmp_path, "file_name,labels,split\na.jpg,dog,\nb.jpg,dog,\n")
    assert folder.source == "files"


# ---------------------------------------------------------------- the file as a whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "labels.csv' is empty: it needs a header and one line per image."),
        ("\n\n", "labels.csv' is empty: it needs a header and one line per image."),
        ("file_name,labels\n", "labels.csv' has a header but no rows: write one line per image."),
        ("file_name,labels\na.jpg\n", "labels.csv', line 2: 1 cells, but the header names 2 columns."),
        ("file_name,labels\n\na.jpg,dog,x\n", "labels.csv', line 3: 3 cells, but the header names 2"),
        ("file_name;labels\na.jpg;dog\n", "labels.csv' is separated by semicolons: save it with commas."),
        ("file_name\tlabels\na.jpg\tdog\n", "labels.csv' is separated by tabs: save it with commas."),
        ("file_name,labels,labels\na.jpg,x,y\n", "has these columns more than once: 'labels'."),
        ('file_name,labels\na.jpg,"dog\nb.jpg,cat\n', "line 3: not valid csv (unexpected end of data)."),
        (
            "file_name,labels\na.jpg,caf\xe9\n".encode("latin-1"),
            "labels.csv' is not UTF-8 text (byte 0xe9 at position 26): save it with the encoding UTF-8.",
        ),
        ("file_name,labels\n".encode("utf-16"), "labels.csv' is not UTF-8 text (byte 0xff at position 0)"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert expected in message(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "filename,labels\na.jpg,dog\n",
            "labels.csv' has no column 'file_name'; it has: filename, labels. "
            "Did you mean 'filename'? Rename it to 'file_name'.",
        ),
        ("url,labels\na.jpg,dog\n", "labels.csv' has no column 'file_name'; it has: url, labels."),
        ("file_name\na.jpg\n", "labels.csv' says nothing about classes: add a column 'labels'"),
        ("file_name,split\na.jpg,train\n", "labels.csv' says nothing about classes"),
        ("file_name,labels,spilt\na.jpg,dog,train\n", "has an unknown column 'spilt'. Did you mean 'split'?"),
        ("file_name,labels,area\na.jpg,dog,1\n", "has an unknown column 'area'. Did you mean 'areas'?"),
        ("file_name,labels,Split\na.jpg,dog,x\n", "has an unknown column 'Split'. Did you mean 'split'?"),
        (
            "file_name,lables\na.jpg,dog|cat\n",
            "line 2: column 'lables' holds 'dog|cat', which is not 0 or 1. Did you mean the column 'labels'?",
        ),
        (
            "file_name,dog,spilt\na.jpg,1,train\n",
            "line 2: column 'spilt' holds 'train', which is not 0 or 1. Did you mean the column 'split'?",
        ),
        (
            "file_name,dog,areas\na.jpg,1,0.5\n",
            "column 'areas' holds '0.5', which is not 0 or 1. A column 'areas' needs a column 'labels'",
        ),
        (
            "file_name,dog,cat\na.jpg,1,0\nb.jpg,0,2\n",
            "labels.csv', line 3: column 'cat' holds '2', which is not 0 or 1. Every column but file_name "
            "and split is a class.",
        ),
        ("file_name,dog,cat\na.jpg,,0\n", "line 2: column 'dog' holds '', which is not 0 or 1."),
        (
            ",file_name,dog\n0,a.jpg,1\n",
            "labels.csv': column 1 has no name. Name it after its class; if it is an index that pandas added",
        ),
    ],
)
def test_columns(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


def test_label_is_not_a_typo_when_labels_is_there(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name,labels,label\na.jpg,dog,7\n")
    assert "ignored the columns 'label'" in folder.warnings[0]


# ---------------------------------------------------------------- labels, areas, splits


@pytest.mark.parametrize("cell", ["dog||cat", "dog|", "|", " ", "dog| |cat"])
def test_an_empty_label_is_refused(tmp_path: Path, cell: str) -> None:
    text = message(tmp_path, f"file_name,labels\na.jpg,dog\nb.jpg,{cell}\n")
    assert f"labels.csv', line 3: an empty label in '{cell}'. Write names joined by '|'" in text


def test_an_empty_cell_is_an_image_without_labels(tmp_path: Path) -> None:
    folder = read(tmp_path, "file_name,labels\na.jpg,dog\nb.jpg,\n")
    assert folder.labels.tolist() == [[True], [False]]


def test_no_label_anywhere(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels\na.jpg,\nb.jpg,\n")
    assert "labels.csv' names no label in any row: fill the column 'labels'." in text


def test_a_label_twice(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels\na.jpg,dog|cat|dog\n")
    assert "line 2: the label 'dog' stands twice in 'dog|cat|dog'." in text


def test_a_label_outside_classes_txt(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels\na.jpg,dog\nb.jpg,cta\n", classes="cat\ndog\n")
    assert text == (
        f"'{tmp_path / 'labels.csv'}', line 3: label 'cta' is not in classes.txt. Did you mean 'cat'? "
        "Correct the label, or add it to classes.txt."
    )


def test_a_class_of_classes_txt_without_its_column(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,dog,cats\na.jpg,1,0\n", classes="cat\ndog\n")
    assert "has no column for the class 'cat' of classes.txt. Did you mean 'cats'?" in text


@pytest.mark.parametrize(
    ("areas", "expected"),
    [
        ("0.5", "line 2: 1 areas for 2 labels. Give one share per label, joined by '|'."),
        ("", "line 2: 0 areas for 2 labels."),
        ("0.1|0.2|0.3", "line 2: 3 areas for 2 labels."),
        ("0.5|big", "line 2: the area 'big' is not a share of the frame, a number from 0 to 1."),
        ("0.5|1.5", "the area '1.5' is not a share of the frame"),
        ("-0.1|0.5", "the area '-0.1' is not a share of the frame"),
        ("nan|0.5", "the area 'nan' is not a share of the frame"),
        ("0.5|", "the area '' is not a share of the frame"),
    ],
)
def test_bad_areas(tmp_path: Path, areas: str, expected: str) -> None:
    assert expected in message(tmp_path, f"file_name,labels,areas\na.jpg,dog|cat,{areas}\n")


def test_unknown_split_word(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels,split\na.jpg,dog,train\nb.jpg,dog,test\n")
    assert f"'{tmp_path / 'labels.csv'}', line 3: unknown split 'test'." in text


def test_splits_in_column_and_files(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.array([0]))
    text = message(tmp_path, "file_name,labels,split\na.jpg,dog,train\n")
    assert "names its splits twice, in the column 'split' of labels.csv and in train.*: remove one" in text


# ---------------------------------------------------------------- the images


@pytest.mark.parametrize(
    "name",
    ["../x.jpg", "sub/../../x.jpg", "/etc/x.jpg", "..\\x.jpg", "C:\\x.jpg", "C:/x.jpg", "\\x.jpg", "a\0b"],
)
def test_file_names_that_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    text = message(tmp_path, f"file_name,labels\na.jpg,dog\n{name},dog\n")
    assert f"labels.csv', line 3: the file name '{name}' leads out of the folder." in text


def test_empty_file_name(tmp_path: Path) -> None:
    assert "labels.csv', line 3: the file name is empty." in message(
        tmp_path, "file_name,labels\na.jpg,dog\n ,dog\n"
    )


def test_missing_images_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    rows = "".join(f"m{i}.jpg,dog\n" for i in range(7))
    text = message(tmp_path, f"file_name,labels\na.jpg,dog\n{rows}")
    assert text == (
        f"7 of 8 images of labels.csv are not in '{tmp_path}': 'm0.jpg', 'm1.jpg', 'm2.jpg', 'm3.jpg', "
        "'m4.jpg' and 2 more. Add the files or remove their rows."
    )


def test_missing_images_with_backslashes_get_a_hint(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels\nsub\\a.jpg,dog\n")
    assert text.endswith("Separate folders by '/', not by a backslash.")


@pytest.mark.parametrize("name", ["sub", "x" * 300])
def test_a_folder_or_an_impossible_name_is_no_image(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    assert "1 of 1 images of labels.csv are not in" in message(tmp_path, f"file_name,labels\n{name},dog\n")


def test_a_file_twice(tmp_path: Path) -> None:
    text = message(tmp_path, "file_name,labels\na.jpg,dog\nb.jpg,dog\n./a.jpg,cat\n")
    assert text == (
        "labels.csv has more than one row for 1 file(s): 'a.jpg'. 'a.jpg' stands in lines 2 and 4: "
        "keep one row per file, with all its labels."
    )


def test_links_that_lead_to_themselves_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "dogs").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "linked").symlink_to("dogs", target_is_directory=True)
    assert subfolders(tmp_path) == [tmp_path / "dogs", tmp_path / "linked"]
