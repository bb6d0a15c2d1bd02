"""Fig. 2: how fast projected gradient descent finds the weights, and what finding them exactly takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from centerhash.core.rendering import new_figure
from centerhash.experiments.bench import Bench, Task
from centerhash.experiments.convergence import TIMED_STEPS, batch_distances, solver_convergence
from centerhash.experiments.figures import SOLVERS
from centerhash.experiments.pages import heading, note, paragraph, table
from centerhash.experiments.paper.common import (
    Section,
    Settings,
    legend_below,
    printed,
    run_part,
    trained,
    words,
    write_figure,
)
from centerhash.experiments.rows import Row
from centerhash.methods.registry import METHODS

WHAT, TITLE = "pgd", "Convergence of the weight solver"
FORMS = ("ics-printed", "ics")
STEPS = 30


def run(settings: Settings) -> Section:
    """Train ICS in both forms and solve the weights of one batch of training images step by step."""
    forms = settings.chosen(WHAT, FORMS)
    tasks = [settings.task(form, bits) for form in forms for bits in settings.bits]
    rows, failures = run_part(settings, WHAT, tasks, partial(_work, settings.models))
    pieces = [paragraph(words("pgd", **printed()["solver"]))]
    for form in forms:
        found = [row for row in rows if row["task"]["config"]["method"] == form]
        if found:
            pieces += [heading(METHODS[form].title), _panels(settings.folder(WHAT), form, found)]
    return Section(WHAT, TITLE, (*pieces, _times(rows), note(words("pgd_remark"))), failures)


def _work(models: Path, bench: Bench, task: Task) -> Row:
    """Convergence on the first batch of training images with several labels."""
    solver, model = printed()["solver"], trained(models, bench, task)
    distances, mask, beta, entropy = batch_distances(model, bench.features, bench.dataset, solver["batch"])
    found = vars(solver_convergence(distances, mask, beta, entropy, solver["rate"], STEPS))
    return {
        **{key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in found.items()},
        "beta": beta,
        "lambda": entropy,
        "distance": float(distances[mask].mean()),
    }


def _panels(folder: Path, form: str, rows: list[Row]) -> Markup:
    """Mean objective of the weight step against the number of steps, one panel per number of bits."""
    with new_figure(3.7 * len(rows), 3.5, len(rows)) as (figure, axes):
        for axis, row in zip(axes, rows, strict=True):
            found = row["found"]
            for key, (name, colour, mark) in SOLVERS.items():
                axis.plot(found[key], color=colour, marker=mark, markersize=3, linewidth=1.5, label=name)
            axis.axhline(
                found["minimum"], color="#222222", linewidth=1.2, linestyle="--", label="exact minimum"
            )
            axis.axvline(TIMED_STEPS, color="#999999", linewidth=1, linestyle=":", label="ten steps")
            title = f"{row['task']['config']['bits']} bits, β {found['beta']:g}, λ {found['lambda']:g}"
            axis.set_title(title, fontsize=10, loc="left")
            axis.set(xlabel="steps of projected gradient descent")
        axes[0].set_ylabel("J₁ + λR, mean over the batch")
        legend_below(figure, axes[0])
        return write_figure(folder / f"convergence-{form}", figure)


def _times(rows: list[Row]) -> Markup:
    heads = ["", "images", "mean distance", "exact, ms", "10 printed steps, ms", "10 true steps, ms"]
    heads += ["above the minimum at 1/c", "after 10 printed steps", "after 10 true steps"]
    return table(heads, [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    found: dict[str, Any] = row["found"]
    config = row["task"]["config"]
    times = [found[f"{name}_milliseconds"] for name in ("exact", "printed", "true")]
    gaps = [found["true"][0], found["printed"][TIMED_STEPS], found["true"][TIMED_STEPS]]
    return [
        f"{METHODS[config['method']].title}, {config['bits']} bits",
        str(found["images"]),
        f"{found['distance']:.3g}",
        *(f"{time:.2f}" for time in times),
        *(f"{gap - found['minimum']:.2g}" for gap in gaps),
    ]
