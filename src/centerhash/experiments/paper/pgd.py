"""Fig. 2: how fast projected gradient descent finds the weights, and what finding them exactly takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.figures import new_figure
from centerhash.experiments.convergence import TIMED_STEPS, solver_convergence
from centerhash.experiments.grid import Bench
from centerhash.experiments.paper.drawing import Drawing, drawn, legend_below, note, paragraph, table
from centerhash.experiments.paper.printed import printed
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.experiments.paper.tasks import Task, make_task, run_tasks, trained
from centerhash.experiments.rows import Row
from centerhash.methods.losses.central import ICS, center_distances
from centerhash.methods.table import METHODS
from centerhash.methods.weights import LabelSlots, label_slots
from centerhash.model import HashModel

WHAT, TITLE = "pgd", "Convergence of the weight solver"
FORMS = ("ics-printed", "ics")
STEPS = 30
SOLVERS = {  # of the figure: name, colour, mark
    "true": ("true gradient", "#0072B2", "o"),
    "printed": ("gradient as printed, Eq. (13)", "#D55E00", "s"),
}


def run(settings: Settings) -> Section:
    """Train ICS in both forms and solve the weights of one batch of training images step by step."""
    forms = settings.chosen(WHAT, FORMS)
    tasks = [make_task(settings, settings.cell(form, bits)) for form in forms for bits in settings.bits]
    rows, failures = run_tasks(settings, WHAT, tasks, work)
    parts = [paragraph(_about())]
    for form in forms:
        found = [row for row in rows if row["task"]["config"]["method"] == form]
        if found:
            parts += [
                f"<h3>{METHODS[form].title}</h3>",
                convergence_panels(form, found).write(settings.folder(WHAT)),
            ]
    parts += [_times(rows), note(_remark())]
    return Section(WHAT, TITLE, "".join(parts), tuple(failures))


def work(bench: Bench, task: Task) -> Row:
    """Convergence on the first batch of training images with several labels."""
    distances, slots, objective = batch_distances(bench, trained(bench, task), printed()["solver"]["batch"])
    found = solver_convergence(
        distances, slots.mask, objective.beta, objective.entropy, printed()["solver"]["rate"], STEPS
    )
    return {
        **{
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(found).items()
        },
        "beta": objective.beta,
        "lambda": objective.entropy,
        "distance": float(distances[slots.mask].mean()),
    }


def batch_distances(bench: Bench, model: HashModel, images: int) -> tuple[Tensor, LabelSlots, ICS]:
    """Distances (B, L) of the first `images` training images with several labels to the centers of their labels."""
    labels, train = bench.dataset.labels, bench.dataset.splits.train
    rows = train[labels[train].sum(axis=1) >= 2][:images]
    if not len(rows):
        raise DataError("no training image has two labels: there are no weights to solve.")
    objective = model.objective
    if not isinstance(objective, ICS):
        raise ConfigError(f"the weight solver is that of 'ics', got '{model.spec.method}'.")
    slots = label_slots(torch.from_numpy(labels[rows]))
    logits = torch.from_numpy(model.logits(bench.features[rows]))
    return (
        objective.scale * center_distances(logits, model.centers).gather(1, slots.classes),
        slots,
        objective,
    )


def convergence_panels(form: str, rows: list[Row]) -> Drawing:
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
        return drawn(f"convergence-{form}", figure)


def _about() -> str:
    solver = printed()["solver"]
    return (
        "The weights of one batch of training images with several labels, with the distances of a trained model: "
        f"projected gradient descent from equal weights with steps of {solver['rate']}, along the gradient that the "
        "paper prints and along the true one, and the exact minimum. The paper reports convergence within "
        f"{solver['iterations']} iterations and about {solver['milliseconds']} ms (hardware and batch not said; "
        f"trained with batches of {solver['batch']})."
    )


def _times(rows: list[Row]) -> str:
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


def _remark() -> str:
    return (
        "Times are medians of twenty solutions of the whole batch on this machine's processor. Both forms are measured "
        "by the joint objective, Eq. (4) and (10). Where distances are sums over the bits, as printed, the printed "
        "gradient is nearly 0 and the weights stay near 1/c. With a λ so large that ηλc passes 2, steps of either "
        "gradient lead away from the minimum; the exact solver has no step to choose."
    )
