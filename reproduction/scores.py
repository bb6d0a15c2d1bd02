"""Tables 2, 3 and 4: mAP as `centerhash compare` evaluates it, next to the printed results."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from centerhash.experiments.compare import train_and_evaluate, write_comparison
from centerhash.experiments.runner import failure_text, run_tasks, select_rows
from centerhash.experiments.tables import MAPS, Summary, score_cells
from centerhash.experiments.tasks import plan_tasks
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import DATA, PRINTED, Section, Settings, heading, note, paragraph, table, words

ALL_METHODS, ABLATION = "table-methods", "table-ablation"
ABLATED = ("csq", "ewcs", "ics-printed", "ics", "ics-softmax")
# Both parts store their rows in this folder, so that no method is trained twice. Finished rows of `centerhash compare`
# on the same data may be copied there.
ROWS = "tables"


def run_methods(settings: Settings) -> Section:
    """Compare all methods, or the selected ones, with Tables 2 and 3."""
    return _run(settings, ALL_METHODS, "All methods (Tables 2 and 3)", list(METHODS), ("alexnet", "resnet50"))


def run_ablation(settings: Settings) -> Section:
    """Compare one centroid, equal weights and instance weights in each form with Table 4."""
    title = "Equal weights against instance weights (Table 4)"
    return _run(settings, ABLATION, title, ABLATED, ("ablation",))


def _run(settings: Settings, part: str, title: str, methods: Sequence[str], tables: Sequence[str]) -> Section:
    """Train the methods that have no rows yet; compare them with the printed `tables`."""
    selected = settings.select(part, methods)
    tasks = plan_tasks(selected, settings.bits, settings.seeds, settings.options, settings.training)
    running = settings.running(part)
    rows, failures = run_tasks(settings.source, tasks, settings.folder(ROWS), train_and_evaluate, **running)
    rows, texts = select_rows(rows, tasks), tuple(map(failure_text, failures))
    if not rows:
        return Section(part, title, (paragraph("Every training run failed."),), texts)
    summary = write_comparison(rows, settings.folder(part), failures)
    pieces = [paragraph(f"{summary.first['data']}: {summary.about()}")]
    for name in tables:
        pieces += [heading(f"Ours beside the paper's {PRINTED[name]['title']}"), _table(summary, name)]
    return Section(part, title, (*pieces, note(words("scores", k=summary.depth))), texts)


def _table(summary: Summary, name: str) -> Markup:
    """Return our mAP next to the printed one, a line per method."""
    count, italic = len(summary.bits), Markup("<i>{}</i>").format
    groups = [(f"ours, {title}", count) for title in MAPS.values()]
    groups += [(Markup("<i>printed</i>, {}").format(title), count) for title in DATA.values()]
    heads = ["", *[f"{bits} bits" for bits in summary.bits] * len(groups)]
    ours = [score_cells(summary, metric, Markup("<b>{}</b>")) for metric in MAPS]
    lines = []
    for line, title in summary.lines.items():
        values = [common.printed_map(name, data, line[0], bits) for data in DATA for bits in summary.bits]
        theirs = ("" if value is None else italic(f"{value:.3f}") for value in values)
        lines.append([title, *(cell for cells in ours for cell in cells[line]), *theirs])
    random = [f"{summary.random(metric):.3f}" for metric in MAPS for _ in summary.bits]
    return table(heads, [*lines, ["random ranking", *random, *[""] * (len(DATA) * count)]], groups)
