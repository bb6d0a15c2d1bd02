"""The right to write: held by one process, and free again when that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from centerhash.core.errors import InputError, OutputError
from centerhash.core.locks import try_lock, writer_lock

REFUSAL = "process {holder} is in {folder}"
HOLDER = """
import sys
from pathlib import Path
from centerhash.core.locks import writer_lock

with writer_lock(Path(sys.argv[1]), ""):
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_writer_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with writer_lock(lock, REFUSAL):
        for _ in range(2):  # A refusal must not change who holds it.
            busy = pytest.raises(InputError, match=f"^process {os.getpid()} is in {tmp_path}$")
            with busy, writer_lock(lock, REFUSAL):
                pass
    with writer_lock(lock, REFUSAL):
        assert list(tmp_path.iterdir()) == [lock]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="nowhere"), writer_lock(tmp_path / "nowhere" / "lock", REFUSAL):
        pass


@pytest.mark.slow
def test_writer_lock_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        busy = pytest.raises(InputError, match=f"process {process.pid} ")
        with busy, writer_lock(tmp_path / "lock", REFUSAL):
            pass
        process.kill()
    with writer_lock(tmp_path / "lock", REFUSAL):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_writer_lock_deleted(tmp_path: Path) -> None:
    """A file that its last holder deleted between opening and locking is not the lock."""
    deleted = list[Path]()

    def lock_late(descriptor: int) -> bool:
        if not deleted:
            deleted.append(tmp_path / "lock")
            deleted[0].unlink()
        return try_lock(descriptor)

    busy = pytest.raises(InputError)
    with mock.patch("centerhash.core.locks.try_lock", lock_late), writer_lock(tmp_path / "lock", REFUSAL):
        with busy, writer_lock(tmp_path / "lock", REFUSAL):
            pass
        assert deleted
