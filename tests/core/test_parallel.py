"""Parts of one piece of work: each done once, errors told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from centerhash.core.parallel import in_threads, split


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_parts_are_done_once_each(threads: int, count: int) -> None:
    done, names, parts = np.zeros(count, int), set(), split(count, threads)

    def work(part: int) -> None:
        done[parts[part]] += 1
        names.add(threading.current_thread().name)

    in_threads(work, threads)
    assert (done == 1).all()
    assert threading.current_thread().name in names


def test_an_error_in_any_part_is_raised() -> None:
    def work(part: int) -> None:
        if part:
            raise ValueError("second part")

    with pytest.raises(ValueError, match="second part"):
        in_threads(work, 2)
