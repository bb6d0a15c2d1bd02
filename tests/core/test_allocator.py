"""Memory that a step frees is used again by the next, and goes back to the system when the training is over."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from centerhash.core.parallel import CHOSEN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library"),
]

# A step frees more than glibc keeps by itself. Prints how many pages later steps were given, and how much memory the
# process has afterwards, in pages.
STEPS = """
import mmap, resource
import numpy as np
from centerhash.core.parallel import freed_memory_kept

def step():
    blocks = [np.ones(3 << 20, np.uint8) for _ in range(40)]  # too small for huge pages

def pages():
    return int(open("/proc/self/statm").read().split()[1])

before = pages()
with freed_memory_kept():
    step()
    given = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10): step()
    given = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - given
step_pages = 40 * (3 << 20) / mmap.PAGESIZE
print(given / step_pages, (pages() - before) / step_pages)
"""


def measured(**chosen: str) -> tuple[float, float]:
    """Pages that ten more steps were given, and pages that are left, by those of one step; in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    command = [sys.executable, "-c", STEPS]
    ran = subprocess.run(command, env=kept | chosen, check=True, capture_output=True, text=True)
    given, left = map(float, ran.stdout.split())
    return given, left


def test_freed_memory_is_used_again_and_given_back_at_the_end() -> None:
    given, left = measured()
    assert given < 1
    assert left < 1


def test_what_the_user_chose_stays() -> None:
    given, _ = measured(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072")
    assert given > 9
