"""Tables 2, 3 and 4: mAP as `centerhash compare` measures it, the paper's printed figures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from centerhash.core.files import append_line, write_text
from centerhash.core.rendering import new_figure
from centerhash.experiments.bench import Task
from centerhash.experiments.compare import measure, read_results, write_comparison
from centerhash.experiments.figures import CHANCE, look, swatch
from centerhash.experiments.pages import heading, note, paragraph, table
from centerhash.experiments.paper.common import (
    DATA,
    Section,
    Settings,
    legend_below,
    printed,
    printed_map,
    words,
    write_figure,
)
from centerhash.experiments.rows import completed, other_setting, read_rows, row_key, row_line
from centerhash.experiments.runner import RESULTS, answers, claim
from centerhash.experiments.tables import MAPS, Line, Summary, failure_text, markdown_table, score_cells
from centerhash.methods.registry import METHODS

ALL_METHODS, ABLATION = "table-methods", "table-ablation"
ABLATED = ("csq", "ewcs", "ics-printed", "ics", "ics-softmax")
_MARKS = {
    "alexnet": ("s", "AlexNet, printed"),
    "resnet50": ("D", "ResNet-50, printed"),
    "ablation": ("s", "AlexNet, printed"),
}


def run_methods(settings: Settings) -> Section:
    """Tables 2 and 3: all methods, or those that were asked for."""
    title, methods = "All methods (Tables 2 and 3)", settings.chosen(ALL_METHODS, list(METHODS))
    return _run(settings, ALL_METHODS, title, methods, ("alexnet", "resnet50"))


def run_ablation(settings: Settings) -> Section:
    """Table 4: one centroid, equal weights, instance weights in each form; rows of all methods are taken over."""
    title = "Equal weights against instance weights (Table 4)"
    return _run(settings, ABLATION, title, settings.chosen(ABLATION, ABLATED), ("ablation",), ALL_METHODS)


def _run(
    settings: Settings, what: str, title: str, methods: Sequence[str], tables: Sequence[str], shared: str = ""
) -> Section:
    """Train what is missing and draw; `tables` are the printed ones, `shared` another part with rows to take."""
    folder, tasks = settings.folder(what), settings.tasks(methods)
    taken = [place for place in (settings.results, settings.out / shared if shared else None) if place]
    if taken:
        _take_over(settings, folder, tasks, taken)
    rows, failures = settings.run(what, tasks, measure, on_done=settings.on_done)
    kept, failed = answers(rows, tasks), tuple(map(failure_text, failures))
    if not kept:
        return Section(what, title, (paragraph("Every training failed."),), failed)
    summary = write_comparison(kept, folder, failures)
    about = paragraph(f"{summary.first['data']}: {summary.about()}")
    pieces = [about, _plot(folder, summary, tables)]
    for name in tables:
        pieces += [heading(f"Ours beside the paper's {printed()[name]['title']}"), _html_table(summary, name)]
        write_text(folder / f"{name}.md", _markdown(summary, name))
    return Section(what, title, (*pieces, note(words("scores", k=summary.depth))), failed)


def _take_over(settings: Settings, folder: Path, tasks: Sequence[Task], places: Sequence[Path]) -> None:
    """Copy rows of these tasks that other comparisons of the same data have finished."""
    facts = settings.source.open(settings.progress).facts()
    wanted = {task.key for task in tasks} - {row_key(row) for row in claim(folder, facts)}
    for place in places:
        stored = read_results(place) if place == settings.results else read_rows(place / RESULTS)
        fitting = [row for row in stored if not other_setting(row, facts)]
        if place == settings.results and not fitting:
            reasons = "; ".join(other_setting(stored[0], facts))
            settings.warn([f"'{place}' is of another comparison and nothing is taken from it: {reasons}."])
        for row in map(completed, fitting):
            if row_key(row) in wanted:
                wanted.remove(row_key(row))
                append_line(folder / RESULTS, row_line(row))


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
    chance = [f"{summary.chance(measure):.3f}" for measure in MAPS for _ in summary.bits]
    return table(heads, [*lines, ["chance", *chance, *[""] * (len(DATA) * count)]], groups)


def _ours(summary: Summary, line: Line, bold: str = "{}") -> list[str]:
    return [text for measure in MAPS for text in score_cells(summary, line, measure, bold)]


def _theirs(summary: Summary, line: Line, name: str) -> list[str]:
    values = [printed_map(name, data, line.method, bits) for data in DATA for bits in summary.bits]
    return ["" if value is None else f"<i>{value:.3f}</i>" for value in values]  # also valid markdown


def _markdown(summary: Summary, name: str) -> str:
    heads = [f"{bits} bits" for bits in summary.bits]
    columns = [f"ours, {spoken}, {head}" for spoken in MAPS.values() for head in heads]
    columns += [f"printed, {spoken}, {head}" for spoken in DATA.values() for head in heads]
    lines = [[line.title, *_ours(summary, line), *_theirs(summary, line, name)] for line in summary.lines]
    head = f"# {summary.first['data']} beside the paper's {printed()[name]['title']}\n\n"
    return f"{head}{markdown_table(['method', *columns], lines)}\n\n{words('scores', k=summary.depth)}\n"


def _plot(folder: Path, summary: Summary, tables: Sequence[str]) -> Markup:
    """One panel per number of bits: our mAP of every method, the paper's COCO figures as hollow marks."""
    height = 1.6 + 0.26 * len(summary.lines)
    with new_figure(3.6 * len(summary.bits) + 1, height, len(summary.bits)) as (figure, axes):
        for axis, bits in zip(axes, summary.bits, strict=True):
            for place, line in enumerate(reversed(summary.lines)):
                score = line.scores.get(bits)
                mean = None if score is None else score.mean("map_peers")
                if score is not None and mean is not None:
                    axis.errorbar(
                        mean,
                        place,
                        xerr=score.deviation("map_peers"),
                        color=look(line.method).colour,
                        marker=look(line.method).mark,
                        capsize=2,
                    )
                for name in tables:
                    value = printed_map(name, "coco", line.method, bits)
                    if value is not None:
                        axis.plot(
                            value, place, _MARKS[name][0], color="#888888", markerfacecolor="none", zorder=1
                        )
            titles = [line.title for line in reversed(summary.lines)]
            axis.set_yticks(range(len(titles)), titles if axis is axes[0] else [""] * len(titles))
            axis.set_ylim(-0.7, len(titles) - 0.3)
            axis.axvline(summary.chance("map_peers"), **CHANCE)
            axis.set_title(f"{bits} bits", fontsize=10, loc="left")
            axis.set(xlabel=f"mAP@{summary.depth:,}, peers")
        for name in tables:
            mark, label = _MARKS[name]
            axes[-1].plot([], [], mark, color="#888888", markerfacecolor="none", label=f"{label}, COCO")
        axes[-1].plot([], [], "o", color="#222222", label="ours")
        axes[-1].plot([], [], color="#777777", linestyle=(0, (1, 3)), label="chance, ours")
        legend_below(figure, axes[-1], 2.0)
        return write_figure(folder / "map", figure)
