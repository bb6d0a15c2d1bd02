"""Tables 2, 3 and 4: mAP as `centerhash compare` evaluates it, next to the results that the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from centerhash.core.files import append_line, write_text
from centerhash.core.rendering import new_figure
from centerhash.experiments import runner
from centerhash.experiments.compare import read_results, train_and_evaluate, write_comparison
from centerhash.experiments.figures import CHANCE, look, swatch
from centerhash.experiments.tables import MAPS, Line, Summary, markdown_table, score_cells
from centerhash.experiments.tasks import Task
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import DATA, Section, Settings, heading, note, paragraph, printed, table, words

ALL_METHODS, ABLATION = "table-methods", "table-ablation"
ABLATED = ("csq", "ewcs", "ics-printed", "ics", "ics-softmax")
_MARKS = {
    "alexnet": ("s", "AlexNet, printed"),
    "resnet50": ("D", "ResNet-50, printed"),
    "ablation": ("s", "AlexNet, printed"),
}


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
    folder, tasks = settings.folder(what), settings.tasks(methods)
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
    pieces = [paragraph(f"{summary.first['data']}: {summary.about()}"), _plot(folder, summary, tables)]
    for name in tables:
        pieces += [heading(f"Ours beside the paper's {printed()[name]['title']}"), _html_table(summary, name)]
        write_text(folder / f"{name}.md", _markdown(summary, name))
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


def _html_table(summary: Summary, name: str) -> Markup:
    count = len(summary.bits)
    groups = [(f"ours, {spoken}", count) for spoken in MAPS.values()]
    groups += [(Markup("<i>printed</i>, {}").format(spoken), count) for spoken in DATA.values()]
    heads = ["", *[f"{bits} bits" for bits in summary.bits] * len(groups)]
    lines = []
    for line in summary.lines:
        named = Markup("{}{}").format(swatch(line.method), line.title)
        ours = _ours(summary, line, Markup("<b>{}</b>"))
        lines.append([named, *ours, *map(Markup, _theirs(summary, line, name))])
    chance = [f"{summary.chance(metric):.3f}" for metric in MAPS for _ in summary.bits]
    return table(heads, [*lines, ["random ranking", *chance, *[""] * (len(DATA) * count)]], groups)


def _ours(summary: Summary, line: Line, bold: str = "{}") -> list[str]:
    return [text for metric in MAPS for text in score_cells(summary, line, metric, bold)]


def _theirs(summary: Summary, line: Line, name: str) -> list[str]:
    values = [common.printed_map(name, data, line.method, bits) for data in DATA for bits in summary.bits]
    return ["" if value is None else f"<i>{value:.3f}</i>" for value in values]  # also valid markdown


def _markdown(summary: Summary, name: str) -> str:
    heads = [f"{bits} bits" for bits in summary.bits]
    columns = [f"ours, {spoken}, {head}" for spoken in MAPS.values() for head in heads]
    columns += [f"printed, {spoken}, {head}" for spoken in DATA.values() for head in heads]
    lines = [[line.title, *_ours(summary, line), *_theirs(summary, line, name)] for line in summary.lines]
    head = f"# {summary.first['data']} beside the paper's {printed()[name]['title']}\n\n"
    return f"{head}{markdown_table(['method', *columns], lines)}\n\n{words('scores', k=summary.depth)}\n"


def _plot(folder: Path, summary: Summary, tables: Sequence[str]) -> Markup:
    """One panel per number of bits: our mAP of every method, the paper's COCO results as hollow marks."""
    lines = summary.lines[::-1]
    hollow: dict[str, Any] = {"color": "#888888", "markerfacecolor": "none"}
    with new_figure(3.6 * len(summary.bits) + 1, 1.6 + 0.26 * len(lines), len(summary.bits)) as (
        figure,
        axes,
    ):
        for axis, bits in zip(axes, summary.bits, strict=True):
            for place, line in enumerate(lines):
                score = line.scores.get(bits)
                mean = None if score is None else score.mean("map_peers")
                if score is not None and mean is not None:
                    color, _, mark = look(line.method)
                    spread = score.deviation("map_peers")
                    axis.errorbar(mean, place, xerr=spread, color=color, marker=mark, capsize=2)
                for name in tables:
                    value = common.printed_map(name, "coco", line.method, bits)
                    if value is not None:
                        axis.plot(value, place, _MARKS[name][0], **hollow, zorder=1)
            titles = [line.title if axis is axes[0] else "" for line in lines]
            axis.set_yticks(range(len(titles)), titles)
            axis.set_ylim(-0.7, len(titles) - 0.3)
            axis.axvline(summary.chance("map_peers"), **CHANCE)
            axis.set_title(f"{bits} bits", fontsize=10, loc="left")
            axis.set(xlabel=f"mAP@{summary.depth:,}, retrieved relevant")
        for name in tables:
            mark, label = _MARKS[name]
            axes[-1].plot([], [], mark, **hollow, label=f"{label}, COCO")
        axes[-1].plot([], [], "o", color="#222222", label="ours")
        axes[-1].plot([], [], color="#777777", linestyle=(0, (1, 3)), label="random ranking, ours")
        common.legend_below(figure, axes[-1], 2.0)
        return common.write_figure(folder / "map", figure)
