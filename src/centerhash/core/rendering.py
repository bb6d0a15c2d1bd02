"""Present results: tables for terminals and pandas, templates, and text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from centerhash.core.extras import require

if TYPE_CHECKING:
    from rich.table import Table

RowT = TypeVar("RowT")


class RowSequence(Sequence[RowT]):
    """Base of sequences with further attributes."""

    def __init__(self, rows: Iterable[RowT]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a DataFrame with a column per key."""
    return require("pandas").DataFrame(list(rows))


def text_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, show_lines: bool = False
) -> Table:
    """Return a table for a terminal; if all columns are unnamed, it has no header.

    A column whose name begins with > is aligned right, and the first named one is never folded.
    """
    from rich.table import Table

    named = any(column.strip(">") for column in columns)
    table = Table(title=title, title_justify="left", show_lines=show_lines, show_header=named)
    for number, column in enumerate(columns):
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=named and number == 0,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def templates_of(*packages: str) -> Environment:
    """Return the HTML templates in the folders `templates` of packages; they escape all values."""
    loader = ChoiceLoader([PackageLoader(package) for package in packages])
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Escape control characters, which would control a terminal; line breaks and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
