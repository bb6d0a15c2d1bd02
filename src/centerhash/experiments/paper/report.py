"""`centerhash reproduce`: one part of the paper, or all of them on one page."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from centerhash.core.errors import CenterhashError, ConfigError, unknown_name
from centerhash.core.files import write_text
from centerhash.experiments.page import footer, page
from centerhash.experiments.paper import (
    beta,
    instances,
    lambda_,
    pgd,
    table_ablation,
    table_methods,
    weights,
)
from centerhash.experiments.paper.drawing import paragraph
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.training.run import versions

PARTS: Mapping[str, Callable[[Settings], Section]] = MappingProxyType(
    {
        module.WHAT: module.run
        for module in (table_methods, table_ablation, pgd, beta, lambda_, weights, instances)
    }
)
ALL = "all"


@dataclass(frozen=True)
class Reproduced:
    """The page that was written, its parts, and what failed."""

    page: Path
    sections: tuple[Section, ...]

    @property
    def failures(self) -> list[str]:
        """What failed in any part, each with the part's name."""
        return [f"{section.what}: {text}" for section in self.sections for text in section.failures]


def reproduce(what: str, settings: Settings) -> Reproduced:
    """Make one part, or `all`; write DIR/<what>.html, or DIR/report.html, with figures as files beside it."""
    if what not in (*PARTS, ALL):
        raise unknown_name("part of the paper", what, [*PARTS, ALL])
    _refuse_unused(what, settings)
    settings = replace(settings, warn=_once(settings.warn))
    sections = tuple(_attempt(name, settings) for name in PARTS) if what == ALL else (PARTS[what](settings),)
    path = settings.out / ("report.html" if what == ALL else f"{what}.html")
    write_text(path, report_page(settings.source.path.resolve().name, sections))
    return Reproduced(path, sections)


def _once(warn: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
    """Pass every message on the first time only: all parts open the same data."""
    told: set[str] = set()

    def tell(messages: Sequence[str]) -> None:
        new = [message for message in dict.fromkeys(messages) if message not in told]
        told.update(new)
        warn(new)

    return tell


def _refuse_unused(what: str, settings: Settings) -> None:
    """Refuse options that this part would ignore."""
    tables = (table_methods.WHAT, table_ablation.WHAT, ALL)
    if settings.results is not None and what not in tables:
        raise ConfigError(f"--results belongs to {', '.join(tables)}: leave it out for '{what}'.")
    tested = (instances.WHAT, ALL)
    if (settings.test_images is not None or settings.exclude is not None) and what not in tested:
        raise ConfigError(
            f"--test-images and --exclude belong to {', '.join(tested)}: leave them out for '{what}'."
        )


def _attempt(what: str, settings: Settings) -> Section:
    """One part of all; what it cannot do is said in its place, and the others go on."""
    if what == instances.WHAT and not instances.possible(settings):
        missing = "This data set does not say how large its objects are: name one that does by --test-images."
        return Section(what, instances.TITLE, paragraph(missing))
    try:
        return PARTS[what](settings)
    except CenterhashError as error:
        return Section(what, what, paragraph(str(error)), (str(error),))


def report_page(data: str, sections: Sequence[Section]) -> str:
    """The page as HTML text: a list of contents where there are several sections, then each of them."""
    title = "The paper's experiments" if len(sections) > 1 else sections[0].title
    links = "".join(
        f"<li><a href='#{section.what}'>{html.escape(section.title)}</a></li>" for section in sections
    )
    contents = f"<nav aria-label='contents'><ol>{links}</ol></nav>" if len(sections) > 1 else ""
    head = (
        f"<header><h1>{html.escape(title)}</h1><p>Instance-weighted Central Similarity for Multi-label Image Retrieval "
        f"(Zhang and Peng, 2021), made again on {html.escape(data)}. Figures that the paper prints are set in italics; "
        f"all others were measured here.</p>{contents}</header>"
    )
    parts = [_section(section, len(sections) > 1) for section in sections]
    facts = [f"{name} {version}" for name, version in versions().items()]
    return page(
        f"centerhash: {title}", [head, *parts, footer([*facts, "raw results: results.jsonl of every part"])]
    )


def _section(section: Section, headed: bool) -> str:
    heading = f"<h2>{html.escape(section.title)}</h2>" if headed else ""
    failed = "".join(f"<li>{html.escape(text)}</li>" for text in section.failures)
    failures = f"<p>Failed; the same command tries again:</p><ul>{failed}</ul>" if failed else ""
    return f"<section id='{section.what}'>{heading}{section.body}{failures}</section>"
