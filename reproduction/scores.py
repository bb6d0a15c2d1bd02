"""Tables 2, 3 and 4: mAP as `centerhash compare` evaluates it, next to the results that the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from centerhash.core.files import append_line
from centerhash.experiments import runner
from centerhash.experiments.compare import read_results, train_and_evaluate, write_comparison
from centerhash.experiments.tables import MAPS, Summary, score_cells
from centerhash.experiments.tasks import Task, plan_tasks
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import DATA, Section, Settings, heading, note, paragraph, printed, table, words

ALL_METHODS, ABLATION = "table-methods", "table-ablation"
ABLATED = ("csq", "ewcs", "ics-printed", "ics", "ics-softmax")


def run_methods(settings: Settings) -> Section:
    """Tables 2 and 3: all methods, or those selected."""
    title, methods = "All methods (Tables 2 and 3)", settings.chosen(ALL_METHODS, list(METHODS))
    return _run(settings, ALL_METHODS, title, methods, ("alexnet", "resnet50"))


def run_ablation(settings: Settings) -> Section:
    """Table 4: one centroid, equal weights, instance weights in each form; rows of all methods are copied."""
    title = "Equal weights against instance weights (Table 4)"
    return _run(settings, ABLATION, title, settings.chosen(ABLATION, ABLATED), ("ablation",), ALL_METHODS)


def _run(
    settings: Settings, what: str, title: str, methods: Sequence[str], tables: Sequence[str], shared: str = ""
) -> Section:
    """Train missing rows and draw; `tables` are the printed ones, `shared` another part with rows to copy."""
    folder = settings.folder(what)
    tasks = plan_tasks(methods, settings.bits, settings.seeds, settings.options, settings.training)
    for place in (settings.results, settings.out / shared if shared else None):
        if place is not None:
            _copy_rows(settings, folder, tasks, place)
    rows, failures = runner.run_tasks(
        settings.source,
        tasks,
        folder,
        train_and_evaluate,
        jobs=settings.jobs,
        progress=settings.progress,
        on_done=settings.on_done,
    )
    kept, failed = runner.select_rows(rows, tasks), tuple(map(runner.failure_text, failures))
    if not kept:
        return Section(what, title, (paragraph("Every training run failed."),), failed)
    summary = write_comparison(kept, folder, failures)
    pieces = [paragraph(f"{summary.first['data']}: {summary.about()}")]
    for name in tables:
        pieces += [heading(f"Ours beside the paper's {printed()[name]['title']}"), _table(summary, name)]
    return Section(what, title, (*pieces, note(words("scores", k=summary.depth))), failed)


def _copy_rows(settings: Settings, folder: Path, tasks: Sequence[Task], place: Path) -> None:
    """Copy the rows of these tasks that another comparison of the same data has finished."""
    facts = settings.source.open(settings.progress).facts()
    wanted = {task.key for task in tasks} - {
        runner.row_key(row) for row in runner.open_results(folder, facts)
    }
    stored = read_results(place) if place == settings.results else runner.read_rows(place / runner.RESULTS)
    fitting = [row for row in stored if not runner.differences(row, facts)]
    if stored and not fitting:
        reasons = "; ".join(runner.differences(stored[0], facts))
        settings.warn([f"'{place}' is of another comparison and nothing is copied from it: {reasons}."])
    for row in fitting:
        if runner.row_key(row) in wanted:
            wanted.remove(runner.row_key(row))
            append_line(folder / runner.RESULTS, runner.row_line(row))


def _table(summary: Summary, name: str) -> Markup:
    """Return our mAP next to the printed one, a line per method."""
    count, italic = len(summary.bits), Markup("<i>{}</i>").format
    groups = [(f"ours, {title}", count) for title in MAPS.values()]
    groups += [(Markup("<i>printed</i>, {}").format(title), count) for title in DATA.values()]
    heads = ["", *[f"{bits} bits" for bits in summary.bits] * len(groups)]
    ours = [score_cells(summary, metric, Markup("<b>{}</b>")) for metric in MAPS]
    lines = []
    for line, title in summary.lines.items():
        theirs = [common.printed_map(name, data, line[0], bits) for data in DATA for bits in summary.bits]
        shown = ("" if value is None else italic(f"{value:.3f}") for value in theirs)
        lines.append([title, *(cell for cells in ours for cell in cells[line]), *shown])
    random = [f"{summary.random(metric):.3f}" for metric in MAPS for _ in summary.bits]
    return table(heads, [*lines, ["random ranking", *random, *[""] * (len(DATA) * count)]], groups)
