"""Rows: as a sequence with more beside them, as a table for a terminal, as a pandas DataFrame for notebooks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from centerhash.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table


Row = TypeVar("Row")


class Listed(Sequence[Row]):
    """A sequence that a class puts other things beside."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        return self._rows[place]


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A DataFrame with a column per key."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("to_pandas() needs pandas: pip install pandas.") from None
    return pandas.DataFrame(list(rows))


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    dim: Container[str] = (),
    show_lines: bool = False,
) -> Table:
    """A table for a terminal: a column whose name begins with > is flush right, and the first is never folded.

    Without any name there is no head. Rows whose first cell is in `dim` stand back.
    """
    from rich.table import Table

    named = any(column.strip(">") for column in columns)
    made = Table(title=title, title_justify="left", show_lines=show_lines, show_header=named)
    for place, column in enumerate(columns):
        made.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=named and place == 0,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*row, style="dim" if row[0] in dim else None)
    return made
