from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.layouts.contents import Contents, checked_names, named_splits, present, subfolders

NAMES = ("images/a.jpg", "images/b.jpg", "images/c.jpg", "images/d.jpg")


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        named_splits(root, NAMES)
    return str(caught.value)


# ---------------------------------------------------------------- rows


def test_rows_without_labels_leave_and_splits_follow() -> None:
    labels = np.array([[True], [False], [True]])
    splits = {"train": np.array([0, 1]), "query": np.array([2])}
    whole = Contents(("a", "b", "c"), ("dog",), labels, splits, paths=(Path("a"), Path("b"), Path("c")))
    kept = whole.labeled()
    assert kept.names == ("a", "c")
    assert kept.paths == (Path("a"), Path("c"))
    assert {name: rows.tolist() for name, rows in kept.splits.items()} == {"train": [0], "query": [1]}
    with pytest.raises(DataError):
        whole.keep(np.array([1])).labeled()


# ---------------------------------------------------------------- file names


def test_file_names_that_lead_out_of_the_folder() -> None:
    names = [
        "../x.jpg",
        "sub/../../x.jpg",
        "/etc/x.jpg",
        "..\\x.jpg",
        "C:\\x.jpg",
        "C:/x.jpg",
        "\\x.jpg",
        "a\0b",
    ]
    for name in names:
        with pytest.raises(DataError, match=r"line 3: the file name .* leads out of the folder"):
            checked_names(["a.jpg", name], ["line 2", "line 3"])


def test_plain_names() -> None:
    names = ["a.jpg", "a/b.jpg", "12:30.jpg", "..a/b..jpg", "..."]
    assert checked_names(names, names) == tuple(names)


def test_a_file_twice() -> None:
    with pytest.raises(DataError, match=r"'a.jpg' stands in line 2 and in line 4"):
        checked_names(["a.jpg", "b.jpg", "./a.jpg"], ["line 2", "line 3", "line 4"])


def test_missing_images_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(DataError, match=r"7 of 8 images .*'m0\.jpg', .*'m4\.jpg' and 2 more"):
        present(tmp_path, ["a.jpg", *(f"m{i}.jpg" for i in range(7))], "labels.csv")


@pytest.mark.parametrize(("name", "hint"), [("sub", ""), ("x" * 300, ""), ("sub\\a.jpg", "by a backslash")])
def test_a_folder_or_an_impossible_name_is_no_image(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match=f"1 of 1 images .*{hint}"):
        present(tmp_path, [name], "labels.csv")


def test_links_that_lead_to_themselves_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "dogs").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "linked").symlink_to("dogs", target_is_directory=True)
    assert subfolders(tmp_path) == [tmp_path / "dogs", tmp_path / "linked"]


# ---------------------------------------------------------------- splits in files


def test_text_and_number_files(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfimages/c.jpg\r\n\r\n./images/a.jpg\r\n")
    np.save(tmp_path / "query.npy", np.array([1], dtype=np.uint16))
    found, source = named_splits(tmp_path, NAMES)
    assert source == "files"
    assert {name: indices.tolist() for name, indices in found.items()} == {"train": [2, 0], "query": [1]}


def test_no_files_no_splits(tmp_path: Path) -> None:
    assert named_splits(tmp_path, NAMES)[0] == {}


def test_splits_that_are_named_twice(tmp_path: Path) -> None:
    (tmp_path / "query.txt").write_text("images/a.jpg\n")
    with pytest.raises(DataError):
        named_splits(tmp_path, NAMES, {"train": np.array([1])}, "folders")
    np.save(tmp_path / "query.npy", np.array([0]))
    assert "both query.txt and query.npy" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("images/a.jpg\nimages/e.jpg\nx.png\n", "lists 2 file(s)"),
        ("images/a.jpg\n./images/a.jpg\n", "more than once: 'images/a.jpg'"),
    ],
)
def test_bad_list_files(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    assert expected in refused(tmp_path)


@pytest.mark.parametrize("values", [[0.5], [4], [2, 2], np.array([], dtype=int), [True] * 4, ["a"]])
def test_bad_number_files(tmp_path: Path, values: object) -> None:
    np.save(tmp_path / "train.npy", np.array(values))
    assert refused(tmp_path).startswith(f"'{tmp_path / 'train.npy'}': the split 'train'")
