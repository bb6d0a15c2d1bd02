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
from reproduction.common import TEMPLATES, Section, Settings, paragraph

PARTS: Mapping[str, Callable[[Settings], Section]] = {
    scores.ALL_METHODS: scores.run_methods,
    scores.ABLATION: scores.run_ablation,
    solver.PART: solver.run,
    "beta": partial(parameters.run, "beta"),
    "lambda": partial(parameters.run, "lambda"),
    weights.PART: weights.run,
    instances.PART: instances.run,
}
ALL = "all"


def reproduce(part: str, settings: Settings) -> tuple[Path, list[str]]:
    """Run one part, or `all`; write <part>.html or report.html, and return its path and the failures."""
    if part not in (*PARTS, ALL):
        raise unknown_name("part of the paper", part, [*PARTS, ALL])
    settings.warn(open_dataset(settings.source.path).warnings)
    sections = [_attempt(name, settings) for name in PARTS] if part == ALL else [PARTS[part](settings)]
    title = "The paper's experiments" if part == ALL else sections[0].title
    page = TEMPLATES.get_template("paper.html").render(
        title=f"centerhash: {title}",
        heading=title,
        data=settings.source.path.resolve().name,
        sections=sections,
        facts=[*map(" ".join, versions().items()), "raw results: results.jsonl of every part"],
    )
    path = settings.out / ("report.html" if part == ALL else f"{part}.html")
    write_text(path, page)
    return path, [f"{section.part}: {text}" for section in sections for text in section.failures]


def _attempt(part: str, settings: Settings) -> Section:
    """Run one part of all; if it is impossible, its section contains the reason and the other parts still run."""
    if part == instances.PART and open_dataset(settings.source.path).areas is None:
        return Section(part, instances.TITLE, (paragraph("This dataset has no areas of its objects."),))
    try:
        return PARTS[part](settings)
    except CenterhashError as error:
        return Section(part, part, (paragraph(str(error)),), (str(error),))
