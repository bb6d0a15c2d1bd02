"""Counts, leaks, copies and broken images of a dataset, and the command that reports them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner, Result

from centerhash.cli.info import inspect
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.data.inspection import ClassCount, Copies, class_warnings, find_copies, inspect_dataset
from tests.own_images import png, write_split_folders

SPLITS = Splits(np.array([2, 3, 4]), np.array([0, 1]), np.array([1, 2, 3, 4, 5]))
LETTERS = ("a", "b", "c", "d", "e", "f")


def command(*words: str | Path) -> Result:
    app = typer.Typer()
    app.command()(inspect)
    return CliRunner().invoke(app, list(map(str, words)))


def test_inspect_dataset_counts() -> None:
    labels = np.array([[1, 0], [1, 1], [1, 0], [0, 0], [1, 1], [1, 0]], dtype=bool)
    data = Dataset("d", Path(), ("x", "y"), labels, SPLITS, features=np.zeros((6, 2), np.float32))
    report = inspect_dataset(data)
    assert report.classes == (ClassCount("x", 5, 2, 2, 4), ClassCount("y", 2, 1, 1, 2))
    assert report.labels_per_image == {0: 1, 1: 3, 2: 2}
    assert report.labels_mean == pytest.approx(7 / 6)
    assert report.splits == {"train": 3, "query": 2, "database": 5}
    assert report.overlaps == {"train and query": 0, "train and database": 3, "query and database": 1}
    assert report.copies is None


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("person", "car", "Person"), "'person / Person'"),
        (
            ("traffic light", "trafficlight", "Traffic  Light"),
            "'traffic light / trafficlight / Traffic  Light'",
        ),
        (("straße", "STRASSE"), "'straße / STRASSE'"),
        (tuple(f"{a}{n}" for n in range(7) for a in "xX"), "and 2 more"),
        (("person", "persons", "hot dog", "dog"), ""),
    ],
)
def test_class_warnings_spellings(names: tuple[str, ...], fault: str) -> None:
    warnings = class_warnings([ClassCount(name, 30, 20, 5, 20) for name in names])
    assert len(warnings) == bool(fault)
    assert fault in "".join(warnings)


# ---------------------------------------------------------------- copies


@given(st.lists(st.integers(0, 4), min_size=3, max_size=20), st.data())
def test_find_copies(keys: list[int], data: st.DataObject) -> None:
    rows = range(len(keys))
    members = st.lists(st.sampled_from(rows), unique=True, min_size=1)
    splits = {name: sorted(data.draw(members)) for name in ("train", "query", "database")}
    groups = [group for key in set(keys) if len(group := [row for row in rows if keys[row] == key]) > 1]
    copies = find_copies(
        groups, Splits(**{name: np.array(split) for name, split in splits.items()}), list(map(str, rows))
    )
    counts = {(copy.of, copy.among): copy.count for copy in copies}
    for of, among in (("query", "train"), ("query", "database"), ("train", "database")):
        outside = [row for row in splits[of] if row not in splits[among]]
        expected = sum(any(keys[row] == keys[match] for match in splits[among]) for row in outside)
        assert counts.get((of, among), 0) == expected
    for name, split in splits.items():
        assert counts.get((name, name), 0) == len(split) - len({keys[row] for row in split})


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


def test_inspect_dataset_images(photos: Path) -> None:
    steps: list[tuple[object, ...]] = []
    report = inspect_dataset(open_dataset(photos), progress=lambda *values: steps.append(values))
    assert report.broken is not None
    assert report.copies is not None
    assert steps == [("images", number, 17) for number in range(1, 18)]
    assert list(report.broken) == ["test/cat/cut.png", "train/dog/bad.jpg"]
    leak = ("test/dog/leak.png", "train/bird/000.png")
    assert [copies for copies in report.copies if copies.of == "query"] == [
        Copies("query", "train", 1, (leak,)),
        Copies("query", "database", 1, (leak,)),
    ]
    broken, leaks, _ = report.warnings[-3:]
    assert "'test/cat/cut.png', 'train/dog/bad.jpg'" in broken
    assert all(name in leaks for name in leak)


def test_inspect_command(photos: Path) -> None:
    done = command(photos)
    assert done.exit_code == 0, done.output
    for text in ("photos: 17 rows", "bird", "bad.jpg", "test/dog/leak.png = train/bird/000.png"):
        assert text in done.output
    assert "warning: 2 images cannot be read" in done.output
    assert json.loads(command(photos, "--no-images", "--json").stdout)["copies"] is None
    report = json.loads(command(photos, "--json").stdout)
    assert report == json.loads(json.dumps(asdict(inspect_dataset(open_dataset(photos)))))
    assert "train/dog/bad.jpg" in report["broken"]
