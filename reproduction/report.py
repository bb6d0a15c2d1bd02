"""One experiment of the paper, or all of them on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from centerhash.core.errors import CenterhashError, ConfigError, unknown_name
from centerhash.core.files import write_text
from centerhash.data import open_dataset
from centerhash.training.run_folder import versions
from reproduction import instances, parameters, scores, solver, weights
from reproduction.common import Section, Settings, paragraph, templates

PARTS: Mapping[str, Callable[[Settings], Section]] = {
    scores.ALL_METHODS: scores.run_methods,
    scores.ABLATION: scores.run_ablation,
    solver.WHAT: solver.run,
    parameters.BETA.what: parameters.run_beta,
    parameters.LAMBDA.what: parameters.run_lambda,
    weights.WHAT: weights.run,
    instances.WHAT: instances.run,
}
ALL = "all"
_TABLES, _TESTED = (scores.ALL_METHODS, scores.ABLATION, ALL), (instances.WHAT, ALL)
# of settings that others would ignore
_OWNERS = {"results": _TABLES, "test_images": _TESTED, "exclude": _TESTED}


@dataclass(frozen=True)
class Reproduced:
    """The page that was written, and what failed in any part."""

    page: Path
    failures: list[str]


def reproduce(what: str, settings: Settings) -> Reproduced:
    """Run one part, or `all`; write DIR/<what>.html, or DIR/report.html, with figures as files next to it."""
    if what not in (*PARTS, ALL):
        raise unknown_name("part of the paper", what, [*PARTS, ALL])
    for name, owners in _OWNERS.items():
        if getattr(settings, name) is not None and what not in owners:
            raise ConfigError(f"`{name}=` is for {', '.join(owners)}: leave it out for '{what}'.")
    settings.warn(open_dataset(settings.source.path).warnings)
    sections = [_attempt(name, settings) for name in PARTS] if what == ALL else [PARTS[what](settings)]
    title = "The paper's experiments" if what == ALL else sections[0].title
    page = templates().get_template("paper.html")
    text = page.render(
        title=f"centerhash: {title}",
        heading=title,
        data=settings.source.path.resolve().name,
        sections=sections,
        facts=[*map(" ".join, versions().items()), "raw results: results.jsonl of every part"],
    )
    path = settings.out / ("report.html" if what == ALL else f"{what}.html")
    write_text(path, text)
    return Reproduced(path, [f"{section.what}: {text}" for section in sections for text in section.failures])


def _attempt(what: str, settings: Settings) -> Section:
    """One part of all; if it is impossible, its section contains the reason and the other parts still run."""
    if what == instances.WHAT and not instances.possible(settings):
        missing = "This dataset has no areas of its objects: name one that has for the test images."
        return Section(what, instances.TITLE, (paragraph(missing),))
    try:
        return PARTS[what](settings)
    except CenterhashError as error:
        return Section(what, what, (paragraph(str(error)),), (str(error),))
