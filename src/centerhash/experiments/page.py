"""The shell of our HTML pages: one file that needs nothing else to be opened."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import resources


def page(title: str, parts: Iterable[str], script: str = "") -> str:
    """A whole page of `parts`, with its style and script inside."""
    style = resources.files("centerhash.experiments").joinpath("report.css").read_text(encoding="utf-8")
    code = f"<script>{script}</script>" if script else ""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main>{code}</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """A part of the page with a heading, which is also its anchor."""
    anchor = title.lower().replace(" ", "-")
    return f"<section id='{anchor}'><h2>{html.escape(title)}</h2>{body}</section>"


def cards(facts: Iterable[tuple[str, str]]) -> str:
    """The few figures to see first, each with what it is."""
    shown = "".join(
        f"<div class='card'><b>{html.escape(value)}</b><span>{html.escape(text)}</span></div>"
        for value, text in facts
    )
    return f"<div class='cards'>{shown}</div>"


def footer(facts: Sequence[str]) -> str:
    """The last line of a page."""
    return f"<footer>{' · '.join(html.escape(fact) for fact in facts)}</footer>"
