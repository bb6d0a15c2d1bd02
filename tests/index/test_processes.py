"""An index under real processes and threads: kills, a full disk, several writers, readers next to a writer."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import InputError
from centerhash.index import Index, store
from tests.index.naive import small_chunks
from tests.toys import PATIENCE, process_environment

CHANGING = """
import sys
import numpy as np
from centerhash.index import Index, store, writing

store.CHUNK_ROWS = writing.CHUNK_ROWS = 64
index, batch = Index.open(sys.argv[1]), int(sys.argv[2])
while True:
    ids = [f"{batch}/{number}" for number in range(7)]
    codes = np.random.default_rng(batch).integers(0, 256, (7, 2), dtype=np.uint8)
    index.add(codes=codes, ids=ids, labels=[("dog", f"batch {batch}")] * 7)
    print(batch, flush=True)
    if batch % 5 == 4:
        index.remove([f"{batch - 1}/{number}" for number in range(7)])
        print(-batch, flush=True)
    if batch % 20 == 19:
        index.compact()
    batch += 1
"""
FILLING = """
import resource, signal, sys
import numpy as np
from centerhash.core.errors import CenterhashError
from centerhash.index import Index

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, unlimited[1]))
index, stored = Index.open(sys.argv[1]), 0
try:
    while True:
        index.add(codes=np.zeros((100, 2), np.uint8), ids=range(stored, stored + 100))
        stored += 100
except CenterhashError as error:
    print(error)
assert len(index) == stored == len(index.search(code=[1] * 16, k=10**6))
assert index.verify() == []
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
index.add(codes=np.zeros((1, 2), np.uint8), ids=["last"])
print(stored + 1)
"""


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a script, and kill it after the block."""
    words = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=process_environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return line


def kills(folder: Path, count: int, seed: int) -> int:
    """Kill a process that adds, removes and compacts at any moment; return the number of batches, none of them lost."""
    moments, expected, doubtful, start = random.Random(seed), set[int](), set[int](), 0
    Index.create(folder, bits=16).close()
    for _ in range(count):
        with running(CHANGING, folder, start) as process:
            lines = "".join(line_of(process) for _ in range(moments.randrange(2, 30)))
            time.sleep(moments.random() * 0.03)  # any moment of the next change
            process.kill()
            assert process.stdout is not None
            reported = [int(line) for line in (lines + process.stdout.read()).splitlines()]
        for batch in reported:
            expected = expected | {batch} if batch >= 0 else expected - {-batch - 1}
        last = max(reported)
        doubtful |= {last + 1, last - 1} if last % 5 == 4 and reported[-1] >= 0 else {last + 1}
        start = last + 3
        with Index.open(folder) as index:
            assert index.verify() == []
            batches = {int(item.id.split("/")[0]) for item in index}
            assert len(index) == 7 * len(batches)
            labels = {"dog": len(index), **{f"batch {batch}": 7 for batch in batches}}
            assert index.labels() == dict(sorted(labels.items()))
            for item in index:
                batch, number = map(int, item.id.split("/"))
                codes = np.random.default_rng(batch).integers(0, 256, (7, 2), dtype=np.uint8)
                assert item.code.tolist() == codes[number].tolist()
        assert batches - doubtful == expected - doubtful
        expected = batches
    return len(expected)


def full_disk(folder: Path) -> int:
    """Add until the disk is full, without loss; return the number of items."""
    Index.create(folder, bits=16).close()
    with running(FILLING, folder) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    sentence, stored = out.splitlines()
    assert "items.db" in sentence
    with Index.open(folder) as index:
        assert len(index) == int(stored) > 300
        assert index.verify() == []
    return int(stored)


@pytest.mark.slow
def test_killed_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 64)
    assert kills(tmp_path / "index", 8, seed=5) > 20


@pytest.mark.slow
def test_add_on_full_disk(tmp_path: Path) -> None:
    full_disk(tmp_path / "index")


@pytest.mark.slow
def test_search_while_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 64)
    Index.create(tmp_path / "index", bits=16).close()
    with running(CHANGING, tmp_path / "index", 0) as process:
        line_of(process)
        versions, deadline = set[int](), time.monotonic() + PATIENCE
        with Index.open(tmp_path / "index", read_only=True) as reader:
            while len(versions) < 20 or max(versions) < 60:  # past several compactions
                assert time.monotonic() < deadline, "the writer does not get on"
                with reader.reading():
                    versions.add(reader.version)
                    ids = {item.id for item in reader}
                    assert {row.id for row in reader.search(code=[1] * 16, k=10**6)} == ids
                    assert len(ids) == 7 * len({id.split("/")[0] for id in ids})
        assert process.poll() is None


def test_add_by_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WRITER_WAIT_SECONDS", 0.05)
    with Index.create(tmp_path / "index", bits=16) as first, Index.open(tmp_path / "index") as second:
        with first.transaction():
            first.add(codes=np.zeros((1, 2), np.uint8))
            with pytest.raises(InputError, match="another process"):
                second.add(codes=np.zeros((1, 2), np.uint8))
            assert len(second) == 0
        second.add(codes=np.zeros((1, 2), np.uint8))
        assert [item.id for item in first] == ["0", "1"]


def test_search_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 16)
    failed, wrong, searched = list[Exception](), list[object](), [0, 0]
    done = threading.Event()

    def search(number: int, index: Index) -> None:
        generator = np.random.default_rng(number)
        try:
            while not done.is_set():
                code = generator.integers(0, 256, 2, dtype=np.uint8)
                results = index.search(code=code, k=1000, labels=None)
                searched[number] += 1
                for row in results:  # an item's code is its id
                    stored = np.array(divmod(int(row.id) % 65536, 256), np.uint8)
                    if row.distance != int(np.unpackbits(stored ^ code).sum()) or row.labels != (row.id,):
                        wrong.append((code, row))
                if len(results) % 3:
                    wrong.append(len(results))
        except Exception as error:
            failed.append(error)

    with Index.create(tmp_path / "index", bits=16) as index:
        threads = [threading.Thread(target=search, args=(number, index)) for number in range(2)]
        for thread in threads:
            thread.start()
        number, before = 0, [-1, -1]
        while not failed and (number < 120 or searched[0] < before[0] + 3 or searched[1] < before[1] + 3):
            before = [*searched] if number == 117 else before
            ids = [str(number + offset) for offset in range(3)]
            codes = np.array([divmod(int(id) % 65536, 256) for id in ids], np.uint8)
            index.add(codes=codes, ids=ids, labels=[[id] for id in ids])
            number += 3
            if number % 30 == 0:
                index.remove([str(number - offset) for offset in range(25, 28)])
                index.compact()
        done.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert (failed, wrong) == ([], [])
        assert min(searched) > 3
        assert index.verify() == []
