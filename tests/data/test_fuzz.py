"""Readers of untrusted files: a dataset or an error of ours, never another."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from centerhash.core.errors import CenterhashError
from centerhash.data import open_dataset
from tests.mutations import changed_json, damaged, damages, json_values, seeded, texts
from tests.own_images import instances, items, write_pictures

ROWS = items(6)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images without any description."""
    folder = tmp_path_factory.mktemp("photos")
    write_pictures(folder, [name for name, _ in ROWS])
    return folder


def opened(path: Path) -> None:
    """Open a data set, and look at all that was read of it."""
    with suppress(CenterhashError):
        dataset = open_dataset(path)
        assert dataset.labels.shape == (dataset.size, len(dataset.classes))
        assert all(isinstance(name, str) for name in (*dataset.names, *dataset.classes))


def described(folder: Path, name: str, data: bytes) -> None:
    """Open the images with a description, which does not stay."""
    file = folder / name
    file.write_bytes(data)
    try:
        opened(folder)
    finally:
        file.unlink()


cells = texts | st.sampled_from([name for name, _ in ROWS]) | json_values.map(json.dumps)


@seeded
@given(
    st.lists(st.sampled_from(["file_name", "labels", "areas", "split", "dog", ""]), max_size=5),
    st.lists(st.lists(cells, max_size=5), max_size=6),
    st.sampled_from([",", ";", "\t"]),
)
def test_open_labels_csv(photos: Path, columns: list[str], rows: list[list[str]], comma: str) -> None:
    lines = [comma.join(columns), *(comma.join(row) for row in rows)]
    described(photos, "labels.csv", "\n".join(lines).encode(errors="surrogatepass"))


@seeded
@given(damages)
def test_open_damaged_csv(photos: Path, damage: Any) -> None:
    lines = ["file_name,labels", *(f"{name},{'|'.join(labels)}" for name, labels in ROWS)]
    described(photos, "labels.csv", damaged("\n".join(lines).encode(), damage))


HUGE = instances(ROWS)
HUGE["annotations"][0]["area"] = 10**400  # found by more examples than are drawn here


@seeded
@given(changed_json(instances(ROWS)))
@example(HUGE)
def test_open_coco_json(photos: Path, document: Any) -> None:
    described(photos, "_annotations.coco.json", json.dumps(document).encode())


@seeded
@given(changed_json({"file_name": ROWS[0][0], "labels": ["a", 1], "objects": {"category": [1]}}))
def test_open_metadata_jsonl(photos: Path, entry: Any) -> None:
    described(photos, "metadata.jsonl", json.dumps(entry).encode())
