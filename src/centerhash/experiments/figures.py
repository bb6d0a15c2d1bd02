"""Pages and their figures: HTML from templates, SVG with one color-blind safe color per method everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from centerhash.core.rendering import new_figure, svg_text, templates_of


class Look(NamedTuple):
    """How a method is drawn, in all figures."""

    color: str
    line: str = "-"
    mark: str = "."


# Line style by kind (shallow, deep, around centers or proxies), mark within the kind; the colors of one line style
# are told apart with all common kinds of color vision
LOOKS: Mapping[str, Look] = {
    "lsh": Look("#7F52E5", ":", "o"),
    "sh": Look("#C8A24A", ":", "s"),
    "itq": Look("#009E73", ":", "D"),
    "bre": Look("#B15928", ":", "v"),
    "ksh": Look("#340554", ":", "^"),
    "sdh": Look("#2F4F3F", ":", "P"),
    "cnnh": Look("#332288", "--", "s"),
    "dnnh": Look("#B8860B", "--", "D"),
    "dpsh": Look("#2E0421", "--", "P"),
    "dhn": Look("#AA4499", "--", "v"),
    "hashnet": Look("#117733", "--", "^"),
    "dch": Look("#6FA8DC", "--", "o"),
    "greedyhash": Look("#9610F9", "--", "X"),
    "idhn": Look("#A59B95", "--", "*"),
    "csq": Look("#999999", "-", "s"),
    "dpn": Look("#AB1CFF", "-", "*"),
    "ewcs": Look("#E69F00", "-", "D"),
    "ics": Look("#0072B2", "-", "o"),
    "ics-printed": Look("#56B4E9", "-", "v"),
    "ics-softmax": Look("#D55E00", "-", "^"),
    "orthohash": Look("#000000", "-", "P"),
    "hyp2": Look("#882255", "-", "X"),
    "mdsh": Look("#4F3607", "-", "p"),
    "lscsh": Look("#0072B2", "-.", "o"),
    "shc": Look("#E69F00", "-.", "s"),
    "crh": Look("#000000", "-.", "D"),
}


def look(method: str) -> Look:
    """The look of a method, also of one that this version does not have."""
    return LOOKS.get(method, Look("#000000"))


# the line of the chance level
CHANCE: dict[str, Any] = {"color": "#777777", "linewidth": 1, "linestyle": (0, (1, 3))}


@dataclass(frozen=True)
class Series:
    """One line of a plot: a method, or one of several settings of it."""

    key: str  # names the line in the page
    method: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # half the length of error bars
    hollow: bool = False  # tells a second setting of a method from the first


def line_plot(
    series: Sequence[Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    ticks: Sequence[int] = (),
    limits: tuple[float, float] | None = None,
    across: tuple[float, float] | None = None,
    markers: int = 12,
    reference: tuple[str, float] | None = None,
    width: float = 4.6,
) -> Markup:
    """Lines with at most `markers` marks each.

    `ticks` make a logarithmic x axis; `limits` are the lowest and highest y, `across` those of x; `reference` is
    a named level.
    """
    with new_figure(width, 3.4) as (figure, (axis,)):
        for line in series:
            color, style, mark = look(line.method)
            drawn = axis.errorbar(
                line.x,
                line.y,
                yerr=line.spread or None,
                color=color,
                linestyle=style,
                marker=mark,
                markersize=4.5,
                markerfacecolor="white" if line.hollow else color,
                markevery=max(1, -(-len(line.x) // markers)),
                linewidth=1.5,
                elinewidth=0.8,
                capsize=2,
            )
            for artist in drawn.get_children():
                artist.set_gid(f"series-{line.key}")
        if reference is not None:
            name, level = reference
            axis.axhline(level, **CHANCE)
            axis.annotate(
                name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
            )
        if ticks:
            axis.set_xscale("log")
            inside = [tick for tick in ticks if tick <= max(max(line.x) for line in series)]
            axis.set_xticks(inside, [f"{tick:,}" for tick in inside])
            axis.minorticks_off()
        for set_limits, ends in ((axis.set_ylim, limits), (axis.set_xlim, across)):
            if ends is not None:
                margin = 0.04 * (ends[1] - ends[0]) or 0.04
                set_limits(ends[0] - margin, ends[1] + margin)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set(xlabel=xlabel, ylabel=ylabel)
        return named_series(svg_text(figure))


def named_series(svg: str) -> Markup:
    """Name the lines in a way that may repeat within one page, and drop all names that nothing refers to."""
    svg = re.sub(r'<g id="series-([^"]+)">', r'<g class="series" data-series="\1">', svg)
    return Markup(re.sub(r'<g id="[a-zA-Z0-9_.]+">', "<g>", svg))


_MARKS = {  # outlines around (18, 7), as matplotlib draws them
    "o": "M14.5 7a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "s": "M15 4h6v6h-6z",
    "D": "M18 2.8l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "v": "M14.5 4h7l-3.5 6.5z",
    "^": "M14.5 10h7l-3.5-6.5z",
    "P": "M16.7 3h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M15.9 3.1l2.1 2.1l2.1-2.1l1.8 1.8l-2.1 2.1l2.1 2.1l-1.8 1.8l-2.1-2.1l-2.1 2.1l-1.8-1.8l2.1-2.1l-2.1-2.1z",
    "*": "M18 2.5l1.2 3.2h3.3l-2.7 2l1.1 3.3l-2.9-2l-2.9 2l1.1-3.3l-2.7-2h3.3z",
    "p": "M18 3l3.8 2.8l-1.4 4.4h-4.8l-1.4-4.4z",
    ".": "M16.5 7a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z",
}
_DASHES = {"-": "none", "--": "6 3", ":": "1.6 2.4", "-.": "6 2 1.6 2"}


def swatch(method: str, hollow: bool = False) -> Markup:
    """A piece of a method's line, for keys and tables."""
    color, style, mark = look(method)
    return Markup(
        "<svg class='swatch' viewBox='0 0 36 14' width='36' height='14' aria-hidden='true'>"
        f"<path d='M1 7h34' stroke='{color}' stroke-width='2' stroke-dasharray='{_DASHES[style]}'/>"
        f"<path d='{_MARKS[mark]}' fill='{'#fff' if hollow else color}' stroke='{color}'/></svg>"
    )


def page_templates(*packages: str) -> Environment:
    """The templates of pages: those of `packages`, and the ones here that they build on."""
    found = templates_of("centerhash.experiments")
    found.loader = ChoiceLoader([PackageLoader(name) for name in (*packages, "centerhash.experiments")])
    found.globals |= {"swatch": swatch, "look": look}
    return found


def page(template: str, **values: Any) -> str:
    """A whole page as HTML text; the template escapes all values."""
    return page_templates().get_template(template).render(**values)
