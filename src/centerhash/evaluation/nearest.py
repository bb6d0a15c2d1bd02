"""Exact nearest items by Hamming distance, for reports and small searches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.arrays import whole_number
from centerhash.evaluation import kernels
from centerhash.evaluation.inputs import code_words, planes, same


def ranking(
    query_codes: NDArray[Any], database_codes: NDArray[Any], top: int, *, bits: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions and Hamming distances (Q, top) of the nearest database items, nearest first.

    Equal distances are in database order. `top` is cut to N. Codes as for `evaluate`.
    """
    queries, length = code_words(query_codes, bits, "query_codes")
    database, database_length = code_words(database_codes, bits, "database_codes")
    same("bits", length, database_length, ("query_codes", "database_codes"))
    shown = min(whole_number(top, "top", 1), len(database))
    indices, distances = kernels.nearest(queries, planes(database), length, shown)
    return indices, distances.astype(np.int64)
