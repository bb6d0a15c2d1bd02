"""Tables over the codes of a segment: which rows have the same code, and which codes agree in a stretch of bits.

A code is cut into m stretches of about log2(N) bits. The table of a stretch lists the rows of all codes by the value of
these bits, so that the codes that agree with a query there, or differ in a bit or two, are found without a look at the
others (`multi_index`). Only the first row of equal codes is listed; the others are its group. Tables are derived: they
lie in a file beside the segment, and an index without them gives the same answers, only later.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.search.engines.mapped import damage, map_arrays, write_arrays

Rows: TypeAlias = NDArray[np.uint32]

GROUPED = 1 << 31  # set in a table where a row is the first of a group; so rows are below it
STORED = ("spans", "offsets", "orders", "heads", "starts", "members")
SUFFIX = ".tables"
OWNER = "segment"  # the array that says of which file the tables are: its checksum


@dataclass(frozen=True)
class Tables:
    """m tables over U different codes of n rows, and the H groups of equal codes, which have M rows together."""

    spans: NDArray[np.int64]  # (m, 2): the first bit of a stretch, and how many there are, p
    offsets: Rows  # for each table 2**p + 1: where the rows of each value begin in `orders`
    orders: Rows  # (m, U): rows by value, ascending; with GROUPED for the first row of a group
    heads: Rows  # (H,) ascending: the first row of each group
    starts: Rows  # (H + 1,): where its rows begin in `members`
    members: Rows  # (M,)

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """Where the offsets (m,) of each table begin."""
        return table_edges(self.spans)[:-1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored."""
        return {name: getattr(self, name) for name in STORED}


def table_edges(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the offsets (m + 1,) of each table begin, and the last ones end."""
    return np.append(0, np.cumsum((1 << spans[:, 1]) + 1))


class TablesFile:
    """The file that may lie beside a segment of n codes of K bits with its tables; they are read when they are asked for.

    What is missing or damaged is no tables: nothing depends on them but time.
    """

    def __init__(self, segment: Path, checksum: int, rows: int, bits: int) -> None:
        self.path = segment.with_suffix(SUFFIX)
        self._checksum, self._rows, self._bits = checksum, rows, bits
        self._reading = threading.Lock()
        self._known: Tables | None = None
        self._asked = False

    def tables(self) -> Tables | None:
        """The tables, or None."""
        if not self._asked:
            with self._reading:
                if not self._asked:
                    self._known = self._read() if self.path.exists() else None
                    self._asked = True
        return self._known

    def write(self, tables: Tables) -> None:
        """Write the tables, whole or not at all."""
        write_arrays(self.path, {OWNER: np.array([self._checksum], np.int64), **tables.arrays()})
        self._asked = False

    def problem(self) -> str | None:
        """What is wrong with the file, if there is one."""
        if not self.path.exists():
            return None
        try:
            reason = damage(self.path, map_arrays(self.path).checksum)
        except DataError as error:
            reason = str(error)
        if reason is None and self._read() is None:
            reason = f"'{self.path}' does not fit its segment."
        if reason is None:
            return None
        said = reason.split(" Next:")[0]
        return f"{said} Answers are right without it. Next: `centerhash index compact` writes it again."

    def _read(self) -> Tables | None:
        from centerhash.search.engines.tabling import fits  # numba takes a while to import

        try:
            arrays = map_arrays(self.path).arrays
            owner = arrays[OWNER].whole
            tables = Tables(*(arrays[name].whole for name in STORED))
        except (DataError, KeyError):
            return None
        return tables if owner.tolist() == [self._checksum] and fits(tables, self._rows, self._bits) else None
