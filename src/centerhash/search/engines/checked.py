"""A mapped array that is checked where it is read: each block once, when something in it is first asked for.

The sum of a block takes little more than reading it: its rows of words are added up, and the checksum is of what comes
out. That tells every changed bit, and a block that is zeroed or of another file; the checksum of the whole array,
which `mapped.damage` looks at, also tells what is put into another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any] | Checked"  # in memory, or mapped

BLOCK = 1 << 16  # bytes that are checked at a time
_ROW = 64  # words that are added up
_TOGETHER = 16  # blocks whose sums numpy makes at once
_LARGE = 1 << 23  # bytes from which threads share the work
_FEW = 16  # blocks that are all checked at once


def block_sum(block: NDArray[np.uint8]) -> int:
    """The sum of a block of bytes, which may be shorter than others."""
    words = block[: block.size // (8 * _ROW) * (8 * _ROW)].view(np.uint64).reshape(-1, _ROW)
    return crc32(block[8 * words.size :].data, crc32(np.add.reduce(words, axis=0).data))


def block_sums(content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The sum of every block of an array's bytes."""
    if content.size < _LARGE:
        return _block_sums(content)
    from centerhash.core.parallel import cpu_count  # numba takes a while to import; a scan needs it anyway

    share = -(-content.size // cpu_count() // BLOCK) * BLOCK
    with ThreadPoolExecutor(cpu_count()) as pool:  # numpy's sums run beside each other
        return np.concatenate(
            list(pool.map(_block_sums, (content[at : at + share] for at in range(0, content.size, share))))
        )


def _block_sums(content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    whole, sums = content.size // BLOCK * BLOCK, list[int]()
    for at in range(0, whole, _TOGETHER * BLOCK):
        words = content[at : min(at + _TOGETHER * BLOCK, whole)].view(np.uint64).reshape(-1, 16, BLOCK // 128)
        # in two steps: numpy adds long rows quicker
        rows = np.add.reduce(np.add.reduce(words, axis=1).reshape(len(words), -1, _ROW), axis=1)
        sums += [crc32(row.data) for row in rows]
    return np.array([*sums, *([block_sum(content[whole:])] if content.size > whole else [])], np.uint32)


class Checked:
    """An array (n, ...) whose blocks are checked before they are read, by its bytes with padding and their sums.

    numpy takes it as the whole array, all of it checked; single rows cost only their blocks.
    """

    def __init__(
        self,
        array: NDArray[Any],
        content: NDArray[np.uint8],
        sums: NDArray[np.uint32],
        damaged: Callable[[], Exception],
        block: int = BLOCK,
        checksum: Callable[[NDArray[np.uint8]], int] = block_sum,
    ) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._array, self._content, self._sums = array, content, sums
        self._damaged, self._block, self._checksum = damaged, max(1, block), checksum
        self._row = array.nbytes // max(1, len(array))
        self._seen = np.zeros(len(sums), bool)
        self._sound = len(sums) == 0
        self._asked, self._looked = 0, False

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self.whole
        return np.array(whole, dtype, copy=copy) if copy or dtype not in (None, whole.dtype) else whole

    @property
    def whole(self) -> NDArray[Any]:
        """The array, all of it checked."""
        if not self._sound:
            if not self._seen.any():
                if not np.array_equal(self._sums_now(), self._sums):
                    raise self._damaged()
            else:
                self._check(np.flatnonzero(~self._seen).tolist())
            self._sound = True
        return self._array

    def __getitem__(self, key: Any) -> Any:
        if not self._sound and not self._sound_after(1):
            if isinstance(key, slice):
                start, stop, _ = key.indices(len(self))
                self._check(self._blocks(start, stop))
            elif isinstance(key, np.ndarray) and key.ndim:
                self._check_rows(key)
            else:
                self._check(self._blocks(int(key), int(key) + 1))
        return self._array[key]

    def searchsorted(
        self, wanted: NDArray[Any], side: Literal["left", "right"] = "left"
    ) -> NDArray[np.int64]:
        """As numpy's, of ascending values (n,); a few questions read few blocks."""
        if self._sound or self._sound_after(len(wanted)):
            return self.whole.searchsorted(wanted, side)
        low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(self), np.int64)
        while (left := np.flatnonzero(low < high)).size:
            middle = (low[left] + high[left]) // 2
            self._check_rows(middle)
            values = self._array[middle]
            before = values < wanted[left] if side == "left" else values <= wanted[left]
            low[left[before]] = middle[before] + 1
            high[left[~before]] = middle[~before]
        return low

    def _sound_after(self, more: int) -> bool:
        """Whether all blocks are sound: looked at once where they are few, or fewer than the questions so far."""
        self._asked += more
        if not self._looked and len(self._sums) <= max(_FEW, self._asked):
            self._looked = True  # a damaged block hides no other
            self._seen |= self._sums_now() == self._sums
            self._sound = bool(self._seen.all())
        return self._sound

    def _sums_now(self) -> NDArray[np.uint32]:
        if self._checksum is block_sum:
            return block_sums(self._content)
        places = range(0, len(self._sums) * self._block, self._block)
        return np.array([self._checksum(self._content[at : at + self._block]) for at in places], np.uint32)

    def _blocks(self, start: int, stop: int) -> Iterable[int]:
        """The blocks of the rows start..stop that were not checked yet."""
        first, last = start * self._row // self._block, -(-stop * self._row // self._block)
        return (block for block in range(first, last) if not self._seen[block]) if start < stop else ()

    def _check_rows(self, rows: NDArray[Any]) -> None:
        if len(rows) >= len(self._sums):  # more rows than blocks: nearly all of them
            _ = self.whole
        else:
            begin = rows.astype(np.int64) * self._row
            needed = np.union1d(begin // self._block, (begin + max(0, self._row - 1)) // self._block)
            self._check(needed[~self._seen[needed]].tolist())

    def _check(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            part = self._content[block * self._block : (block + 1) * self._block]
            if self._checksum(part) != self._sums[block]:
                raise self._damaged()
            self._seen[block] = True
