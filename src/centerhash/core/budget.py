"""How much memory a file may ask for: small files that announce much are damaged, or traps."""

from __future__ import annotations

from pathlib import Path

from centerhash.core.errors import DataError

ALWAYS, RATIO = 2**30, 100  # bytes that any file may become, and how many times its own size


def check_budget(path: str | Path, needed: int, what: str, advice: str, size: int | None = None) -> None:
    """Refuse what would take more memory than a file of this size may: the larger of 1 GiB and a hundred times it.

    `what` needs the bytes, `advice` says what to do; `size` is that of the file unless it is known.
    """
    allowed = max(ALWAYS, RATIO * (Path(path).stat().st_size if size is None else size))
    if needed > allowed:
        raise DataError(
            f"'{path}': {what} would take {shown(needed)} of memory, but a file of its size may take "
            f"{shown(allowed)}. {advice}"
        )


def shown(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e9:,.1f} GB"
