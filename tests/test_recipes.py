"""The page of recipes: its commands and snippets, as they stand, find what `index search --by semantic` finds."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from centerhash.data import open_dataset
from centerhash.encoding.bulk import encode_to_file
from centerhash.index import Index
from centerhash.model.model import HashModel
from tests.own_images import png
from tests.toys import cli

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "recipes.md"
PLACEHOLDER = "0123456789abcdef"
ASKED = "7"


def section(title: str) -> str:
    """The text under a heading of the page, with an id that the index has."""
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0].replace(PLACEHOLDER, ASKED)


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(title), flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(feature_run: Path, feature_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of 160 items, many of them equally far from each other; not to be changed."""
    folder = tmp_path_factory.mktemp("recipes")
    encode_to_file(HashModel.load(feature_run), [str(feature_folder)], folder / "codes.npz")
    with Index.create(folder / "photos.index", feature_run) as index:
        index.import_codes(folder / "codes.npz")
    return folder


@pytest.fixture
def expected(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is to be found, in a folder with a copy of the index."""
    shutil.copytree(place / "photos.index", tmp_path / "photos.index")
    monkeypatch.chdir(tmp_path)
    words = re.search(rf"`(centerhash index search \S+ --id {PLACEHOLDER} --by semantic)`", PAGE.read_text())
    assert words is not None
    done = cli(*shlex.split(words[1].replace(PLACEHOLDER, ASKED))[1:], "--json")
    found = [(row["id"], row["distance"]) for row in done.json["results"]]
    assert len(found) == 10
    assert len({distance for _, distance in found}) < 10  # ties, which other programs may order otherwise
    return found


def exported(title: str) -> None:
    """Run the export of a recipe, here."""
    for line in blocks(title, "console"):
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, done.err


def nearest(title: str) -> list[tuple[str, int]]:
    """What the snippet of a recipe finds, here."""
    exported(title)
    (snippet,) = blocks(title, "python")
    names: dict[str, Any] = {}
    exec(compile(snippet, title, "exec"), names)
    return list(names["nearest"])


def same_but_for_ties(found: list[tuple[str, int]], expected: list[tuple[str, int]]) -> bool:
    """Whether distances are equal, and all items nearer than the last one."""
    last = expected[-1][1]  # of the items that are as far as the last one, any may be there
    nearer = [sorted(row for row in rows if row[1] < last) for rows in (found, expected)]
    return [far for _, far in found] == [far for _, far in expected] and nearer[0] == nearer[1]


def test_numpy(expected: list[tuple[str, int]]) -> None:
    assert nearest("numpy") == expected


@pytest.mark.parametrize(("title", "library"), [("DuckDB over parquet", "duckdb"), ("usearch", "usearch")])
def test_other_programs(expected: list[tuple[str, int]], title: str, library: str) -> None:
    pytest.importorskip(library)
    assert same_but_for_ties(nearest(title), expected)


def test_pgvector(expected: list[tuple[str, int]]) -> None:
    exported("PostgreSQL with pgvector")
    (snippet,) = blocks("PostgreSQL with pgvector", "python")
    exec(compile(snippet, "recipes.md", "exec"), {})
    with Path("items.csv").open(newline="") as table:
        rows = dict(csv.reader(table))
    apart = {
        id: sum(one != other for one, other in zip(code, rows[ASKED], strict=True))
        for id, code in rows.items()
    }
    pairs = sorted((far, id) for id, far in apart.items() if id != ASKED)
    assert same_but_for_ties([(id, far) for far, id in pairs[:10]], expected)


def test_parquet_files_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as the library `datasets` writes it: images with their names, and numbers of classes."""
    monkeypatch.chdir(tmp_path)
    images = {f"{name}.png": png(number) for number, name in enumerate(("first", "second", "third"))}
    rows = [{"image": {"bytes": data, "path": f"photos/{name}"}} for name, data in images.items()]
    table = pa.Table.from_pylist([{**row, "label": number % 2} for number, row in enumerate(rows)])
    features = {"label": {"names": ["bird", "cat"], "_type": "ClassLabel"}}
    facts = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(facts), "photos.parquet")
    (snippet,) = blocks("Parquet files of images", "python")
    exec(compile(snippet, "recipes.md", "exec"), {})
    assert {path.name: path.read_bytes() for path in Path("unpacked").glob("*.png")} == images
    dataset = open_dataset("unpacked")
    assert dataset.classes == ("bird", "cat")
    labels = dict(zip(dataset.names, dataset.labels.tolist(), strict=True))
    assert labels == {"first.png": [True, False], "second.png": [False, True], "third.png": [True, False]}
