from __future__ import annotations

import json
from pathlib import Path

import pytest

from centerhash.codes import pack
from centerhash.core.errors import OutputError
from centerhash.search import Index, Result
from centerhash.search.folder import full_store
from tests.toys import CLASSES, separable


def answers_of(store: str, run: Path, folder: Path) -> list[list[Result]]:
    """What an index with this store answers, opened again after a few changes."""
    features, labels = separable(80, seed=1)
    with Index.create(folder, run, store=store) as index:
        packed = pack(index.model.encode_features(features))
        names = [[name for name, there in zip(CLASSES, row, strict=True) if there] for row in labels]
        index.add_codes(packed, [f"{row:03d}" for row in range(80)], names)
        index.remove(["003", "017"])
        index.compact()
        assert index.verify() == []
        assert index.info()["size"] == 78
    with Index.open(folder, read_only=True) as index:
        index.refresh()
        return [
            list(index.search(id="005", k=20)),
            list(index.search(labels={"cat": 2, "dog": 1}, k=7, having=["cat"])),
            list(index.search(labels={"elk": 1}, k=30, within=3)),
        ]


@pytest.mark.slow
def test_all_stores_answer_alike(feature_run: Path, tmp_path: Path) -> None:
    flat = answers_of("flat", feature_run, tmp_path / "flat")
    assert (
        answers_of(f"milvus:{tmp_path / 'items.db'}?consistency=Strong", feature_run, tmp_path / "other")
        == flat
    )
    assert [len(found) for found in flat[:2]] == [20, 7]


def test_stores_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "index"
    assert full_store("flat", place) == "flat"
    named = full_store("milvus:items.db", place)
    assert named.startswith(f"milvus:{tmp_path.resolve()}/items.db#centerhash_")
    assert named != full_store("milvus:items.db", tmp_path / "another")  # two may share one server
    assert full_store("milvus:http://host:19530#mine", place) == "milvus:http://host:19530#mine"


def test_odd_names_of_folders(feature_run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "what? a:b #1 ü"
    Index.create(odd, feature_run).close()
    assert (odd / "items").is_dir()
    with Index.open(odd) as index:
        assert len(index) == 0


@pytest.mark.parametrize("store", ["faiss", "faiss?kind=hnsw&links=16"])
def test_an_index_of_before_with_the_faiss_engine_opens_as_flat(
    feature_run: Path, tmp_path: Path, store: str
) -> None:
    folder = tmp_path / "index"
    before = answers_of("flat", feature_run, folder)
    spec = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**spec, "store": store}))
    structure = folder / "items" / "segment-000002-0badcafe.faiss"
    structure.write_bytes(b"a structure that took much space")
    with Index.open(folder, read_only=True) as index:
        assert list(index.search(id="005", k=20)) == before[0]
    assert structure.exists()  # a reader changes nothing
    with Index.open(folder) as index:
        assert list(index.search(id="005", k=20)) == before[0]
    assert not structure.exists()


def test_a_link_that_leads_to_itself_is_no_place_for_an_index(feature_run: Path, tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OutputError):
        Index.create(tmp_path / "round", feature_run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["round"]
