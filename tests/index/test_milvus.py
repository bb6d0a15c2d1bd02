"""`MilvusIndex` against a real Milvus server: what it returns is what `Index` returns."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.index import Index
from centerhash.index.milvus import MilvusIndex
from tests.toys import CLASSES, cli, separable

if TYPE_CHECKING:
    from centerhash.model.model import HashModel

ATTRIBUTES = {"price": float, "kind of": str}
LABELS = ("cat", "dog", "a 'quoted' \"label\"", "back\\slash", "Größe, 漢字 😀", '") or true or ("', "100%")
IDS = ("'", '"', "\\", '" or id > "', "%25", "tab\t", "ü", "漢字", "😀", " ", *map(str, range(40)))


@pytest.mark.parametrize(
    "address", ["", "http://host:19530#x", "milvus:ftp://h#x", "milvus:http://h", "milvus:http://h#1x"]
)
def test_open_rejected_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="milvus:http"):
        MilvusIndex.open(address)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Milvus server with its data in a temporary folder."""
    package = pytest.importorskip("milvus", reason="the package 'milvus' (the server) is not installed")
    process, folder = package.default_server, tmp_path_factory.mktemp("server")
    process.set_base_dir(str(folder))
    process.config.set("proxy.timeTickInterval", 20)  # strong consistency waits for a tick
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of sockets that it tries on ports in use
            process.start()
    except (OSError, RuntimeError) as error:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"the Milvus server does not start here: {error}")
    yield f"milvus:http://{process.server_address}:{process.listen_port}"
    process.server_proc.kill()  # nothing of it is kept, and `stop` does not wait long enough for a busy machine
    process.server_proc.wait()
    process.stop()
    shutil.rmtree(folder, ignore_errors=True)


def items() -> dict[str, Any]:
    """Items with few different codes, odd ids, labels and attributes, and missing values."""
    generator = np.random.default_rng(0)
    distinct = generator.integers(0, 256, (5, 2), np.uint8)
    return {
        "codes": distinct[generator.integers(5, size=len(IDS))],
        "ids": list(IDS),
        "labels": [[name for name in LABELS if generator.random() < 0.4] for _ in IDS],
        "attributes": {
            "price": [None if row % 7 == 0 else float(row) / 4 for row in range(len(IDS))],
            "kind of": [None if row % 5 == 0 else ("a 'b'", "ü")[row % 2] for row in range(len(IDS))],
        },
    }


@pytest.fixture(scope="module")
def pair(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, MilvusIndex]]:
    folder = tmp_path_factory.mktemp("local") / "index"
    with (
        Index.create(folder, bits=16, attributes=ATTRIBUTES) as local,
        MilvusIndex.create(f"{server}#shared", bits=16, attributes=ATTRIBUTES) as remote,
    ):
        for index in (local, remote):
            assert index.add(**items()).added == len(IDS)
        yield local, remote


def by_distance(index: Index | MilvusIndex, **query: Any) -> list[tuple[int, str]]:
    """All results: their order among equal distances is not promised."""
    return sorted((row.distance, row.id) for row in index.search(**query, k=len(IDS)))


QUERIES: list[dict[str, Any]] = [
    {"code": "0f0f"},
    {"id": "😀"},
    {"code": "0f0f", "within": 7},
    *({"code": "ffff", "having": label} for label in LABELS),
    {"code": "ffff", "having": ["cat", "dog"], "without": [LABELS[5]]},
    {"code": "0000", "where": {"price": (2.5, 7.25)}},
    {"code": "0000", "where": {"price": (None, 3)}},
    {"code": "0000", "where": {"price": (9, None), "kind of": "a 'b'"}},
    {"code": "0000", "where": {"kind of": ["ü", "a 'b'"]}, "without": "cat"},
]


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_search_equals_index(pair: tuple[Index, MilvusIndex], query: dict[str, Any]) -> None:
    local, remote = pair
    assert by_distance(remote, **query) == by_distance(local, **query)


@pytest.mark.slow
def test_search_returns_items(pair: tuple[Index, MilvusIndex]) -> None:
    local, remote = pair
    assert len(remote) == len(local) == len(IDS)
    for row in remote.search(code="0f0f", k=len(IDS)):
        item = local.get(row.id)
        values = {name: value for name, value in item.attributes.items() if value is not None}
        assert (sorted(row.labels), dict(row.attributes)) == (sorted(item.labels), values)


@pytest.mark.slow
def test_add_stored_ids(pair: tuple[Index, MilvusIndex]) -> None:
    _, remote = pair
    again = {**items(), "labels": [["cat"]] * len(IDS)}
    assert remote.add(**again).known == len(IDS)
    assert len(by_distance(remote, code="0f0f", having="cat")) < len(IDS)
    assert remote.add(**items(), replace=True).known == len(IDS)
    assert len(remote) == len(IDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "error", "named"),
    [
        ({"id": "gone"}, InputError, "gone"),
        ({}, InputError, "exactly one"),
        ({"code": "0f"}, InputError, "16"),
        ({"code": "0f0f", "where": {"prize": 3}}, InputError, "prize"),
        ({"labels": "cat"}, ConfigError, "model="),
    ],
)
def test_search_rejected_queries(
    pair: tuple[Index, MilvusIndex], query: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        pair[1].search(**query)


@pytest.mark.slow
def test_search_embeddings_and_labels(server: str, toy_model: HashModel, tmp_path: Path) -> None:
    features: NDArray[np.float32] = separable(60)[0]
    address, ids = f"{server}#embeddings", list(map(str, range(60)))
    with (
        Index.create(tmp_path / "index", toy_model) as local,
        MilvusIndex.create(address, toy_model) as remote,
    ):
        for index in (local, remote):
            index.add(features, ids=ids)
        nearest = [row.distance for row in local.search(features[3], by="semantic", k=60)]
        assert [row.distance for row in remote.search(features[3], k=60)] == nearest
        best = remote.search(labels={CLASSES[0]: 1.0}, k=5)
        assert all(CLASSES[0] in row.labels for row in best)
    with MilvusIndex.open(address) as remote:
        assert len(remote.search(code=pack(toy_model.encode_features(features[:1]))[0], k=3)) == 3
    with pytest.raises(DataError, match="embeddings"):
        MilvusIndex.create(address, toy_model)
    with pytest.raises(DataError, match="nothing"):
        MilvusIndex.open(f"{server}#nothing")


@pytest.mark.slow
def test_export_to_milvus(pair: tuple[Index, MilvusIndex], server: str) -> None:
    local, _ = pair
    finished = cli("index", "export", local.folder, f"{server}#exported")
    assert finished.code == 0, finished.err
    with MilvusIndex.open(f"{server}#exported") as remote:
        for query in ({"code": "0f0f"}, {"code": "0000", "where": {"price": (2.5, 7.25)}, "having": "dog"}):
            assert by_distance(remote, **query) == by_distance(local, **query)
