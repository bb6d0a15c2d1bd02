"""What every layout promises: labels, classes, splits, ids, and an error that names the file and its fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.images import load_image
from centerhash.data.layouts.detection import find_layout, is_described
from tests.own_images import CLASSES, WRITERS, items, write_features, write_labels_csv


class Case(NamedTuple):
    """One layout: its name, the file that describes it, and a cell of it that may be spoiled."""

    layout: str
    file: str = ""
    good: bytes = b""
    bad: bytes = b""
    fault: str = ""


CASES: Mapping[str, Case] = {
    "labels.csv": Case("images", "labels.csv", b"001.png,cat", b"001.png,cat||dog", "line 3.*cat||dog"),
    "class columns": Case("images", "labels.csv", b"001.png,0,1", b"001.png,0,2", "line 3.*'cat' holds '2'"),
    "metadata.csv": Case("imagefolder", "metadata.csv", b'"[""cat""]"', b'"[""cat"""', "line 3"),
    "metadata.jsonl": Case("imagefolder", "metadata.jsonl", b'["cat"]}', b"[0.5]}", "line 2.*0.5"),
    "class folders": Case("classes"),
    "split folders": Case("classes"),
    "coco": Case(
        "coco", "annotations/instances_train2017.json", b'"category_id": 11', b'"category_id": 5', "5"
    ),
    "coco beside": Case(
        "coco", "_annotations.coco.json", b'"image_id": 101', b'"image_id": "x"', "image 'x'"
    ),
    "features": Case("features", "classes.txt", b"cat", b"bird", "bird"),
}
BUILD: Mapping[str, Callable[[Path, int], Path]] = {**WRITERS, "features": write_features}
every = pytest.mark.parametrize("kind", CASES)
described = pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if case.file])
pictures = pytest.mark.parametrize("kind", WRITERS)


def named(text: str) -> dict[str, set[str]]:
    return {name: set(labels) for name, labels in items(12, single="folders" in text)}


@every
def test_labels_and_classes(kind: str, tmp_path: Path) -> None:
    root = BUILD[kind](tmp_path / "photos", 12)
    layout = find_layout(root)
    assert layout is not None
    assert layout.name == CASES[kind].layout
    assert is_described(root) == (layout.name != "classes")
    data = open_dataset(root)
    assert (data.size, data.classes, data.name, data.warnings) == (12, CLASSES, "photos", ())
    expected = named(kind)
    for name, row in zip(data.names, data.labels, strict=True):
        file = f"{int(name):03d}.png" if kind == "features" else Path(name).name
        assert {CLASSES[column] for column in np.flatnonzero(row)} == expected[file]


@pictures
def test_ids_and_images(kind: str, tmp_path: Path) -> None:
    root = WRITERS[kind](tmp_path, 12)
    data = open_dataset(root)
    assert data.image_paths == tuple(root / name for name in data.names)
    assert len(set(data.names)) == 12
    assert {load_image(path).size for path in data.image_paths} == {(32, 32)}


@every
def test_splits_in_files(kind: str, tmp_path: Path) -> None:
    root = BUILD[kind](tmp_path, 12)
    names = open_dataset(root).names
    (root / "query.txt").write_text(f"{names[4]}\n./{names[1]}\n")
    if kind in ("split folders", "coco"):
        with pytest.raises(DataError, match="query"):
            open_dataset(root)
        return
    splits = open_dataset(root).splits
    assert splits.query.tolist() == [4, 1]
    assert splits.source == "files; database is all but the queries; train drawn with seed 0"


@pytest.mark.parametrize("kind", ["split folders", "coco"])
def test_splits_of_parts(kind: str, tmp_path: Path) -> None:
    data = open_dataset(WRITERS[kind](tmp_path, 12))
    queries = sorted(Path(data.names[row]).name for row in data.splits.query)
    assert queries == ["009.png", "010.png", "011.png"]
    assert (data.splits.train.size, data.splits.database.size) == (9, 9)


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if "coco" not in kind])
def test_classes_txt(kind: str, tmp_path: Path) -> None:
    root = WRITERS[kind](tmp_path, 12)
    (root / "classes.txt").write_text("dog\nbird\ncat\n")
    data = open_dataset(root)
    assert data.classes == ("dog", "bird", "cat")
    assert data.labels.sum() == sum(map(len, named(kind).values()))
    (root / "classes.txt").write_text("dog\nbirds\ncat\n")
    with pytest.raises(DataError, match="bird"):
        open_dataset(root)


@every
def test_without_labels(kind: str, tmp_path: Path) -> None:
    data = open_dataset(BUILD[kind](tmp_path, 12), labels=False)
    assert (data.size, data.classes, data.areas, data.labels.shape) == (12, (), None, (12, 0))


@described
def test_missing_file(kind: str, tmp_path: Path) -> None:
    root = BUILD[kind](tmp_path, 12)
    lost = [*sorted(root.rglob("*.png"))[:1]] or [root / "labels.npy", root / "classes.txt"]
    for path in lost:
        path.rename(tmp_path / "lost")
        with pytest.raises(DataError, match=re.escape(path.name)):
            open_dataset(root)
        (tmp_path / "lost").rename(path)


@described
@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_empty_file(kind: str, content: bytes, tmp_path: Path) -> None:
    file = BUILD[kind](tmp_path, 12) / CASES[kind].file
    file.write_bytes(content)
    with pytest.raises(DataError, match=file.name):
        open_dataset(tmp_path)


@described
def test_bad_cell(kind: str, tmp_path: Path) -> None:
    case, root = CASES[kind], BUILD[kind](tmp_path, 12)
    content = (root / case.file).read_bytes()
    assert case.good in content
    (root / case.file).write_bytes(content.replace(case.good, case.bad, 1))
    with pytest.raises(DataError, match=f"{Path(case.file).name}.*{case.fault.replace('||', '[|]{2}')}"):
        open_dataset(root)


@pictures
def test_too_large(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind != "class columns":
        monkeypatch.setattr("centerhash.data.layouts.label_cells.MAX_MATRIX_BYTES", 10)
        with pytest.raises(DataError, match=r"images x .* classes"):
            open_dataset(WRITERS[kind](tmp_path, 12))


# ---------------------------------------------------------------- which layout


def test_two_descriptions(tmp_path: Path) -> None:
    write_labels_csv(tmp_path)
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "000.png", "labels": "dog"}\n')
    with pytest.raises(DataError, match=r"labels\.csv.*metadata\.jsonl"):
        open_dataset(tmp_path)
