"""Threads that wait quietly: training, encoding and serving keep their pace beside other programs."""

from __future__ import annotations

import os
import sys

# how OpenMP's threads wait for each other: read once, when torch loads its OpenMP library
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_quietly() -> None:
    """Let threads of torch sleep while they wait, unless the user has chosen how they wait or torch is there already.

    By default they spin. On a machine that does other work too, a spinning thread takes the processor from the very
    thread that it waits for, and an epoch of seconds takes a minute.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
