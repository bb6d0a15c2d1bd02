from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, OutputError
from centerhash.search import Collection, Found
from centerhash.search.folder import full_engine
from tests.toys import CLASSES, separable


def answers_of(engine: str, run: Path, folder: Path) -> list[list[Found]]:
    """What a collection with this engine answers, opened again after a few changes."""
    features, labels = separable(80, seed=1)
    with Collection.create(folder, run, engine=engine) as collection:
        packed = pack(collection.model.encode_features(features))
        names = [[name for name, there in zip(CLASSES, row, strict=True) if there] for row in labels]
        collection.add_codes(packed, [f"{row:03d}" for row in range(80)], names)
        collection.remove(["003", "017"])
        collection.compact()
        assert collection.verify() == []
        assert collection.info()["items"] == 78
    with Collection.open(folder, read_only=True) as collection:
        collection.refresh()
        return [
            collection.by_id("005", k=20).found,
            collection.by_labels({"cat": 2, "dog": 1}, k=7, labels=["cat"]).found,
            collection.by_labels({"elk": 1}, k=30, within=3).found,
        ]


@pytest.mark.parametrize(
    "engine", ["faiss", "faiss?kind=hnsw", pytest.param("milvus:", marks=pytest.mark.slow)]
)
def test_all_engines_answer_alike(engine: str, feature_run: Path, tmp_path: Path) -> None:
    flat = answers_of("flat", feature_run, tmp_path / "flat")
    if engine == "milvus:":
        engine += str(tmp_path / "items.db")
    assert answers_of(engine, feature_run, tmp_path / "other") == flat
    assert [len(found) for found in flat[:2]] == [20, 7]


def test_engines_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "index"
    assert full_engine("flat", place) == "flat"
    assert full_engine("faiss?kind=hnsw", place) == "faiss?kind=hnsw"
    named = full_engine("milvus:items.db", place)
    assert named.startswith(f"milvus:{tmp_path.resolve()}/items.db#centerhash_")
    assert named != full_engine("milvus:items.db", tmp_path / "another")  # two may share one server
    assert full_engine("milvus:http://host:19530#mine", place) == "milvus:http://host:19530#mine"


def test_odd_names_of_folders(feature_run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "what? a:b #1 ü"
    Collection.create(odd, feature_run).close()
    assert (odd / "items").is_dir()
    with Collection.open(odd) as collection:
        assert len(collection) == 0
    with pytest.raises(ConfigError, match=r"has a '\?' in its path"):
        Collection.create(tmp_path / "what?", feature_run, engine="faiss")


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("milvus", "milvus needs an address: milvus:http://127.0.0.1:19530, or milvus:items.db"),
        ("milvus:#name", "milvus needs an address"),
        ("flat:elsewhere", "the engine 'flat' keeps its items in the collection: write it without ':'"),
        ("", "unknown engine ''. Allowed: faiss, flat, milvus"),
    ],
)
def test_engines_that_are_refused(engine: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        full_engine(engine, tmp_path / "index")
    assert message in str(refused.value)


def test_a_link_that_leads_to_itself_is_no_place_for_a_collection(feature_run: Path, tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OutputError, match=r"cannot write '.*round'"):
        Collection.create(tmp_path / "round", feature_run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["round"]
