"""`centerhash index` for embeddings and codes, and what it does with an index of photos."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from centerhash.index import Index, Results
from centerhash.photos import PhotoIndex
from tests.toys import CLASSES, cli, refused, separable


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of features (30, 24), ids and labels."""
    folder = tmp_path_factory.mktemp("tables")
    features, labels = separable(30)
    np.save(folder / "features.npy", features)
    (folder / "ids.txt").write_text("".join(f"item-{row}\n" for row in range(30)))
    rows = ("|".join(CLASSES[column] for column in np.flatnonzero(row)) for row in labels)
    (folder / "labels.txt").write_text("".join(f"{row}\n" for row in rows))
    return folder


@pytest.fixture
def stored(tmp_path: Path, feature_run: Path, tables: Path) -> Path:
    """An index of thirty embeddings, made by the command."""
    folder, given = (
        tmp_path / "toy.index",
        ("--ids", tables / "ids.txt", "--item-labels", tables / "labels.txt"),
    )
    done = cli("index", "add", folder, tables / "features.npy", "--model", feature_run, *given)
    assert done.code == 0, done.err
    assert "30 items added, 0 already known; 30 items" in done.text
    return folder


@pytest.fixture
def photo_folder(tmp_path: Path, image_run: Path) -> Path:
    """An empty index of photos."""
    PhotoIndex.create(tmp_path / "photos.index", image_run).close()
    return tmp_path / "photos.index"


def test_add_again(stored: Path, feature_run: Path, tables: Path) -> None:
    again = (
        "index",
        "add",
        stored,
        tables / "features.npy",
        "--model",
        feature_run,
        "--ids",
        tables / "ids.txt",
    )
    assert "0 items added, 30 already known; 30 items" in cli(*again).text
    assert "30 items added" in cli(*again[:-2]).text
    assert cli("index", "list", stored, "--json").json["total"] == 60


def test_search(stored: Path, tables: Path) -> None:
    features = np.load(tables / "features.npy")
    np.save(tables / "query.npy", features[3])
    with Index.open(stored, read_only=True) as index:
        item = index.get("item-3")
        expected: dict[tuple[str | Path, ...], Results] = {
            ("--features", tables / "query.npy"): index.search(features[3]),
            ("--id", "item-3"): index.search(id="item-3"),
            ("--code", item.code.tobytes().hex()): index.search(code=item.code),
            ("--labels", "cat:0.7, dog"): index.search(labels="cat:0.7, dog"),
            ("--like", "item-3", "--unlike", "item-4"): index.search(like=["item-3"], unlike=["item-4"]),
            ("--id", "item-3", "--having", "cat"): index.search(id="item-3", having="cat"),
        }
    for words, results in expected.items():
        found = cli("index", "search", stored, *words, "--json").json
        assert [row["id"] for row in found["results"]] == [row.id for row in results]
        assert [row["label"] for row in found["labels"]] == [row.label for row in results.labels]
    assert "item-3" in cli("index", "search", stored, "--features", tables / "query.npy", "-k", "1").out
    batch = cli("index", "search", stored, "--features", tables / "features.npy", "-k", "2", "--json").json
    assert len(batch) == 30


def test_list_and_info(stored: Path) -> None:
    listed = cli("index", "list", stored, "-k", "2", "--skip", "1", "--json").json
    assert (listed["total"], [row["id"] for row in listed["items"]]) == (30, ["item-28", "item-27"])
    assert "30 items" in cli("index", "list", stored).out
    info = cli("index", "info", stored, "--json").json
    assert (info["size"], info["bits"]) == (30, 16)
    assert sum(info["labels"].values()) > 0
    assert "cat" in cli("index", "info", stored).out


def test_remove_and_compact(stored: Path) -> None:
    assert "2 removed, 28 items left" in cli("index", "remove", stored, "item-1", "item-2", "unknown").text
    assert "28 items" in cli("index", "compact", stored).text
    assert "no damage" in cli("index", "verify", stored).out


def test_damage_is_reported(stored: Path) -> None:
    content = bytearray((stored / "items.db").read_bytes())
    for start in range(4096, len(content), 512):
        content[start] ^= 255
    (stored / "items.db").write_bytes(content)
    done = cli("index", "verify", stored)
    assert (done.code, "items.db" in done.err) == (1, True)


def test_backup_export_import(stored: Path, tmp_path: Path) -> None:
    assert "30 items" in cli("index", "backup", stored, tmp_path / "copy").text
    assert "30 items" in cli("index", "export", stored, tmp_path / "codes.npz").text
    assert "16-bit codes" in cli("index", "create", tmp_path / "codes", "--bits", "16").text
    assert "30 codes added" in cli("index", "import", tmp_path / "codes", tmp_path / "codes.npz").text
    with Index.open(tmp_path / "codes", read_only=True) as codes, Index.open(tmp_path / "copy") as copy:
        for item in codes:
            assert item.code.tobytes() == copy.get(item.id).code.tobytes()


def test_photo_indexes(photo_folder: Path, tables: Path, tmp_path: Path) -> None:
    for command in ("verify", "compact", "info"):
        assert cli("index", command, photo_folder).code == 0
    assert cli("index", "backup", photo_folder, tmp_path / "backup").code == 0
    PhotoIndex.open(tmp_path / "backup", read_only=True).close()
    assert "roots" in json.loads(cli("index", "info", photo_folder, "--json").out)
    for command, argument in (("add", tables / "features.npy"), ("remove", "x"), ("import", "codes.npz")):
        assert "centerhash photos" in refused(cli("index", command, photo_folder, argument))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["create", "INDEX"], "INDEX"),
        (["create", "new", "--model", "run", "--bits", "8"], "bits"),
        (["add", "new", "FEATURES"], "--model"),
        (["add", "INDEX", "nowhere.npy"], "nowhere.npy"),
        (["add", "INDEX", "IDS"], "ids.txt"),
        (["add", "INDEX", "FEATURES", "--ids", "nowhere.txt"], "nowhere.txt"),
        (["add", "INDEX", "FEATURES", "--model", "coco"], "--model"),
        (["search", "INDEX"], "--labels"),
        (["search", "INDEX", "--id", "x", "--labels", "cat"], "--id"),
        (["search", "INDEX", "--labels", "unicorn"], "unicorn"),
        (["search", "nowhere", "--labels", "cat"], "nowhere"),
        (["info", "nowhere"], "nowhere"),
        (["verify", "nowhere"], "nowhere"),
        (["import", "INDEX", "nowhere.npz"], "nowhere.npz"),
        (["export", "INDEX", "codes", "--to", "faiss"], "faiss"),
    ],
)
def test_rejected(stored: Path, tables: Path, tmp_path: Path, words: list[str], named: str) -> None:
    places = {
        "INDEX": stored,
        "FEATURES": tables / "features.npy",
        "IDS": tables / "ids.txt",
        "new": tmp_path / "new",
    }
    message = refused(cli("index", *(places.get(word, word) for word in words)))
    assert (str(stored) if named == "INDEX" else named) in message
