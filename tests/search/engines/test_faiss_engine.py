from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import Packed
from centerhash.core.errors import ConfigError, DataError, OutputError
from centerhash.search.engines import faiss_engine
from centerhash.search.engines.base import Filter
from centerhash.search.engines.faiss_engine import FaissIndex
from centerhash.search.engines.flat import FlatIndex

COUNT = 9_000  # more than the journal takes: one add makes one segment


@pytest.fixture(autouse=True)
def small_segments_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_engine, "LARGE", 1_000)


def clustered(count: int, bits: int = 64, flips: int = 5, seed: int = 0) -> Packed:
    """Codes around 50 centers, each with a few bits flipped."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).random((50, bits)) < 0.5
    codes = centers[generator.integers(0, 50, count)]
    for _ in range(flips):
        codes[np.arange(count), generator.integers(0, bits, count)] ^= True
    return np.packbits(codes, axis=1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of clustered codes; every third item carries `dog`, every second one `car`. Not to be changed."""
    folder = tmp_path_factory.mktemp("faiss") / "index"
    labels = [("dog",) * (id % 3 == 0) + ("car",) * (id % 2 == 0) for id in range(COUNT)]
    with FaissIndex.create(folder, 64) as index:
        index.add(clustered(COUNT), range(COUNT), labels)
    return folder


def proposing(monkeypatch: pytest.MonkeyPatch, rows: list[int]) -> None:
    """Let faiss propose the same rows for every query."""

    class Structure:
        def search(self, queries: Packed, wanted: int) -> tuple[None, Any]:
            return None, np.tile(np.array(rows, np.int64), (len(queries), 1))

    monkeypatch.setattr(faiss_engine._Structures, "of", lambda *_: Structure())


def recall(index: FaissIndex, queries: Packed, k: int = 10) -> float:
    """The share of the true k nearest items that are found; one as near as the k-th is as good."""
    found, exact = index.search(queries, k), FlatIndex._search(index, queries, k, Filter())
    shares = [
        (hits.distances <= truth.distances[-1]).sum() / len(truth)
        for truth, hits in zip(exact, found, strict=True)
    ]
    return float(np.mean(shares))


@pytest.mark.parametrize(
    ("kind", "settings", "bits"),
    [("multihash", {}, 64), ("multihash", {}, 48), ("multihash", {"flips": 2}, 20), ("hnsw", {}, 64)],
)
def test_most_neighbours_of_clustered_codes_are_found(
    tmp_path: Path, kind: str, settings: dict[str, int], bits: int
) -> None:
    with FaissIndex.create(tmp_path / "index", bits, kind, **settings) as index:
        assert not index.exact
        index.add(clustered(COUNT, bits), range(COUNT))
        assert recall(index, clustered(50, bits, seed=1)) > 0.85
    assert structure_files(tmp_path / "index")  # faiss was asked, not the scan alone


def test_proposals_are_ranked_by_true_distance_then_id_and_nonsense_is_left_out(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaissIndex.open(stored, read_only=True) as index:
        proposing(monkeypatch, [8, -1, 5, 3, 5, COUNT, 2**40])
        query = index.get([5])[0].code[None]
        [hits] = index.search(query, 3)
        codes = clustered(COUNT)
        expected = sorted((int(np.bitwise_count(codes[id] ^ query[0]).sum()), id) for id in (3, 5, 8))
        assert [(distance, id) for id, distance in hits] == expected


def test_too_few_proposals_are_made_up_by_the_scan(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = clustered(2, seed=4)
    with FaissIndex.open(stored, read_only=True) as index:
        exact = FlatIndex._search(index, query, 4, Filter())
        proposing(monkeypatch, [1, 2, 3])
        assert [list(hits) for hits in index.search(query, 4)] == [list(hits) for hits in exact]


@pytest.mark.parametrize("labels", [["dog"], ["dog", "car"], ["dog", "unicorn"]])
def test_a_label_filter_leaves_only_items_that_carry_all(stored: Path, labels: list[str]) -> None:
    query = clustered(5, seed=2)
    with FaissIndex.open(stored, read_only=True) as index:
        found = index.search(query, 10, labels)
        exact = FlatIndex._search(index, query, 10, Filter(tuple(labels)))
        for hits, truth in zip(found, exact, strict=True):
            assert len(hits) == len(truth)
            assert all(set(labels) <= set(item.labels) for item in index.get(hits.ids))


def test_removed_items_are_gone_and_new_ones_found_also_after_reopening(tmp_path: Path) -> None:
    codes = clustered(COUNT)
    with FaissIndex.create(tmp_path / "index", 64) as index:
        index.add(codes, range(COUNT))
        nearest = index.search(codes[:1], 3)[0].ids
        assert index.remove(nearest) == 3
        index.add(codes[:1], [COUNT + 7])
        assert not set(nearest) & set(index.search(codes[:1], 10)[0].ids)
    for read_only in (True, False):
        with FaissIndex.open(tmp_path / "index", read_only=read_only) as index:
            assert len(index) == COUNT - 2
            hits = index.search(codes[:1], 10)[0]
            assert not set(nearest) & set(hits.ids)
            assert next(iter(hits)) == (COUNT + 7, 0)


def test_answers_of_several_segments_are_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centerhash.search.engines.storage.MERGED_ROWS", COUNT)
    with FaissIndex.create(tmp_path / "index", 64) as index:
        for part in range(3):
            index.add(clustered(COUNT, seed=part), [f"{part}/{row:05d}" for row in range(COUNT)])
        assert index.info()["segments"] == 3
        for hits in index.search(clustered(20, seed=9), 10):
            pairs = [(distance, id) for id, distance in hits]
            assert pairs == sorted(pairs)
            assert len(set(hits.ids)) == 10
        assert recall(index, clustered(20, seed=9)) > 0.8


def structure_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.faiss"))


def test_structures_are_stored_once_and_replaced_with_their_segments(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with FaissIndex.create(folder, 64) as index:
        index.add(clustered(COUNT), range(COUNT))
        index.search(clustered(1), 3)
        assert not structure_files(folder)
    [first] = structure_files(folder)  # stored by close
    written = first.stat().st_mtime_ns
    with FaissIndex.open(folder) as index:
        index.search(clustered(1), 3)
    assert first.stat().st_mtime_ns == written
    with FaissIndex.open(folder) as index:
        index.remove(range(10))
        index.compact()
        index.search(clustered(1), 3)
    [second] = structure_files(folder)
    assert second != first


def test_a_stored_structure_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaissIndex.create(tmp_path / "index", 64) as index:
        index.add(clustered(COUNT), range(COUNT))
        before = [list(hits) for hits in index.search(clustered(5), 5)]

    def refuse(*_: Any) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(faiss_engine._Structures, "_built", refuse)
    with FaissIndex.open(tmp_path / "index", read_only=True) as index:
        assert [list(hits) for hits in index.search(clustered(5), 5)] == before


def test_a_damaged_structure_is_named_and_built_again(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with FaissIndex.create(folder, 64) as index:
        index.add(clustered(COUNT), range(COUNT))
        index.search(clustered(1), 3)
    with FaissIndex.open(folder) as index:
        assert index.verify() == []
    [file] = structure_files(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with FaissIndex.open(folder) as index:
        [problem] = index.verify()
        assert file.name in problem
        assert recall(index, clustered(20, seed=3)) > 0.85


def test_a_full_disk_does_not_keep_an_index_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FaissIndex.create(tmp_path / "index", 64)
    index.add(clustered(COUNT), range(COUNT))
    index.search(clustered(1), 1)

    def full(*_: Any) -> int:
        raise OutputError("the disk is full") from OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(faiss_engine, "write_arrays", full)
        index.close()
    with FaissIndex.open(tmp_path / "index") as again:
        assert len(again) == COUNT


def test_the_folder_is_a_flat_index_too(stored: Path) -> None:
    query = clustered(3, seed=6)
    with FlatIndex.open(stored, read_only=True) as flat, FaissIndex.open(stored, read_only=True) as index:
        assert [list(hits) for hits in flat.within(query, 6)] == [
            list(hits) for hits in index.within(query, 6)
        ]
        assert index.info()["settings"] == {"hashes": 3, "hash_bits": 21, "flips": 1}


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("multihsh", {}, "unknown kind of faiss index 'multihsh'. Did you mean 'multihash'"),
        ("hnsw", {"flips": 1}, "unknown setting of hnsw 'flips'"),
        ("hnsw", {"links": 1}, "links is at least 2"),
        ("multihash", {"hashes": 4}, "4 hashes of 21 bits do not fit codes of 64 bits"),
        ("multihash", {"flips": 22}, "flips 0 to hash_bits"),
        ("multihash", {"flips": 0.5}, "flips is a whole number, got 0.5"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    tmp_path: Path, kind: str, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        FaissIndex.create(tmp_path / "index", 64, kind, **settings)
    assert not (tmp_path / "index").exists()


def test_a_flat_index_and_damaged_settings_are_told_apart(tmp_path: Path) -> None:
    FlatIndex.create(tmp_path / "flat", 64).close()
    with pytest.raises(DataError, match="it is a flat index"):
        FaissIndex.open(tmp_path / "flat")
    FaissIndex.create(tmp_path / "index", 64).close()
    (tmp_path / "index" / "faiss.json").write_text("{")
    with pytest.raises(DataError, match=r"faiss\.json' is damaged"):
        FaissIndex.open(tmp_path / "index")
    FlatIndex.open(tmp_path / "index").close()  # the lock was given back
