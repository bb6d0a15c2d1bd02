"""The demo's report: one HTML file that needs nothing else to be opened."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from centerhash.codes import Codes, unpack
from centerhash.core.files import write_text
from centerhash.core.rendering import new_figure, svg_text
from centerhash.core.version import __version__
from centerhash.encoding.code_files import read_run_codes
from centerhash.evaluation import ranking
from centerhash.experiments.demo import DemoResult
from centerhash.experiments.figures import SOLVERS, area_scatter, look
from centerhash.experiments.pages import page
from centerhash.methods.registry import METHODS
from centerhash.search.results import thumbnail

SHOWN = "ics-softmax"  # whose answers and weights are shown
GRID_QUERIES, FEW_QUERIES, GRID_NEAREST, EXAMPLES = 6, 4, 8, 12


def write_report(result: DemoResult) -> None:
    """Write `result.report`."""
    text = page(
        "demo.html",
        title=f"centerhash: {result.bits}-bit codes of emoji scenes",
        result=result,
        first=next(iter(result.evaluations.values())),
        best=max(found.map_textbook for found in result.evaluations.values()),
        methods=METHODS,
        shown=SHOWN,
        cards=_cards(result),
        answers=_trained_answers(result),
        built_in=_built_in_answers(result),
        examples=_examples(result),
        titles=_titles(result),
        scatter=_scatter(result),
        convergence=_convergence(result),
        losses=_losses(result),
        facts=[
            f"centerhash {__version__}",
            f"seed {result.seed}",
            f"{result.seconds:.0f} s for this run",
            "drawings: OpenMoji (CC BY-SA 4.0)",
            "raw figures: results.json",
        ],
    )
    write_text(result.report, text)


def _cards(result: DemoResult) -> list[tuple[str, str]]:
    """The few figures to see first, each with what it is."""
    best = max(result.evaluations, key=lambda name: result.evaluations[name].map_textbook)
    found, agreement = result.evaluations[best], result.agreements[SHOWN]
    return [
        (f"{found.map_textbook:.3f}", f"mAP of {METHODS[best].title}; chance is {found.chance_textbook:.3f}"),
        (f"{result.bits // 8} bytes", f"per image: {result.bits}-bit codes, compared by Hamming distance"),
        (
            f"r = {agreement.pearson:.2f}",
            "correlation of learned weight and visible area, images not trained on",
        ),
    ]


def _trained_answers(result: DemoResult) -> list[list[dict[str, Any]]]:
    run = result.report.parent / "runs" / f"{SHOWN}-{result.bits}-{result.seed}"
    query, database = (unpack(found.packed, found.bits) for found in read_run_codes(run))
    return _answers(result, query, database, GRID_QUERIES)


def _built_in_answers(result: DemoResult) -> list[list[dict[str, Any]]]:
    """The same queries, with the labels that the built-in model sees in them."""
    splits, seen = result.dataset.splits, result.built_in
    lines = _answers(result, seen.codes[splits.query], seen.codes[splits.database], FEW_QUERIES)
    for line in lines:
        names = seen.names[line[0]["row"]]
        line[0] |= {"caption": "it sees", "labels": [(name, False) for name in names]}
    return lines


def _answers(result: DemoResult, query: Codes, database: Codes, most: int) -> list[list[dict[str, Any]]]:
    """Evenly spaced queries, each followed by its nearest images, by the codes of the splits' rows."""
    splits = result.dataset.splits
    spread = np.linspace(0, len(query) - 1, num=min(most, len(query))).astype(int)
    nearest, distances = ranking(query[spread], database, min(GRID_NEAREST, len(database)))
    lines = []
    for place, row in enumerate(splits.query[spread].tolist()):
        wanted = result.dataset.labels[row]
        line = [{"kind": "query", "caption": "query", **_image(result, row, np.zeros_like(wanted))}]
        for item, distance in zip(nearest[place].tolist(), distances[place].tolist(), strict=True):
            found = _image(result, int(splits.database[item]), wanted)
            hit = any(shared for _, shared in found["labels"])
            line.append(
                {
                    "kind": "hit" if hit else "miss",
                    "caption": f"{distance} bit{'s' * (distance != 1)}",
                    **found,
                }
            )
        lines.append(line)
    return lines


def _image(result: DemoResult, row: int, wanted: Any) -> dict[str, Any]:
    """An image, and its labels with whether they are `wanted`."""
    labels = np.flatnonzero(result.dataset.labels[row])
    return {
        "row": row,
        "source": _thumbnail(result, row),
        "labels": [(result.dataset.classes[j], bool(wanted[j])) for j in labels],
    }


def _thumbnail(result: DemoResult, row: int, size: int = 128) -> str:
    return thumbnail((result.dataset.image_paths or ())[row], size)


def _examples(result: DemoResult) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """The first queries with three labels or more: image, and weight and area share per label, largest first."""
    dataset, examples = result.dataset, []
    queries = dataset.splits.query
    for place in np.flatnonzero(dataset.labels[queries].sum(axis=1) >= 3)[:EXAMPLES].tolist():
        row = int(queries[place])
        labels = np.flatnonzero(dataset.labels[row])
        shares = result.areas[place, labels] / result.areas[place, labels].sum()
        weights = result.weights[SHOWN][place, labels]
        order = np.argsort(-shares)
        lines = [(dataset.classes[labels[j]], float(weights[j]), float(shares[j])) for j in order]
        examples.append((_thumbnail(result, row, 160), lines))
    return examples


def _titles(result: DemoResult) -> dict[str, str]:
    return {**{name: METHODS[name].title for name in result.agreements}, "ewcs": "equal weights (E-WCS)"}


# Plots


def _scatter(result: DemoResult) -> Markup:
    """Weight against area share, one panel per method, with its correlations."""
    titles, agreements = _titles(result), result.agreements
    with new_figure(3.5 * len(agreements), 3.7, len(agreements)) as (figure, axes):
        for axis, (method, found) in zip(axes, agreements.items(), strict=True):
            area_scatter(axis, found.shares, found.weights, look(method).colour)
            measures = f"Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f}"
            axis.set_title(f"{titles[method]}\n{measures}", fontsize=10)
            axis.set_xlabel("true share of the labelled area")
        axes[0].set_ylabel("learned weight")
        return Markup(svg_text(figure))


def _convergence(result: DemoResult) -> Markup:
    """Objective above its minimum against the number of steps, both gradients."""
    found = result.convergence
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for key, (name, colour, mark) in SOLVERS.items():
            above = np.maximum(getattr(found, key) - found.minimum, 1e-9)
            axis.semilogy(above, label=name, color=colour, marker=mark, markersize=3, linewidth=1.5)
        axis.set(xlabel="steps of projected gradient descent", ylabel="objective above its minimum")
        axis.legend(frameon=False)
        return Markup(svg_text(figure))


def _losses(result: DemoResult) -> Markup:
    """Training loss per epoch, each method's relative to its first epoch."""
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for method, rows in result.logs.items():
            losses = np.array([row["loss"] for row in rows])
            epochs = [row["epoch"] for row in rows]
            axis.plot(epochs, losses / losses[0], label=METHODS[method].title, color=look(method).colour)
        axis.set(xlabel="epoch", ylabel="loss relative to the first epoch")
        axis.legend(frameon=False)
        return Markup(svg_text(figure))
