"""Our HTML pages, each one file that needs nothing else to be opened; the templates escape whatever they are given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from centerhash.core.rendering import templates_of
from centerhash.experiments.figures import look, swatch


@cache
def _templates() -> Environment:
    templates = templates_of("centerhash.experiments")
    templates.globals |= {"swatch": swatch, "look": look}
    return templates


def page(template: str, **values: Any) -> str:
    """A whole page."""
    return _templates().get_template(template).render(**values)


def paragraph(text: str) -> Markup:
    """A sentence or two of plain text."""
    return Markup("<p>{}</p>").format(text)


def note(text: str) -> Markup:
    """A remark under a table or figure."""
    return Markup("<p class='note'>{}</p>").format(text)


def heading(text: str) -> Markup:
    """The title of a part of a section."""
    return Markup("<h3>{}</h3>").format(text)


def table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], groups: Sequence[tuple[str, int]] = ()
) -> Markup:
    """A table: `heads` over the columns, the first cell of a line names it.

    `groups` are titles over several columns each, as (title, columns), after the first.
    """
    macros: Any = _templates().get_template("parts.html").module
    return Markup(macros.table(heads, lines, groups))
