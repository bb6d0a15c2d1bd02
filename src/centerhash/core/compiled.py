"""Compile loops with numba and keep the machine code on disk.

Compiled loops release the interpreter lock, so plain threads run them side by side. numba's own parallel loops are
not used: they go through OpenMP and change the number of threads that torch computes with in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from centerhash.core.extras import require

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile to machine code, kept on disk between processes where numba finds a folder it may write.

    ConfigError if numba is not installed.
    """
    njit = require("numba").njit
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Function, njit(cache=True, **options)(function))
    except RuntimeError:  # no such folder, for example in a read-only container
        return cast(Function, njit(**options)(function))
