"""Tables of mAP through the grid of `centerhash compare`, the paper's printed figures beside them."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from centerhash.core.figures import new_figure
from centerhash.core.files import append_line, write_text
from centerhash.experiments.comparison import read_results, write_comparison
from centerhash.experiments.figures import COLOURS, STYLES, swatch
from centerhash.experiments.grid import RESULTS, Cell, run_grid
from centerhash.experiments.paper.drawing import (
    Drawing,
    drawn,
    legend_below,
    markdown_table,
    note,
    paragraph,
    table,
)
from centerhash.experiments.paper.printed import DATA, printed, printed_map
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.experiments.paper.tasks import mend
from centerhash.experiments.rows import completed, other_setting, read_rows
from centerhash.experiments.tables import MAPS, Line, Summary, failure_text, score_text

_MARKS = {
    "alexnet": ("s", "AlexNet, printed"),
    "resnet50": ("D", "ResNet-50, printed"),
    "ablation": ("s", "AlexNet, printed"),
}


def run_scores(
    settings: Settings, what: str, title: str, methods: Sequence[str], tables: Sequence[str], shared: str = ""
) -> Section:
    """Train what is missing and draw; `tables` are the printed ones, `shared` another part with rows to take."""
    folder, cells = settings.folder(what), settings.cells(methods)
    taken = [place for place in (settings.results, settings.out / shared if shared else None) if place]
    if taken:
        _take_over(settings, folder, cells, taken)
    rows, failures = run_grid(
        settings.source,
        cells,
        folder,
        jobs=settings.jobs,
        report=settings.report,
        on_cell=settings.on_cell,
        warn=settings.warn,
    )
    wanted = [cell.resolved for cell in cells]
    kept = [row for row in rows if row["config"] in wanted]
    failed = tuple(failure_text(row) for row in failures)
    if not kept:
        return Section(what, title, paragraph("Every training failed."), failed)
    summary = write_comparison(kept, folder, failures)
    parts = [
        paragraph(f"{summary.first['data']}: {summary.about()}"),
        score_plot(summary, tables).write(folder),
    ]
    for name in tables:
        heading = f"<h3>Ours beside the paper's {html.escape(printed()[name]['title'])}</h3>"
        parts += [heading, _html_table(summary, name)]
        write_text(folder / f"{name}.md", _markdown(summary, name))
    return Section(what, title, "".join([*parts, note(_remark(summary))]), failed)


def _take_over(settings: Settings, folder: Path, cells: Sequence[Cell], places: Sequence[Path]) -> None:
    """Copy rows of these cells that other comparisons of the same data have finished."""
    facts = settings.source.open(settings.report).facts()
    kept = read_rows(folder / RESULTS)
    mend(folder / RESULTS, kept)
    here = [completed(row)["config"] for row in kept]
    wanted = [cell.resolved for cell in cells if cell.resolved not in here]
    for place in places:
        stored = read_results(place) if place == settings.results else read_rows(place / RESULTS)
        fitting = [row for row in stored if not other_setting(row, facts)]
        if place == settings.results and not fitting:
            reasons = "; ".join(other_setting(stored[0], facts))
            settings.warn(
                [f"--results {place} is of another comparison and nothing is taken from it: {reasons}."]
            )
        for row in map(completed, fitting):
            if row["config"] in wanted:
                wanted.remove(row["config"])
                append_line(folder / RESULTS, json.dumps(row, separators=(",", ":")))


def _remark(summary: Summary) -> str:
    k = f"{summary.first['evaluation']['k']:,}"
    return (
        f"Ours: mAP@{k} of this run, mean ± sample standard deviation over the seeds; peers divide by the relevant "
        f"items among the first {k}, as the paper does, textbook by all relevant items, at most {k}. Printed: copied "
        "from the paper, trained by its authors with another backbone, fine-tuned, on other images than these; to be "
        "compared in their order and distances, not digit by digit. A method that the paper does not have, or not "
        "with this backbone, has no printed figure; the paper's ICS stands beside both of our forms of it."
    )


def _html_table(summary: Summary, name: str) -> str:
    groups = [(f"ours, {spoken}", len(summary.bits)) for spoken in MAPS.values()]
    groups += [(f"<i>printed</i>, {spoken}", len(summary.bits)) for spoken in DATA.values()]
    heads = ["", *[f"{bits} bits" for bits in summary.bits] * len(groups)]
    lines = [
        [_named(line), *_ours(summary, line, bold=True), *_theirs(summary, line, name)]
        for line in summary.lines
    ]
    chance = [f"{summary.chance(measure):.3f}" for measure in MAPS for _ in summary.bits]
    empty = [""] * (len(DATA) * len(summary.bits))
    return table(heads, [*lines, ["chance", *chance, *empty]], groups)


def _named(line: Line) -> str:
    return f"{swatch(line.method)}{html.escape(line.title)}"


def _ours(summary: Summary, line: Line, bold: bool = False) -> list[str]:
    cells = []
    for measure in MAPS:
        for bits in summary.bits:
            text = score_text(summary, line.scores.get(bits), measure)
            best = text.startswith(f"{summary.best(measure, bits):.3f}")
            cells.append(f"<b>{text}</b>" if bold and best else text)
    return cells


def _theirs(summary: Summary, line: Line, name: str) -> list[str]:
    values = [printed_map(name, data, line.method, bits) for data in DATA for bits in summary.bits]
    return ["" if value is None else f"<i>{value:.3f}</i>" for value in values]  # also valid markdown


def _markdown(summary: Summary, name: str) -> str:
    heads = [f"{bits} bits" for bits in summary.bits]
    columns = [f"ours, {spoken}, {head}" for spoken in MAPS.values() for head in heads]
    columns += [f"printed, {spoken}, {head}" for spoken in DATA.values() for head in heads]
    lines = [[line.title, *_ours(summary, line), *_theirs(summary, line, name)] for line in summary.lines]
    head = f"# {summary.first['data']} beside the paper's {printed()[name]['title']}\n\n"
    return f"{head}{markdown_table(['method', *columns], lines)}\n{_remark(summary)}\n"


def score_plot(summary: Summary, tables: Sequence[str]) -> Drawing:
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
                        color=COLOURS.get(line.method, "#000000"),
                        marker=STYLES.get(line.method, ("-", "."))[1],
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
            axis.axvline(summary.chance("map_peers"), color="#777777", linewidth=1, linestyle=(0, (1, 3)))
            axis.set_title(f"{bits} bits", fontsize=10, loc="left")
            axis.set(xlabel=f"mAP@{summary.first['evaluation']['k']:,}, peers")
        for name in tables:
            mark, label = _MARKS[name]
            axes[-1].plot([], [], mark, color="#888888", markerfacecolor="none", label=f"{label}, COCO")
        axes[-1].plot([], [], "o", color="#222222", label="ours")
        axes[-1].plot([], [], color="#777777", linestyle=(0, (1, 3)), label="chance, ours")
        legend_below(figure, axes[-1], 2.0)
        return drawn("map", figure)
