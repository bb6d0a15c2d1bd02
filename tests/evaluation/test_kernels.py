from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from centerhash.evaluation import kernels


def test_kernels_run_where_no_machine_code_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**options: Any) -> Callable[[Any], Any]:
        def refuse(_function: Any) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if options.get("cache") else numba.njit(**options)

    monkeypatch.setattr(kernels, "njit", refusing)

    @kernels._compiled
    def double(value: int) -> int:
        return 2 * value

    assert double(21) == 42


def test_all_sixty_four_bits_of_a_word_count() -> None:
    full = np.array([[2**64 - 1, 2**63]], np.uint64)
    planes = np.array([[0, 1], [0, 2**63]], np.uint64)
    indices, distances = kernels.nearest(full, planes, 128, 2)
    assert indices.tolist() == [[1, 0]]
    assert distances.tolist() == [[63, 65]]
