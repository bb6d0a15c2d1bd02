from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.search.system_errors import MISSING, failed, prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason=MISSING),
]

CASES = [
    ("add", "pwrite64:error=ENOSPC:when=9"),
    ("remove", "fdatasync:error=EIO:when=1"),
    ("remove", "fsync:signal=KILL:when=1"),
    ("import", "openat:error=EIO:when=5"),
    ("search", "pread64:error=EIO:when=3"),
    ("search", "newfstatat:error=ENOSPC:when=36"),
]


def test_a_call_that_fails_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    place = prepare(tmp_path)
    (work := tmp_path / "work").mkdir()
    assert {case: wrong for case in CASES if (wrong := failed(place, work, *case))} == {}
