"""Figures as files beside the page and as a part of it, and tables of HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from centerhash.core.figures import png_bytes, svg_text
from centerhash.core.files import atomic, write_text
from centerhash.experiments.figures import named_series

# of boxes in pictures, which also carry numbers; no colour of a method whose weights are shown
LABEL_COLOURS = ("#CC3377", "#009E73", "#7F52E5", "#B8860B")


@dataclass(frozen=True)
class Drawing:
    """A finished figure: vector graphics for people, dots for where these cannot go."""

    name: str
    svg: str
    png: bytes

    def write(self, folder: Path) -> str:
        """Write NAME.svg and NAME.png; return the figure as HTML."""
        write_text(folder / f"{self.name}.svg", self.svg)
        with atomic(folder / f"{self.name}.png") as stream:
            stream.write(self.png)
        return f"<div class='plot'>{self.svg}</div>"


def legend_below(figure: Figure, axis: Axes, widest: float = 2.3) -> None:
    """The legend of one axis under the whole figure, in as many columns of `widest` inches as fit beside each other."""
    handles, names = axis.get_legend_handles_labels()
    columns = max(1, min(len(names), int(figure.get_figwidth() // widest)))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def drawn(name: str, figure: Figure) -> Drawing:
    """The figure as it is now."""
    return Drawing(name, named_series(svg_text(figure)), png_bytes(figure))


def table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], groups: Sequence[tuple[str, int]] = ()
) -> str:
    """A table of HTML cells: `heads` over the columns, the first cell of a line names it.

    `groups` are titles over several columns each, as (title, columns), after the first.
    """
    over = "".join(f"<th colspan='{width}' class='group'>{title}</th>" for title, width in groups)
    top = f"<tr><th></th>{over}</tr>" if groups else ""
    body = "".join(
        f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for first, *cells in lines
    )
    titles = "".join(f"<th>{head}</th>" for head in heads)
    return (
        f"<div class='wide'><table class='scores'><thead>{top}<tr>{titles}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same of plain text cells, as markdown."""
    rows = [list(heads), ["---", *["---:"] * (len(heads) - 1)], *map(list, lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def note(text: str) -> str:
    """A remark under a table or figure."""
    return f"<p class='note'>{html.escape(text)}</p>"


def paragraph(text: str) -> str:
    """A sentence or two of plain text."""
    return f"<p>{html.escape(text)}</p>"
