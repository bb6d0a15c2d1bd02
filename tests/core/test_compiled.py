from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from centerhash.core import compiled


def test_kernels_run_where_no_machine_code_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**options: Any) -> Callable[[Any], Any]:
        def refuse(_function: Any) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if options.get("cache") else numba.njit(**options)

    monkeypatch.setattr(compiled, "require", lambda name: SimpleNamespace(njit=refusing))

    @compiled.compiled
    def double(value: int) -> int:
        return 2 * value

    assert double(21) == 42
