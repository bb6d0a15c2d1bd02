from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
from filelock import FileLock

from centerhash.core.errors import InputError, OutputError
from centerhash.core.files import WriterLock

HOLDER = """
import sys
from pathlib import Path
from centerhash.core.files import WriterLock

lock = WriterLock.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_once_and_can_be_had_again(tmp_path: Path) -> None:
    lock = WriterLock.take(tmp_path / "lock")
    for _ in range(2):  # being refused must not change who holds it
        with pytest.raises(InputError, match=f"written by process {os.getpid()}"):
            WriterLock.take(tmp_path / "lock")
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    WriterLock.take(tmp_path / "lock").release()


@pytest.mark.slow
def test_a_process_that_is_killed_gives_its_lock_back(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"taken\n"
            with pytest.raises(InputError):
                WriterLock.take(tmp_path / "lock")
        finally:
            process.kill()
    WriterLock.take(tmp_path / "lock").release()


def test_a_holder_that_does_not_say_who_it_is(tmp_path: Path) -> None:
    lock = WriterLock.take(tmp_path / "lock")
    (tmp_path / "lock.pid").unlink()
    with pytest.raises(InputError, match="written by process unknown"):
        WriterLock.take(tmp_path / "lock")
    lock.release()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        WriterLock.take(tmp_path / "nowhere" / "lock")


def test_a_lock_that_is_deleted_on_release_is_held_by_one(tmp_path: Path) -> None:
    first = WriterLock.take(tmp_path / "lock", "{holder} is in {folder}")
    with pytest.raises(InputError, match=f"^{os.getpid()} is in {tmp_path}$"):
        WriterLock.take(tmp_path / "lock", "{holder} is in {folder}")
    first.release(delete=True)
    assert list(tmp_path.iterdir()) == []
    WriterLock.take(tmp_path / "lock").release(delete=True)


def test_a_lock_file_that_was_deleted_meanwhile_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    acquire, deleted = FileLock.acquire, list[Path]()

    def acquire_late(lock: FileLock, *given: object, **named: object) -> object:
        acquired = acquire(lock, *given, **named)  # type: ignore[arg-type]
        if not deleted:
            deleted.append(tmp_path / "lock")
            deleted[0].unlink()  # by who held it before
        return acquired

    with mock.patch.object(FileLock, "acquire", acquire_late):
        lock = WriterLock.take(tmp_path / "lock")
    with pytest.raises(InputError):
        WriterLock.take(tmp_path / "lock")
    lock.release()
