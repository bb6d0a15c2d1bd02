"""The demo's report: one HTML file that needs nothing else to be opened."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.codes import unpack
from centerhash.core.files import write_text
from centerhash.core.version import __version__
from centerhash.data import load_image
from centerhash.evaluation import ranking
from centerhash.experiments.demo import DemoResult
from centerhash.experiments.figures import COLOURS, convergence_plot, loss_plot, weight_scatter
from centerhash.experiments.page import cards, footer, page, section
from centerhash.methods.table import METHODS
from centerhash.training.run import read_codes

GRID_QUERIES, GRID_NEAREST, EXAMPLES = 6, 8, 12


def write_report(result: DemoResult) -> None:
    """Write `result.report`."""
    parts = (
        _headline(result),
        section("Retrieval", _score_table(result)),
        section("Search results", _search_grid(result)),
        section("What the weights say", _weight_examples(result)),
        section("Weight against visible area", _scatter(result)),
        section("The weight solver", _solver(result)),
        section("Training", _training(result)),
        _last_line(result),
    )
    write_text(result.report, page(f"centerhash: {result.bits}-bit codes of emoji scenes", parts))


def _headline(result: DemoResult) -> str:
    best = max(result.evaluations, key=lambda name: result.evaluations[name].map_textbook)
    found, agreement = result.evaluations[best], result.agreements.get("ics-softmax")
    facts = [
        (f"{found.map_textbook:.3f}", f"mAP of {METHODS[best].title}; chance is {found.chance_textbook:.3f}"),
        (f"{result.bits // 8} bytes", f"per image: {result.bits}-bit codes, compared by Hamming distance"),
    ]
    if agreement is not None:
        facts.append(
            (
                f"r = {agreement.pearson:.2f}",
                "correlation of learned weight and visible area, images not trained on",
            )
        )
    return (
        "<header><h1>centerhash</h1><p>Binary codes for images with several labels. Every class owns a hash "
        "center; training pulls the code of an image to the centers of its labels, and instance weighting learns "
        f"how much each label counts. Data: {result.dataset.size:,} emoji scenes with {len(result.dataset.classes)} "
        f"classes, made with seed {result.seed}; features of a frozen EfficientNet-Lite0.</p>"
        f"{cards(facts)}</header>"
    )


def _score_table(result: DemoResult) -> str:
    first = next(iter(result.evaluations.values()))
    best = max(found.map_textbook for found in result.evaluations.values())
    rows = []
    for name, found in result.evaluations.items():
        value = f"{found.map_textbook:.3f}"
        cells = [
            f"<b>{value}</b>" if found.map_textbook == best else value,
            f"{found.map_textbook_expected:.3f}",
            *(f"{found.precision[n]:.3f}" for n in (1, 10, 100)),
            f"{found.ndcg:.3f}",
            f"{found.wap:.2f}",
        ]
        chip = f"<i class='dot' style='background:{COLOURS[name]}'></i>"
        about = html.escape(METHODS[name].multi_label)
        rows.append(
            f"<tr><th>{chip}{html.escape(METHODS[name].title)}<small>{about}</small></th>"
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    rows.append(
        f"<tr class='chance'><th>chance<small>a random order</small></th><td>{first.chance_textbook:.3f}</td>"
        + "<td></td>" * 6
        + "</tr>"
    )
    heads = ("mAP", "over all tie orders", "precision@1", "precision@10", "precision@100", "NDCG", "WAP")
    return (
        "<div class='wide'><table><thead><tr><th></th>"
        + "".join(f"<th>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class='note'>{first.queries:,} queries against {first.database:,} images at {result.bits} bits. An image "
        "is relevant when it shares a label with the query; the whole database is ranked, so both conventions of "
        f"mAP agree. Queries without hits: {first.queries_without_hits}.</p>"
    )


def _search_grid(result: DemoResult, method: str = "ics-softmax") -> str:
    dataset, codes = (
        result.dataset,
        read_codes(result.report.parent / "runs" / f"{method}-{result.bits}-{result.seed}"),
    )
    spread = np.linspace(0, len(codes.query_rows) - 1, num=min(GRID_QUERIES, len(codes.query_rows))).astype(
        int
    )
    query = unpack(codes.query[spread], codes.bits)
    nearest, distances = ranking(
        query, unpack(codes.database, codes.bits), min(GRID_NEAREST, len(codes.database))
    )
    lines = []
    for place, row in enumerate(codes.query_rows[spread].tolist()):
        cells = [_tile(result, row, "query", "query")]
        for item, distance in zip(nearest[place].tolist(), distances[place].tolist(), strict=True):
            found = int(codes.database_rows[item])
            hit = bool((dataset.labels[row] & dataset.labels[found]).any())
            cells.append(
                _tile(result, found, f"{distance} bits", "hit" if hit else "miss", shared=dataset.labels[row])
            )
        lines.append(f"<div class='results'>{''.join(cells)}</div>")
    return (
        f"<p>Each row: a query, then its nearest images by the codes of {html.escape(METHODS[method].title)}, with "
        "their Hamming distance. Labels shared with the query are set in bold; an image that shares none has a "
        f"dashed frame. Queries are evenly spaced through the query list.</p>{''.join(lines)}"
    )


def _tile(
    result: DemoResult, row: int, caption: str, kind: str, shared: NDArray[np.bool_] | None = None
) -> str:
    names = [
        f"<b>{html.escape(result.dataset.classes[j])}</b>"
        if shared is not None and shared[j]
        else html.escape(result.dataset.classes[j])
        for j in np.flatnonzero(result.dataset.labels[row])
    ]
    return (
        f"<figure class='{kind}'><img src='{_picture(result, row)}' alt=''>"
        f"<figcaption><em>{caption}</em>{', '.join(names)}</figcaption></figure>"
    )


def _picture(result: DemoResult, row: int, size: int = 128) -> str:
    """A small JPEG of an image as a data URI."""
    paths: Sequence[Path] = result.dataset.image_paths or ()
    stream = io.BytesIO()
    load_image(paths[row]).resize((size, size), Image.Resampling.LANCZOS).save(stream, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _weight_examples(result: DemoResult, method: str = "ics-softmax") -> str:
    dataset, areas = result.dataset, result.dataset.areas
    if areas is None:
        return ""
    queries = dataset.splits.query
    several = np.flatnonzero(dataset.labels[queries].sum(axis=1) >= 3)[:EXAMPLES]
    examples = []
    for place in several.tolist():
        row = int(queries[place])
        labels = np.flatnonzero(dataset.labels[row])
        share = areas[row, labels] / areas[row, labels].sum()
        weight = result.weights[method][place, labels]
        bars = "".join(
            f"<tr><th>{html.escape(dataset.classes[labels[j]])}</th><td>{_bar(weight[j], COLOURS[method])}"
            f"{_bar(share[j], '#8a8f98')}</td></tr>"
            for j in np.argsort(-share).tolist()
        )
        examples.append(
            f"<div class='example'><img src='{_picture(result, row, 160)}' alt=''><table>{bars}</table></div>"
        )
    return (
        f"<p>Per label: the weight that {html.escape(METHODS[method].title)} finds from the image "
        f"(<i class='dot' style='background:{COLOURS[method]}'></i>) above the label's true share of the labelled "
        "pixels (<i class='dot' style='background:#8a8f98'></i>). The first query images with three labels or more; "
        f"none was trained on.</p><div class='examples'>{''.join(examples)}</div>"
    )


def _bar(value: float, colour: str) -> str:
    return (
        f"<span class='bar'><i style='width:{100 * value:.1f}%;background:{colour}'></i>"
        f"<small>{value:.2f}</small></span>"
    )


def _scatter(result: DemoResult) -> str:
    titles = {name: METHODS[name].title for name in result.agreements}
    titles["ewcs"] = "equal weights (E-WCS)"
    heads = ("Pearson", "Spearman", "Pearson, 1/c subtracted", "largest weight on largest object")
    rows = "".join(
        f"<tr><th>{html.escape(titles[name])}</th><td>{found.pearson:.2f}</td><td>{found.spearman:.2f}</td>"
        f"<td>{found.centred_pearson:.2f}</td><td>{found.largest:.0%}</td></tr>"
        for name, found in result.agreements.items()
    )
    any_found = next(iter(result.agreements.values()))
    return (
        f"<div class='plot'>{weight_scatter(result.agreements, titles)}</div>"
        "<div class='wide'><table><thead><tr><th></th>"
        + "".join(f"<th>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<p class='note'>{any_found.images:,} query images with two labels or more, one point per label. Equal weights "
        "correlate only because few labels mean large shares: subtracting 1/c leaves nothing of it. A random guess "
        f"finds the largest object {any_found.chance:.0%} of the time.</p>"
    )


def _solver(result: DemoResult) -> str:
    found = result.convergence
    return (
        f"<div class='plot'>{convergence_plot(found)}</div><p class='note'>Mean objective of the weight step over "
        f"{found.images} training images with several labels, above its exact minimum {found.minimum:.4f}. The exact "
        f"solver needs no such steps: {found.exact_milliseconds:.2f} ms for all of them.</p>"
    )


def _training(result: DemoResult) -> str:
    titles = {name: METHODS[name].title for name in result.logs}
    return f"<div class='plot'>{loss_plot(result.logs, titles)}</div>"


def _last_line(result: DemoResult) -> str:
    return footer(
        (
            f"centerhash {__version__}",
            f"seed {result.seed}",
            f"{result.seconds:.0f} s for this run",
            "drawings: OpenMoji (CC BY-SA 4.0)",
            "raw figures: results.json",
        )
    )
