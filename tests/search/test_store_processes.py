"""The store under real processes: kills, a full disk, two writers, readers beside a writer."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from centerhash.core.errors import InputError
from centerhash.search.rankings import BySemantic
from centerhash.search.store import Store
from tests.reference.index import BITS, codes
from tests.toys import PATIENCE, process_environment

pytestmark = pytest.mark.slow

ADDING = """
import sys
import numpy as np
from centerhash.search.store import Store

store = Store.open(sys.argv[1])
batch = int(sys.argv[2])
while True:
    ids = [f"{batch}/{place}" for place in range(7)]
    codes = np.random.default_rng(batch).integers(0, 256, (7, 2), dtype=np.uint8)
    store.add(codes, ids, [("dog", f"batch {batch}")] * 7, [f"{id}.jpg" for id in ids])
    print(batch, flush=True)
    if batch % 5 == 4:
        store.remove([f"{batch - 1}/{place}" for place in range(7)])
        print(-batch, flush=True)
    if batch % 40 == 39:
        store.compact()
    batch += 1
"""

FILLING = """
import resource, signal, sys
import numpy as np
from centerhash.core.errors import CenterhashError
from centerhash.search.rankings import BySemantic
from centerhash.search.store import Store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, unlimited[1]))
store = Store.open(sys.argv[1])
stored = 0
try:
    while True:
        store.add(np.zeros((100, 2), np.uint8), [str(row) for row in range(stored, stored + 100)])
        stored += 100
except CenterhashError as error:
    print(error)
assert len(store) == stored == len(store.search(BySemantic(np.zeros(2, np.uint8)), 10**6))
try:
    store.add(np.zeros((20_000, 2), np.uint8), [f"more {row}" for row in range(20_000)])
except CenterhashError as error:
    print(error)
assert store.verify() == []
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
store.add(np.zeros((1, 2), np.uint8), ["last"])
print(stored + 1)
"""


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a script, and make sure that it is gone afterwards."""
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


def expected_batches(acknowledged: list[int]) -> set[int]:
    """The batches that are there after these adds (a number) and removals (of the batch before, as -number)."""
    present = {batch for batch in acknowledged if batch >= 0}
    return present - {-batch - 1 for batch in acknowledged if batch < 0}


def kills(folder: Path, count: int, seed: int) -> Iterator[int]:
    """Kill a writer at any moment, again and again; yield the number of batches, of which none may be lost."""
    moments, acknowledged = random.Random(seed), list[int]()
    Store.create(folder, BITS).close()
    for _ in range(count):
        start = max(acknowledged, default=-1) + 2  # the batch after the last one may be there or not
        with running(ADDING, folder, start) as process:
            lines = "".join(line_of(process) for _ in range(moments.randrange(2, 12)))
            time.sleep(moments.random() * 0.03)  # any moment of the next write
            process.kill()
            assert process.stdout is not None
            lines += process.stdout.read()  # not communicate(), which skips what is buffered
        acknowledged += [int(line) for line in lines.splitlines()]
        with Store.open(folder) as store:
            assert store.verify() == []
            found = [item.id.split("/") for item in store.items()]
            counts = store.labels()
        batches = {int(batch) for batch, _ in found}
        assert len(found) == 7 * len(batches)
        assert counts == {"dog": len(found), **{f"batch {batch}": 7 for batch in batches}}
        last = max(acknowledged)
        unsure = {last + 1, last - 1} if last % 5 == 4 else {last + 1}  # the change that was killed
        assert batches - unsure == expected_batches(acknowledged) - unsure
        acknowledged = [*batches]
        yield len(batches)


def full_disk(folder: Path) -> int:
    """Add until the disk is full, without loss; return the number of items."""
    Store.create(folder, BITS).close()
    with running(FILLING, folder) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    small, large, stored = out.splitlines()
    assert all("items.db" in sentence for sentence in (small, large)), out
    with Store.open(folder) as store:
        assert len(store) == int(stored) > 300
        assert store.verify() == []
    return int(stored)


def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    assert max(kills(tmp_path, 15, seed=5)) > 30


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    full_disk(tmp_path)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    Store.create(tmp_path, BITS).close()
    with running(ADDING, tmp_path, 0) as process:
        line_of(process)
        with pytest.raises(InputError, match=str(process.pid)):
            Store.open(tmp_path)
        with Store.open(tmp_path, read_only=True) as reader:
            assert len(reader) >= 7
    with Store.open(tmp_path) as store:
        assert len(store) >= 7


def test_readers_never_see_half_a_change_of_another_process(tmp_path: Path) -> None:
    Store.create(tmp_path, BITS).close()
    generations = set[int]()
    with running(ADDING, tmp_path, 0) as process:
        line_of(process)
        reader, deadline = Store.open(tmp_path, read_only=True), time.monotonic() + PATIENCE
        while len(generations) < 3:  # until the rows were numbered again under the readers' eyes
            assert time.monotonic() < deadline, "the writer does not get on"
            fresh = Store.open(tmp_path, read_only=True)
            for store in (reader, fresh):
                ids = [item.id for item in store.items()]
                assert len(ids) == 7 * len({id.split("/")[0] for id in ids})
                assert len(store.search(BySemantic(codes(1)[0]), 10**6)) % 7 == 0
            assert reader.verify() == []
            generations.add(fresh._state().generation)
            fresh.close()
        reader.close()
        assert process.poll() is None


WRITING = """
import sys
import numpy as np
from centerhash.search.store import Store

with Store.open(sys.argv[1]) as store:
    store.add(np.zeros((1, 2), np.uint8), [sys.argv[2]])
"""


def test_a_reader_sees_what_others_write_after_its_process_has_opened_the_store_again(tmp_path: Path) -> None:
    """Closing a descriptor of the database drops the locks of the process on it: the log would be deleted."""

    def write(id: str) -> None:
        subprocess.run(
            [sys.executable, "-c", WRITING, tmp_path, id],
            env=process_environment(),
            check=True,
            timeout=PATIENCE,
        )

    Store.create(tmp_path, BITS).close()
    with Store.open(tmp_path, read_only=True) as reader:
        for place in range(3):
            with Store.open(tmp_path) as writer:  # as a shared index does for every change
                writer.add(codes(1), [f"own {place}"])
            write(f"other {place}")
            assert len(reader) == 2 * place + 2
            assert f"other {place}" in reader
        log = (tmp_path / "items.db-wal").stat().st_ino
        write("last")
        assert (tmp_path / "items.db-wal").stat().st_ino == log
    with Store.open(tmp_path, read_only=True) as store:
        assert len(store) == 7
        assert store.verify() == []
