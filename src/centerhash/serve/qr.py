"""QR codes of addresses for a terminal: byte mode, error correction L, versions 1 to 5, each of which is a single block.

A library would not fit: the smallest maintained one (segno) takes 0.6 MB of a base install that is at its limit. The
tests compare with it.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

# data and error correction bytes of versions 1 to 5 (ISO/IEC 18004, table 9)
_CAPACITY = ((19, 7), (34, 10), (55, 15), (80, 20), (108, 26))
_QUIET = 2  # light modules around the code; four are the standard, two are enough on a plain background
_FORMAT = 0b111011111000100  # level L and mask 0, with their own error correction and mask
_FINDER = np.array([[max(abs(r - 3), abs(c - 3)) in (0, 1, 3) for c in range(7)] for r in range(7)])
_ALIGNMENT = np.array([[max(abs(r - 2), abs(c - 2)) != 1 for c in range(5)] for r in range(5)])


def qr_code(text: str) -> NDArray[np.bool_] | None:
    """Return the modules (side, side) of the code of `text`, True if dark; None if it is too long (106 bytes)."""
    data = text.encode()
    version = next((number for number, (most, _) in enumerate(_CAPACITY, 1) if len(data) + 2 <= most), None)
    if version is None:
        return None
    most, checks = _CAPACITY[version - 1]
    # the mode, the length and the end take 4, 8 and 4 bits; the rest is filled with two alternating bytes
    bits = (0b0100 << 8 | len(data)) << 8 * len(data) | int.from_bytes(data)
    filled = (bits << 4).to_bytes(len(data) + 2) + (b"\xec\x11" * most)[: most - len(data) - 2]
    return _draw(version, filled + _error_correction(filled, checks))


def half_blocks(code: NDArray[np.bool_]) -> str:
    """Draw a code with its margin in lines of text, two modules per character."""
    framed = np.pad(code, _QUIET)
    framed = np.pad(framed, ((0, len(framed) % 2), (0, 0)))
    return "\n".join(
        "".join(" ▄▀█"[2 * int(top) + int(bottom)] for top, bottom in zip(upper, lower, strict=True))
        for upper, lower in zip(framed[::2], framed[1::2], strict=True)
    )


def _multiply(a: int, b: int) -> int:
    """Multiply in GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    while b:
        product ^= a * (b & 1)
        a = a << 1 ^ (0x11D if a & 0x80 else 0)
        b >>= 1
    return product


def _error_correction(data: bytes, count: int) -> bytes:
    """Return the remainder of `data` divided by the Reed-Solomon generator polynomial of degree `count`."""
    generator, root = [1], 1
    for _ in range(count):
        shifted = [*generator, 0]
        generator = [a ^ _multiply(b, root) for a, b in zip(shifted, [0, *generator], strict=True)]
        root = _multiply(root, 2)

    def step(rest: list[int], byte: int) -> list[int]:
        factor = byte ^ rest[0]
        return [a ^ _multiply(b, factor) for a, b in zip([*rest[1:], 0], generator[1:], strict=True)]

    return bytes(reduce(step, data, [0] * count))


def _draw(version: int, data: bytes) -> NDArray[np.bool_]:
    side = 17 + 4 * version
    code = np.zeros((side, side), dtype=bool)
    code[6, :] = code[:, 6] = np.arange(side) % 2 == 0  # timing
    used = np.zeros_like(code)
    used[6, :] = used[:, 6] = True
    for row, column in ((0, 0), (0, side - 7), (side - 7, 0)):
        # with the light line around each, and the places of the format next to it
        used[max(0, row - 1) : row + 9, max(0, column - 1) : column + 9] = True
        code[max(0, row - 1) : row + 8, max(0, column - 1) : column + 8] = False
        code[row : row + 7, column : column + 7] = _FINDER
    if version > 1:
        code[side - 9 : side - 4, side - 9 : side - 4] = _ALIGNMENT
        used[side - 9 : side - 4, side - 9 : side - 4] = True
    _draw_format(code)
    bits = iter(np.unpackbits(np.frombuffer(data, dtype=np.uint8)))
    upwards = True
    for right in (*range(side - 1, 6, -2), 5, 3, 1):  # pairs of columns; that of the timing is left out
        for row in range(side - 1, -1, -1) if upwards else range(side):
            for column in (right, right - 1):
                if not used[row, column]:  # modules beyond the data are 0 before the mask
                    code[row, column] = bool(next(bits, 0)) ^ ((row + column) % 2 == 0)
        upwards = not upwards
    return code


def _draw_format(code: NDArray[np.bool_]) -> None:
    """Write the fifteen bits of the format twice, and the module that is always dark."""
    side = len(code)
    bits = [bool(_FORMAT >> at & 1) for at in range(14, -1, -1)]  # the highest first
    around = [(8, c) for c in (0, 1, 2, 3, 4, 5, 7, 8)] + [(r, 8) for r in (7, 5, 4, 3, 2, 1, 0)]
    apart = [(side - 1 - at, 8) for at in range(7)] + [(8, side - 8 + at) for at in range(8)]
    for places in (around, apart):
        for place, bit in zip(places, bits, strict=True):
            code[place] = bit
    code[side - 8, 8] = True
