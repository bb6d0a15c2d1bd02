"""Threads that wait quietly: training, encoding and serving keep their pace beside other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# how OpenMP's threads wait for each other: read once, when torch loads its OpenMP library
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_quietly() -> None:
    """Let threads of torch sleep while they wait, unless the user has chosen how they wait or torch is there already.

    By default they spin. On a machine that does other work too, a spinning thread takes the processor from the very
    thread that it waits for, and an epoch of seconds takes a minute.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


@contextmanager
def torch_threads(count: int) -> Iterator[int]:
    """Let torch compute on this many threads meanwhile; yields on how many it did before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """Let numpy use one thread meanwhile: for decompositions, and for many small products in a row.

    Its threads spin while they wait for each other, and beside other programs that takes many times as long.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1, "blas"):
        yield
