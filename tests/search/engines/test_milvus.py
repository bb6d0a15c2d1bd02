"""Reaching Milvus: wrong addresses, servers that are away, and the child process behind a milvus-lite file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.search.engines import milvus_engine
from centerhash.search.engines.milvus_connection import Connection, file_of, shown
from centerhash.search.engines.milvus_engine import MilvusIndex
from tests.toys import process_environment

CODES = np.arange(40, dtype=np.uint8).reshape(20, 2)


@pytest.fixture
def file(tmp_path: Path, lite_file: Path) -> Path:
    """A name for a new file, where milvus-lite can be used."""
    return tmp_path / "new.db"


def children() -> list[str]:
    """What the milvus-lite processes of this process are called with."""
    listed = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if "milvus" in line]


def child_of(file: Path) -> int:
    """The process id of the milvus-lite of a file."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return next(int(line.split()[0]) for line in listed.stdout.splitlines() if str(file) in line)


def test_addresses() -> None:
    assert file_of("http://host:19530") is None
    assert file_of("https://host") is None
    assert file_of("folder/images.db") == Path.cwd() / "folder" / "images.db"
    assert shown("https://me:secret@host:19530/x") == "https://host:19530/x"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("folder", "a file that ends in .db, or a server such as http://host:19530, got 'folder'"),
        ("ftp://host:19530", "got 'ftp://host:19530'"),
        ("two words.db", "file names of up to 36 letters.*got 'two words.db'"),
        (f"{'x' * 40}.db", "file names of up to 36 letters"),
    ],
)
def test_wrong_addresses(address: str, message: str) -> None:
    for use in (lambda: MilvusIndex.open(address), lambda: MilvusIndex.create(address, 16)):
        with pytest.raises(ConfigError, match=message):
            use()


def test_a_file_that_is_not_there_is_not_made_by_opening(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        MilvusIndex.open(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_server_that_is_away_is_named_without_the_password() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(
            DataError, match=f"Milvus at 'http://127.0.0.1:{port}' .*Check the address"
        ) as caught:
            MilvusIndex.open(f"http://me:secret@127.0.0.1:{port}", timeout=1.0)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_the_child_process_ends_with_the_last_user_of_its_file(file: Path) -> None:
    before = children()
    first = MilvusIndex.create(str(file), 16)
    second = MilvusIndex.open(str(file), read_only=True)
    assert len(children()) == len(before) + 1
    first.add(CODES, list(range(20)))
    first.close()
    assert len(second) == 20
    second.close()
    second.close()
    assert children() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["new.db"]
    with MilvusIndex.open(str(file)) as again:
        assert list(again.ids()) == list(range(20))
    assert children() == before


@pytest.mark.slow
def test_a_failed_opening_leaves_no_child_process(file: Path) -> None:
    before = children()
    MilvusIndex.create(str(file), 16, "birds").close()
    with pytest.raises(DataError):
        MilvusIndex.open(str(file), "fish")
    with pytest.raises(DataError):
        MilvusIndex.create(str(file), 24, "birds")
    with pytest.raises(ConfigError):
        MilvusIndex.create(str(file), 20, "fish")
    assert children() == before


@pytest.mark.slow
def test_a_collection_of_others_is_refused(file: Path) -> None:
    connection = Connection(str(file), 20.0, create=True)
    connection.call("create_collection", "theirs", dimension=4)
    connection.close()
    with pytest.raises(DataError):
        MilvusIndex.open(str(file), "theirs")


@pytest.mark.slow
def test_a_milvus_that_dies_is_told_in_plain_words(file: Path) -> None:
    index = MilvusIndex.create(str(file), 16)
    index.add(CODES, list(range(20)))
    os.kill(child_of(file), signal.SIGKILL)
    index._connection.timeout = 2.0  # the dead need no patience
    with pytest.raises(DataError, match=r"Milvus at '.*new\.db' .*Check the address and that it runs"):
        index.search(CODES)
    index.close()
    with MilvusIndex.open(str(file)) as again:
        assert len(again) == 20


HOLDER = """
import sys, numpy, centerhash.search.engines.milvus_engine as engine
index = engine.MilvusIndex.create(sys.argv[1], 16)
index.add(numpy.arange(40, dtype=numpy.uint8).reshape(20, 2), list(range(20)))
print("added", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has added twenty items to the file and has it open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "added\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_file_is_open_in_one_process_and_loses_nothing_when_that_is_killed(
    file: Path, holder: subprocess.Popen[str]
) -> None:
    for _ in range(2):  # the refusal must not take the lock away
        with pytest.raises(DataError, match=r"new\.db' is open in another process: .*use a Milvus server"):
            MilvusIndex.open(str(file))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with MilvusIndex.open(str(file)) as index:
        assert list(index.ids()) == list(range(20))
        index.add(CODES, list(range(20, 40)))
        assert len(index) == 40


@pytest.mark.slow
def test_ties_are_complete_where_milvus_gives_few_answers(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_engine, "MAX_ANSWERS", 16)
    codes = np.repeat(CODES[:3], 60, axis=0)
    ids = np.random.default_rng(0).permutation(180)
    with MilvusIndex.create(str(file), 16) as index:
        index.add(codes, ids.tolist(), [("even",) if id % 2 == 0 else () for id in ids])
        nearest = sorted(ids[:60].tolist())
        assert index.search(codes[:1], 25)[0].ids == tuple(nearest[:25])
        even = [id for id in nearest if id % 2 == 0]
        assert index.search(codes[:1], 20, ["even"])[0].ids == tuple(even[:20])
        assert index.within(codes[:1], 0)[0].ids == tuple(nearest)
        assert len(index.within(codes[:1], 16)[0]) == 180
