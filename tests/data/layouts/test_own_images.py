"""All layouts of own images: each opens, trains, and is told from the others."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.dataset import find_layout, is_described
from centerhash.data.images import load_image
from centerhash.data.layouts.contents import LAYOUTS
from tests.own_images import (
    CLASSES,
    WRITERS,
    items,
    parquet_table,
    write_class_folders,
    write_labels_csv,
    write_parquet,
)
from tests.toys import cli

NAMES = {  # of the layout that each writer's folder has
    "labels.csv": "images",
    "class folders": "classes",
    "split folders": "classes",
    "coco": "coco",
    "coco beside": "coco",
    "metadata.jsonl": "imagefolder",
    "metadata.csv": "imagefolder",
    "parquet": "parquet",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_layout_is_recognised_and_opens(kind: str, tmp_path: Path) -> None:
    root = WRITERS[kind](tmp_path / "photos", 12)
    layout = find_layout(root)
    assert layout is not None
    assert layout.name == NAMES[kind]
    data = open_dataset(root)
    assert (data.kind, data.size, data.classes, data.name) == ("images", 12, CLASSES, "photos")
    single = "folders" in kind
    wanted = {name: set(labels) for name, labels in items(12, single=single)}
    for name, row in zip(data.names, data.labels, strict=True):
        assert {CLASSES[column] for column in np.flatnonzero(row)} == wanted[Path(name).name]
    assert len(set(data.names)) == 12
    assert data.image_paths is not None
    assert {load_image(path).size for path in data.image_paths} == {(32, 32)}


@pytest.mark.parametrize("kind", ["split folders", "coco", "parquet"])
def test_layouts_with_parts_name_their_splits(kind: str, tmp_path: Path) -> None:
    data = open_dataset(WRITERS[kind](tmp_path, 12))
    asking = 4 if kind == "parquet" else 3
    assert (data.splits.train.size, data.splits.query.size, data.splits.database.size) == (
        12 - asking,
        asking,
        12 - asking,
    )
    assert data.splits.made.endswith("; database is all but the queries")
    shown = [data.names[row] for row in data.splits.query]
    assert sorted(Path(name).name for name in shown) == [f"{row:03d}.png" for row in range(12 - asking, 12)]


def test_two_descriptions_of_one_folder_are_refused(tmp_path: Path) -> None:
    write_labels_csv(tmp_path)
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "000.png", "labels": "dog"}\n')
    with pytest.raises(DataError, match=r"labels\.csv \(images\) and metadata\.jsonl \(imagefolder\)"):
        open_dataset(tmp_path)


def test_folders_of_pictures_are_no_classes_where_a_file_describes_them(tmp_path: Path) -> None:
    write_class_folders(tmp_path)
    write_parquet(tmp_path)
    layout = find_layout(tmp_path)
    assert layout is not None
    assert layout.name == "parquet"


def test_what_describes_its_images(tmp_path: Path) -> None:
    assert is_described(write_labels_csv(tmp_path / "csv"))
    assert is_described(write_parquet(tmp_path / "parquet"))
    assert is_described(tmp_path / "parquet" / "data" / "test-00000-of-00001.parquet")
    assert not is_described(write_class_folders(tmp_path / "classes"))
    assert not is_described(tmp_path / "csv" / "000.png")
    assert not is_described(tmp_path / "nowhere")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.json").write_text('{"images": []}')
    assert find_layout(tmp_path / "notes") is None


def test_errors_and_the_page_for_users_name_all_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "data-layouts.md").read_text()
    for layout in LAYOUTS.values():
        assert layout.description in str(caught.value)
        assert f"`{layout.name}`" in page


def page_commands() -> list[list[str]]:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "data-layouts.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature_cache: Path
) -> None:
    write_class_folders(tmp_path / "photos", 24)
    parquet.write_table(parquet_table(items(24)), tmp_path / "photos.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    assert len(page_commands()) == 4
    for words in page_commands():
        done = cli(*words)
        assert done.code == 0, f"{words}: {done.err}"
    assert (tmp_path / "run-parquet" / "model.json").exists()


@pytest.mark.parametrize("kind", sorted(set(WRITERS)))
def test_a_table_of_labels_that_is_too_large_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[kind](tmp_path)
    monkeypatch.setattr("centerhash.data.layouts.contents.MATRIX", 10)
    with pytest.raises(DataError, match=r"images x .* classes would take .* more than the limit of .* Omit"):
        open_dataset(tmp_path)


@pytest.mark.slow
def test_two_hundred_thousand_classes_are_refused(tmp_path: Path) -> None:
    folder = write_labels_csv(tmp_path)
    rows = (f"{number}.png,class {number}" for number in range(200_000))
    (folder / "labels.csv").write_text("\n".join(["file_name,labels", *rows]))
    with pytest.raises(DataError):
        open_dataset(folder)
