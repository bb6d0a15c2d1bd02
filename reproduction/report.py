"""Run one experiment of the paper, or all of them on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from centerhash.core.errors import CenterhashError, unknown_name
from centerhash.core.files import write_text
from centerhash.data import open_dataset
from centerhash.training.run_folder import versions
from reproduction import instances, parameters, scores, solver, weights
from reproduction.common import Section, Settings, paragraph, templates

PARTS: Mapping[str, Callable[[Settings], Section]] = {
    scores.ALL_METHODS: scores.run_methods,
    scores.ABLATION: scores.run_ablation,
    solver.WHAT: solver.run,
    "beta": partial(parameters.run, "beta"),
    "lambda": partial(parameters.run, "lambda"),
    weights.WHAT: weights.run,
    instances.WHAT: instances.run,
}
ALL = "all"


def reproduce(what: str, settings: Settings) -> tuple[Path, list[str]]:
    """Run one part, or `all`; write DIR/<what>.html, or DIR/report.html, and return it with what failed."""
    if what not in (*PARTS, ALL):
        raise unknown_name("part of the paper", what, [*PARTS, ALL])
    settings.warn(open_dataset(settings.source.path).warnings)
    sections = [_attempt(name, settings) for name in PARTS] if what == ALL else [PARTS[what](settings)]
    title = "The paper's experiments" if what == ALL else sections[0].title
    text = (
        templates()
        .get_template("paper.html")
        .render(
            title=f"centerhash: {title}",
            heading=title,
            data=settings.source.path.resolve().name,
            sections=sections,
            facts=[*map(" ".join, versions().items()), "raw results: results.jsonl of every part"],
        )
    )
    path = settings.out / ("report.html" if what == ALL else f"{what}.html")
    write_text(path, text)
    return path, [f"{section.what}: {text}" for section in sections for text in section.failures]


def _attempt(what: str, settings: Settings) -> Section:
    """Run one part of all; if it is impossible, its section contains the reason and the other parts still run."""
    if what == instances.WHAT and not instances.possible(settings):
        return Section(what, instances.TITLE, (paragraph("This dataset has no areas of its objects."),))
    try:
        return PARTS[what](settings)
    except CenterhashError as error:
        return Section(what, what, (paragraph(str(error)),), (str(error),))
