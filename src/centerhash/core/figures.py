"""Figures in the house style, as SVG text or PNG bytes: the same figure gives the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from centerhash.core.extras import require
from centerhash.core.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """A figure in the house style with its axes row by row; no window system is asked, whatever the user's is."""
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


def png_bytes(figure: Figure, dots: int = 144) -> bytes:
    """The figure as a PNG file with so many dots per inch, for where vector graphics cannot go."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dots, metadata={"Software": None})
    return stream.getvalue()
