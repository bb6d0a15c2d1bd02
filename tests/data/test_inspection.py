from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner, Result

from centerhash.cli.info import inspect
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.data.inspection import (
    ClassCount,
    Copies,
    class_warnings,
    find_copies,
    inspect_dataset,
    size_summary,
    write_plot,
)
from tests.own_images import WRITERS, png, write_labels_csv, write_parquet, write_split_folders

SPLITS = Splits(np.array([2, 3, 4]), np.array([0, 1]), np.array([1, 2, 3, 4, 5]))
LETTERS = ("a", "b", "c", "d", "e", "f")


def command(*words: str | Path) -> Result:
    app = typer.Typer()
    app.command()(inspect)
    return CliRunner().invoke(app, list(map(str, words)))


# ---------------------------------------------------------------- labels and splits


def test_counts_of_classes_labels_and_splits() -> None:
    labels = np.array([[1, 0], [1, 1], [1, 0], [0, 0], [1, 1], [1, 0]], dtype=bool)
    data = Dataset("d", Path(), ("x", "y"), labels, SPLITS, features=np.zeros((6, 2), np.float32))
    found = inspect_dataset(data)
    assert [(c.name, c.images, c.train, c.query, c.database) for c in found.classes] == [
        ("x", 5, 2, 2, 4),
        ("y", 2, 1, 1, 2),
    ]
    assert found.labels_per_image == {0: 1, 1: 3, 2: 2}
    assert found.to_dict()["unlabeled"] == 1
    assert found.labels_mean == pytest.approx(7 / 6)
    assert found.splits == {"train": 3, "query": 2, "database": 5}
    assert found.overlaps == {"train and query": 0, "train and database": 3, "query and database": 1}
    assert found.pictures is None, "features have no pictures"


def test_classes_that_cannot_be_learned_or_scored_are_named(tmp_path: Path) -> None:
    root = write_labels_csv(tmp_path)
    (root / "classes.txt").write_text("bird\ncat\ndog\nunicorn\n")
    (root / "query.txt").write_text("001.png\n")
    warnings = inspect_dataset(open_dataset(root), images=False).warnings
    assert warnings == (
        "1 classes have no training image: 'unicorn'.",
        "3 classes have fewer than 10 training images: 'bird', 'cat', 'dog'.",
        "2 classes have no query, so no score covers them: 'bird', 'dog'.",
    )


def test_queries_of_classes_that_the_database_lacks_are_named() -> None:
    labels = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [1, 0], [1, 0]], dtype=bool)
    splits = Splits(np.array([2, 3]), np.array([0, 1]), np.array([2, 3, 4, 5]))
    data = Dataset("d", Path(), ("x", "y"), labels, splits, features=np.zeros((6, 2), np.float32))
    named = "1 classes of queries have no database image, so nothing is found for them: 'y'."
    assert named in inspect_dataset(data).warnings


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("person", "car", "Person"), ["1 labels are written in several ways", "'person' / 'Person'"]),
        (
            ("traffic light", "trafficlight", "Traffic  Light"),
            ["'traffic light' / 'trafficlight' / 'Traffic"],
        ),
        (("straße", "STRASSE"), ["'straße' / 'STRASSE'"]),
        (("dog, cat", "dog"), ["1 labels hold a comma", "'dog, cat'. Join several labels by '|'"]),
        (tuple(f"{a}{n}" for n in range(7) for a in "xX"), ["7 labels are written", "and 2 more. Write"]),
    ],
)
def test_names_that_are_one_label_or_several_are_told(names: tuple[str, ...], words: list[str]) -> None:
    (warning,) = class_warnings([ClassCount(name, 30, 20, 5, 20) for name in names])
    for part in words:
        assert part in warning


def test_classes_without_faults() -> None:
    names = ("person", "persons", "hot dog", "dog")
    assert class_warnings([ClassCount(name, 30, 20, 5, 20) for name in names]) == []


# ---------------------------------------------------------------- copies


def test_copies_across_splits() -> None:
    assert find_copies([[0, 2, 5]], SPLITS, LETTERS) == (
        Copies("query", "train", 1, (("a", "c"),)),
        Copies("query", "database", 1, (("a", "c"),)),
        Copies("database", "database", 1, (("f", "c"),)),
    )


def test_a_row_in_two_splits_is_no_copy_of_itself() -> None:
    assert find_copies([], SPLITS, LETTERS) == ()
    found = find_copies([[1, 5]], SPLITS, LETTERS)
    assert [(copies.of, copies.among) for copies in found] == [("database", "database")]


def test_many_copies_are_counted_and_a_few_named() -> None:
    splits = Splits(np.arange(1, 100), np.array([0]), np.arange(1, 100))
    found = {(c.of, c.among): c for c in find_copies([list(range(100))], splits, list(map(str, range(100))))}
    assert found["train", "train"].count == 98
    assert found["train", "train"].examples == tuple((str(row), "1") for row in range(2, 7))
    assert found["query", "train"].examples == (("0", "1"),)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=20), st.data())
def test_copies_are_those_of_a_plain_search(keys: list[int], data: st.DataObject) -> None:
    rows = range(len(keys))
    chosen = st.lists(st.sampled_from(rows), unique=True, min_size=1)
    splits = {name: sorted(data.draw(chosen)) for name in ("train", "query", "database")}
    found = find_copies(
        [group for key in set(keys) if len(group := [row for row in rows if keys[row] == key]) > 1],
        Splits(**{name: np.array(members) for name, members in splits.items()}),
        list(map(str, rows)),
    )
    counts = {(copies.of, copies.among): copies.count for copies in found}
    for of, among in (("query", "train"), ("query", "database"), ("train", "database")):
        alone = [row for row in splits[of] if row not in splits[among]]
        expected = sum(any(keys[row] == keys[other] for other in splits[among]) for row in alone)
        assert counts.get((of, among), 0) == expected
    for name, members in splits.items():
        assert counts.get((name, name), 0) == len(members) - len({keys[row] for row in members})


def test_sizes() -> None:
    assert size_summary([]) == {"different": 0}
    assert size_summary([(10, 40), (30, 20), (10, 40)]) == {
        "different": 2,
        "smallest": [10, 20],
        "median": [10, 40],
        "largest": [30, 40],
    }


# ---------------------------------------------------------------- images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Split folders with a leak, a copy within training under another label, and two broken files."""
    root = write_split_folders(tmp_path / "photos", 12)
    (root / "train" / "dog" / "bad.jpg").write_bytes(b"no picture")
    (root / "test" / "cat" / "cut.png").write_bytes(png(50)[:300])
    (root / "test" / "dog" / "leak.png").write_bytes(png(0))
    (root / "train" / "cat" / "again.png").write_bytes(png(2))
    Image.new("RGB", (200, 100)).save(root / "train" / "bird" / "wide.jpg")
    return root


def test_pictures_of_a_set_with_everything_wrong(photos: Path) -> None:
    seen: list[tuple[object, ...]] = []
    found = inspect_dataset(open_dataset(photos), progress=lambda *told: seen.append(told))
    pictures = found.pictures
    assert pictures is not None
    assert seen == [("images", number, 17) for number in range(1, 18)]
    assert [name for name, _ in pictures.broken] == ["test/cat/cut.png", "train/dog/bad.jpg"]
    assert "not an image of a known format" in pictures.broken[1][1]
    assert len(pictures.sizes) == 15
    assert size_summary(pictures.sizes)["largest"] == [200, 100]
    across = [copies for copies in pictures.copies if copies.of == "query"]
    assert [(c.among, c.count, c.examples) for c in across] == [
        ("train", 1, (("test/dog/leak.png", "train/bird/000.png"),)),
        ("database", 1, (("test/dog/leak.png", "train/bird/000.png"),)),
    ]
    assert pictures.relabeled == (
        ("test/dog/leak.png", "train/bird/000.png"),
        ("train/cat/again.png", "train/dog/002.png"),
    )
    assert found.warnings[-3:] == (
        "2 images cannot be read: 'test/cat/cut.png', 'train/dog/bad.jpg'. "
        "Repair them, or train with `skip_broken=True`.",
        "leak: queries are copies, 1 of images in train and 1 of images in database, so the scores will look "
        "better than they are: 'test/dog/leak.png' is the picture 'train/bird/000.png'.",
        "2 copies carry other labels than their first: 'train/bird/000.png' is the picture 'test/dog/leak.png'.",
    )


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_is_wrong_with_the_layouts_of_the_tests(kind: str, tmp_path: Path) -> None:
    found = inspect_dataset(open_dataset(WRITERS[kind](tmp_path, 12)))
    assert found.pictures is not None
    assert (found.pictures.broken, found.pictures.copies) == ((), ())
    assert found.pictures.sizes == ((32, 32),) * 12


def test_broken_images_in_parquet_are_named_by_file_and_row(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    entries = [{"bytes": data, "path": None} for data in (png(0), b"no picture", png(1), png(0))]
    parquet.write_table(pa.table({"image": entries, "label": list("abba")}), tmp_path / "x.parquet")
    pictures = inspect_dataset(open_dataset(tmp_path / "x.parquet")).pictures
    assert pictures is not None
    assert [name for name, _ in pictures.broken] == ["x.parquet/1"]
    assert len(pictures.sizes) == 3
    assert {frozenset(pair) for copies in pictures.copies for pair in copies.examples} == {
        frozenset({"x.parquet/3", "x.parquet/0"})
    }


# ---------------------------------------------------------------- the command and its plot


@pytest.mark.slow
def test_the_report(photos: Path, tmp_path: Path) -> None:
    done = command(photos, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    for text in (
        "photos: 17 rows of images",
        "bird",
        "bad.jpg",
        "test/dog/leak.png = train/bird/000.png",
        "200 x 100",
    ):
        assert text in done.output
    assert "warning: 2 images cannot be read" in done.output
    stored = json.loads((tmp_path / "report" / "inspection.json").read_text())
    assert stored["sizes"]["different"] == 2
    assert stored["unlabeled"] == 0
    assert ElementTree.parse(tmp_path / "report" / "inspection.svg").getroot().tag.endswith("svg")
    with Image.open(tmp_path / "report" / "inspection.png") as plot:
        assert min(plot.size) > 300


def test_json_for_machines(tmp_path: Path, photos: Path) -> None:
    assert json.loads(command(photos, "--no-images", "--json").stdout)["sizes"] is None
    tmp_path = tmp_path / "parquet"
    done = command(write_parquet(tmp_path), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found == json.loads(json.dumps(inspect_dataset(open_dataset(tmp_path)).to_dict()))
    assert found["labels_per_image"] == {"1": 6, "2": 6}
    assert found["broken"] == []


@pytest.mark.slow
def test_of_many_classes_the_first_and_last_are_shown(tmp_path: Path) -> None:
    labels = np.tri(60, dtype=bool)
    rows = np.arange(60)
    data = Dataset(
        "d",
        Path(),
        tuple(f"class{n}" for n in range(60)),
        labels,
        Splits(rows[10:], rows[:10], rows[10:]),
        features=np.zeros((60, 2), np.float32),
    )
    for name in ("features", "labels"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
    (tmp_path / "classes.txt").write_text("\n".join(data.classes))
    done = command(tmp_path)
    assert "... 36 more" in done.output
    assert "class0 " in done.output
    assert "class59" in done.output
    assert "class30" not in done.output
    svg = write_plot(inspect_dataset(data), tmp_path)[0].read_text()
    assert "class by frequency" in svg
    assert write_plot(inspect_dataset(data), tmp_path)[0].read_text() == svg, (
        "the same figure, the same bytes"
    )
