"""The store in Milvus: rows and expressions without a server, and against a real one what the local store returns."""

from __future__ import annotations

import re
import shutil
import socket
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.search import Index, milvus
from centerhash.search.items import File, Filter, Item, ItemStore, PhotoInfo
from centerhash.search.milvus import Connection, MilvusStore, complete_address, expression, item_of, row_of
from centerhash.search.rankings import ByBoth, ByLabels, BySemantic, ByVisual, Ranking
from centerhash.search.store import Store
from tests.toys import CLASSES, separable

LABELS = ("cat", "dog", "a 'quoted' \"label\"", "back\\slash", "Größe, 漢字 😀", "new\nline", "100%", "")
ODD_IDS = ("'", '"', "\\", '" or id > "', "%25", "tab\t", "nul\0", "ü", "漢字", "😀", "\U0010ffff", " ")
LONG_IDS = ("ü" * 256, "x" * 512, "x" * 511 + "w")
CENTERS = np.random.default_rng(7).choice([-1, 1], (2, 16)).astype(np.int8)


# --- addresses


def test_addresses_are_completed() -> None:
    server = "milvus:http://host:19530"
    assert complete_address(server, "1a") == f"{server}#centerhash_1a"
    for whole in (f"{server}#mine", f"{server}?consistency=Strong#My_images_2"):
        assert complete_address(whole, "1a") == whole


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("", "milvus:http"),
        ("items.db", "items.db"),
        ("ftp://host:19530", "ftp"),
        *((f"http://host#{name}", f"'{name}'") for name in ("1st", "a-b", "a b", "ü", "x" * 256)),
        ("http://host?consistency=strong", "'strong'"),
        ("http://host?level=Strong", "'level'"),
    ],
)
def test_addresses_that_are_rejected(address: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        complete_address(f"milvus:{address}", "x")


@pytest.mark.slow
def test_an_unreachable_server_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_TIMEOUT", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(DataError, match=f"'http://{address}'") as caught:
            MilvusStore.open(f"milvus:http://me:secret@{address}#x")
    assert "secret" not in str(caught.value)


# --- rows and expressions


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1)))
def test_keys_have_the_order_of_the_ids_and_lead_back(ids: list[str]) -> None:
    keys = sorted(map(milvus.key_of, ids))
    assert [milvus.id_of(key) for key in keys] == sorted(ids)
    assert all(re.fullmatch("[0-9a-f]+", key) for key in keys)


@given(st.text(st.characters()))
def test_escaped_text_is_safe_and_leads_back(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.~%/ -]*", milvus.escaped(text))
    assert milvus.unescaped(milvus.escaped(text)) == text


SHOWS = '(ARRAY_CONTAINS(labels, "{0}") or ARRAY_CONTAINS(labels, "){0}"))'  # carried, or probable


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (Filter(), ""),
        (Filter(('") or true',)), f" and {SHOWS.format('%22%29 or true')}"),
        (
            Filter(("a",), ("b",), ("/x y/",)),
            f" and {SHOWS.format('a')} and not {SHOWS.format('b')} and "
            f'(ARRAY_CONTAINS(places, "b{blake2b(b"/x y/", digest_size=8).hexdigest()}"))',
        ),
        (Filter(under=()), ' and id == ""'),
        (Filter(after=1.5, cameras=('"',)), ' and taken >= 1.5 and camera in ["%22"]'),
        (Filter(before=0.0, cameras=()), ' and taken < 0.0 and taken > -62135596801.0 and id == ""'),
    ],
)
def test_expressions(only: Filter, expected: str) -> None:
    assert expression(only) == f"shown == true{expected}"


@pytest.mark.parametrize("path", [None, "%", "a/b c.jpg", "ü\udcff.jpg"])
def test_rows_lead_back_to_items(path: str | None) -> None:
    code, visual = np.array([1, 255], np.uint8), np.full(16, 255, np.uint8)
    files = () if path is None else (File(path, 3, 2.5), File(f"{path}2", None, None, gone=True))
    photo = PhotoInfo() if path is None else PhotoInfo(-1.5, "100%", 3, 4, "ü.jpg")
    item = Item("id", code, ("cat", "100%"), files, visual, {"dog": (255, 3)}, photo)
    row = row_of(item)
    assert seen([item_of({**row, "code": [row["code"]]})]) == seen([item])  # as Milvus returns it


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"labels": ("ü" * 257,)}, "label .*512"),
        ({"files": (File("/x" * 4_097),)}, "folders"),
        ({"files": tuple(File(f"/{'x' * 4_000}/{number}") for number in range(20))}, "65,535"),
        ({"labels": ("x",) * 1_025}, "1,025"),
        ({"scores": {f"label {number}": (1, 2) for number in range(5_000)}}, "65,535"),
    ],
)
def test_items_that_do_not_fit(columns: dict[str, Any], named: str) -> None:
    item = Item("a", np.zeros(2, np.uint8), ("ü" * 256,) * 1_024, (File("x" * 4_096),))
    row_of(item)
    with pytest.raises(InputError, match=named):
        row_of(replace(item, **columns))


# --- a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Milvus server with its data in a temporary folder."""
    package = pytest.importorskip("milvus", reason="the package 'milvus' (the server) is not installed")
    process, folder = package.default_server, tmp_path_factory.mktemp("server")
    process.set_base_dir(str(folder))
    process.config.set("proxy.timeTickInterval", 20)  # what strong consistency waits for
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
    shutil.rmtree(folder, ignore_errors=True)  # the server unpacks hundreds of megabytes


@pytest.fixture(scope="module")
def address(server: str) -> str:
    """A collection for all tests: creating one takes seconds."""
    store = f"{server}?consistency=Strong#shared"
    MilvusStore.create(store, 16).close()
    return store


@pytest.fixture
def remote(address: str) -> Iterator[MilvusStore]:
    """An empty store in Milvus."""
    with MilvusStore.open(address) as store:
        store.remove([item.id for item in store.items(hidden=True)])
        yield store


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Store]:
    """An empty store on this machine, which results of Milvus are compared with."""
    with Store.create(tmp_path / "local", 16) as store:
        yield store


def random_items(ids: list[str], seed: int = 0) -> list[Item]:
    """Items with few different codes, so that many distances are equal, in the order of their ids."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 256, (5, 2), np.uint8)
    items = []
    for row, id in enumerate(sorted(ids)):
        labels = tuple(name for name in LABELS if generator.random() < 0.3)
        files = () if row % 3 == 0 else [File(f"/folder {row % 2}/{row} ü.jpg", row, 1.5, row % 7 == 0)]
        files = tuple([*files, File(f"/other/{row}.jpg")] if row % 6 == 1 else files)
        visual = None if row % 5 == 0 else generator.integers(0, 256, 16, np.uint8)
        scores = {name: tuple(generator.integers(1, 256, 2).tolist()) for name in ("cat", "dog") if row % 4}
        photo = PhotoInfo(1e4 * (row * 7919 % 10_007), (None, "Canon", "ü")[row % 3], row + 1)
        items.append(
            Item(id, codes[generator.integers(5)], labels, tuple(sorted(files)), visual, scores, photo)
        )
    return items


def seen(items: Iterable[Item]) -> list[str]:
    """Items in a form that can be compared."""
    return list(map(repr, items))


def found(store: ItemStore, ranking: Ranking, k: int, only: Filter | None = None) -> list[tuple[str, int]]:
    return [(item.id, distance) for item, distance in store.search(ranking, k, only)]


def check_equal(remote: MilvusStore, local: Store) -> None:
    """Compare everything that does not depend on a ranking."""
    items = sorted(local.items(hidden=True), key=lambda item: item.id)
    ids = [item.id for item in items]
    assert seen(remote.items(hidden=True)) == seen(remote.get(ids)) == seen(items)
    assert seen(remote.items()) == seen(item for item in items if not item.hidden)
    assert remote.present([*ids, "unknown"]) == ids
    assert (len(remote), remote.hidden) == (len(local), local.hidden)
    assert sorted(remote.paths()) == sorted(local.paths())
    assert (remote.labels(), remote.folders()) == (local.labels(), local.folders())
    assert remote.cameras() == local.cameras()
    assert all(remote.files(folder) == local.files(folder) for folder in ("/folder 0", "/other", "/"))


@pytest.mark.slow
def test_results_are_those_of_the_local_store(remote: MilvusStore, local: Store, address: str) -> None:
    items = random_items([*ODD_IDS, *LONG_IDS, *(f"image {row}.jpg" for row in range(150))])
    for store in (remote, local):
        store.add_items(items[:80])  # in the order of their ids, which is that of ties in Milvus
        store.add_items(items[80:])
    check_equal(remote, local)
    filters = (
        Filter(),
        *(Filter((name,)) for name in LABELS),
        Filter(("cat", "dog"), ("100%",)),
        Filter(under=("/folder 1/",)),
        Filter(("cat",), (), ("/folder 0/", "/folder 1/")),
        *(Filter((name,)) for name in ("ca", "unknown", 'x") or ARRAY_CONTAINS(labels, "cat')),
        Filter(under=("/folder/",)),
        Filter(under=("/other/",), after=3e7),
        Filter(before=5e7, cameras=("ü", "unknown")),
    )
    query = items[3].code
    for only in filters:
        for k, within in ((1, None), (7, None), (200, None), (200, 5), (30, 0)):
            ranking = BySemantic(query, within)
            assert found(remote, ranking, k, only) == found(local, ranking, k, only), (only, k, within)
        assert remote.months(only) == local.months(only)
        page = remote.newest(2, 5, only)
        assert (seen(page[0]), page[1]) == (seen(local.newest(2, 5, only)[0]), local.newest(2, 5, only)[1])
    assert items[1].visual is not None
    visual = items[1].visual[None]
    weights, columns = {"cat": 0.7, "dog": 0.3}, {"cat": 0, "dog": 1}
    for other in (ByVisual(query, visual), ByBoth(query, visual), ByLabels(query, weights, CENTERS, columns)):
        assert found(remote, other, 40) == found(local, other, 40), other
    with MilvusStore.open(address, read_only=True) as reader:
        check_equal(reader, local)
        for change in (lambda: reader.add_items([replace(items[0], id="new")]), lambda: reader.remove(["ü"])):
            with pytest.raises(InputError, match="read-only"):
                change()


@pytest.mark.slow
@pytest.mark.parametrize("most", [5, 64])
def test_cut_ties(remote: MilvusStore, local: Store, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    items = random_items([f"{number:03d}" for number in np.random.default_rng(1).permutation(120)])
    for store in (remote, local):
        store.add_items(items)
    monkeypatch.setattr(milvus, "MAX_RESULTS", most)
    generator = np.random.default_rng(most)
    for k in (1, 3, 60, 200):
        code = items[generator.integers(120)].code ^ np.uint8(generator.integers(2))
        for only in (Filter(), Filter(("cat",))):
            assert found(remote, BySemantic(code), k, only) == found(local, BySemantic(code), k, only)


@pytest.mark.slow
def test_any_sequence_of_changes(remote: MilvusStore, local: Store) -> None:
    generator, ids = np.random.default_rng(5), [*ODD_IDS, "a", "B", "10", "9"]
    for step in range(12):
        chosen = generator.choice(ids, generator.integers(1, 9), replace=False).tolist()
        if step % 4 == 3:
            paths = [path for _, path in local.paths()]
            lost = [path for path in paths if generator.random() < 0.3]
            here = [
                (id, File(path, step)) for id, path in zip(chosen, ["/other/new.jpg", *paths], strict=False)
            ]
            for store in (remote, local):
                store.change_files(here[: step // 2], lost)
        elif step % 3 == 2:
            assert remote.remove([*chosen, chosen[0], "unknown"]) == local.remove([*chosen, "unknown"])
        else:
            new = random_items(chosen, step)
            known = local.present(chosen)
            for store in (remote, local):
                if known:
                    with pytest.raises(InputError, match=re.escape(repr(min(known)))):
                        store.add_items(new)
                store.add_items(new, replace=True)
        check_equal(remote, local)


@pytest.mark.slow
def test_a_failed_add_leaves_nothing(remote: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.add(np.zeros((1, 2), np.uint8), ["there"])
    call, upserts = Connection.call, list[int]()

    def failing(self: Connection, method: str, *arguments: Any, **options: Any) -> Any:
        result = call(self, method, *arguments, **options)
        if method == "upsert":
            upserts.append(len(arguments[1]))
            if len(upserts) == 3:
                raise DataError("the server is away")
        return result

    monkeypatch.setattr(milvus, "_KEYS", 10)
    monkeypatch.setattr(Connection, "call", failing)
    with pytest.raises(DataError, match="away"):
        remote.add(np.zeros((45, 2), np.uint8), [f"{row}" for row in range(45)])
    assert upserts == [10, 10, 10]
    assert [item.id for item in remote.items()] == ["there"]


@pytest.mark.slow
def test_consistency(server: str, remote: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    levels, call = set[Any](), Connection.call

    def noted(self: Connection, method: str, *arguments: Any, **options: Any) -> Any:
        levels.add(options.get("consistency_level"))
        return call(self, method, *arguments, **options)

    monkeypatch.setattr(Connection, "call", noted)
    for setting, read_only, level in (
        ("", False, "Session"),
        ("", True, "Bounded"),
        ("?consistency=Eventually", True, "Eventually"),
    ):
        with MilvusStore.open(f"{server}{setting}#shared", read_only=read_only) as store:
            levels.clear()
            store.search(BySemantic(np.zeros(2, np.uint8)), 3)
            len(store), list(store.items())
            assert levels == {level}
            if not read_only:
                levels.clear()
                store.add(np.zeros((1, 2), np.uint8), ["a"])
                assert store.remove(["a", "b"]) == 1
                assert levels == {None, "Strong"}


@pytest.mark.slow
def test_collections_are_created_once_and_must_be_ours(server: str, address: str) -> None:
    with pytest.raises(DataError, match="'shared'"):
        MilvusStore.create(address, 24)
    for bits in (0, 7, 20):
        with pytest.raises(ConfigError, match=str(bits)):
            MilvusStore.create(f"{server}#new", bits)
    with pytest.raises(DataError, match="'missing'"):
        MilvusStore.open(f"{server}#missing")
    connection = Connection(server.removeprefix("milvus:"))
    connection.call("create_collection", "theirs", dimension=4)
    connection.close()
    connection.close()
    with pytest.raises(InputError, match="closed"):
        connection.call("has_collection", "theirs")
    with pytest.raises(DataError, match="'theirs'"):
        MilvusStore.open(f"{server}#theirs")


@pytest.mark.slow
def test_an_index_in_milvus(server: str, feature_run: Path, tmp_path: Path) -> None:
    """The same changes to an index here and to one there give the same results."""
    features, labels = separable(80, seed=1)
    names = [[name for name, there in zip(CLASSES, row, strict=True) if there] for row in labels]
    ids, paths = [f"{row:03d}" for row in range(80)], [f"/photos/{row % 2}/{row}.jpg" for row in range(80)]
    results: list[list[Any]] = []
    for store in ("sqlite", f"{server}?consistency=Strong"):
        folder = tmp_path / store[:6]
        with Index.create(folder, feature_run, store=store) as index:
            assert index.info()["store"].startswith(store)
            packed = pack(index.model.encode_features(features))
            assert index.add_codes(packed, ids, names, paths).added == 80
            before = index.version
            assert index.remove(["003", "/photos/1/17.jpg"]) == 2
            assert index.version != before
            index.compact()
            assert index.verify() == []
            assert (index.info()["size"], len(index.missing())) == (78, 78)
            assert index.add_codes(packed, ids).known == 78
            index.remove(["003", "017"])
            index.export(folder / "out.npz")
        with Index.open(folder, read_only=True) as index:
            assert not index.refresh()
            results.append(
                [
                    list(index.search(id="005", k=20)),
                    list(index.search(labels={"cat": 2, "dog": 1}, k=7, having=["cat"])),
                    list(index.search(labels={"elk": 1}, k=30, within=3)),
                    list(index.search(id="005", k=9, by="semantic", under="/photos/1", without="cat")),
                    index.labels(),
                    index.folders(),
                    index.newest(having="cat")[1],
                    (folder / "out.npz").read_bytes(),
                ]
            )
            with pytest.raises(InputError, match="read-only"):
                index.remove("005")
    assert results[0] == results[1]
    assert [len(rows) for rows in results[0][:2]] == [20, 7]
    with pytest.raises(InputError):
        index.search(id="005")
