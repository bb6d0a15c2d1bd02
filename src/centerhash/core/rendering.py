"""Present results: tables for terminals and notebooks, templates, figures, and safe text."""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from jinja2 import Environment, PackageLoader, StrictUndefined

from centerhash.core.errors import ConfigError
from centerhash.core.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

Row = TypeVar("Row")


class Listed(Sequence[Row]):
    """Base of sequences with further attributes."""

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


def shown_text(text: str) -> str:
    """Return a text that can be shown: other bytes in the name of a file become question marks in a diamond."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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


_SETTINGS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}


def templates_of(package: str) -> Environment:
    """The templates of HTML in the folder `templates` of a package, which escape what they are given."""
    return Environment(loader=PackageLoader(package), autoescape=True, **_SETTINGS)


def filled(template: str, **values: Any) -> str:
    """A template of markdown with values put in as they are."""
    environment = Environment(keep_trailing_newline=True, autoescape=False, **_SETTINGS)  # nosec B701
    return environment.from_string(template).render(**values)


_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "svg.hashsalt": "centerhash",  # the same figure gives the same bytes
    "svg.fonttype": "none",  # text stays text
}


@contextmanager
def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the house style with its axes row by row; no window system is needed."""
    with require("matplotlib").rc_context(_STYLE):
        figure = require("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def as_it_is(name: str) -> str:
    """A name for a figure: "$5 or $6" is no formula, and a control character has no shape."""
    return visible(name).replace("$", r"\$")


def svg_text(figure: Figure) -> str:
    """The figure as an inline <svg> element without a date, so that it is reproducible."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file, for where vector graphics cannot go."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=144, metadata={"Software": None})
    return stream.getvalue()


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Show control characters, which would steer a terminal, as their escapes; lines and tabs stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; those of files on Linux may be other bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
