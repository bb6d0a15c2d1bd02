"""`centerhash reproduce`: one part of the paper, or all of them on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from centerhash.core.errors import CenterhashError, ConfigError, unknown_name
from centerhash.core.files import write_text
from centerhash.experiments.pages import page, paragraph
from centerhash.experiments.paper import instances, parameters, pgd, scores, weights
from centerhash.experiments.paper.common import Section, Settings
from centerhash.training.run_folder import versions

PARTS: Mapping[str, Callable[[Settings], Section]] = MappingProxyType(
    {
        scores.ALL_METHODS: scores.run_methods,
        scores.ABLATION: scores.run_ablation,
        pgd.WHAT: pgd.run,
        parameters.BETA.what: parameters.run_beta,
        parameters.LAMBDA.what: parameters.run_lambda,
        weights.WHAT: weights.run,
        instances.WHAT: instances.run,
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
    write_text(path, _page(settings.source.path.resolve().name, sections))
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
    """Refuse settings that this part would ignore."""
    tables, tested = (scores.ALL_METHODS, scores.ABLATION, ALL), (instances.WHAT, ALL)
    for name, owners in (("results", tables), ("test_images", tested), ("exclude", tested)):
        if getattr(settings, name) is not None and what not in owners:
            spoken = name.replace("_", "-")
            raise ConfigError(f"'{spoken}' belongs to {', '.join(owners)}: leave it out for '{what}'.")


def _attempt(what: str, settings: Settings) -> Section:
    """One part of all; what it cannot do is said in its place, and the others are still made."""
    if what == instances.WHAT and not instances.possible(settings):
        missing = (
            "This data set does not say how large its objects are: name one that does for the test images."
        )
        return Section(what, instances.TITLE, (paragraph(missing),))
    try:
        return PARTS[what](settings)
    except CenterhashError as error:
        return Section(what, what, (paragraph(str(error)),), (str(error),))


def _page(data: str, sections: Sequence[Section]) -> str:
    """The page as HTML text: a list of contents where there are several sections, then each of them."""
    title = "The paper's experiments" if len(sections) > 1 else sections[0].title
    facts = [f"{name} {version}" for name, version in versions().items()]
    return page(
        "paper.html",
        title=f"centerhash: {title}",
        heading=title,
        data=data,
        sections=sections,
        facts=[*facts, "raw results: results.jsonl of every part"],
    )
