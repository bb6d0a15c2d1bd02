"""The paper's picture of weights: images with the weight of each label, chosen by a rule and not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from markupsafe import Markup
from pydantic import Field, TypeAdapter, ValidationError

from centerhash.core.errors import DataError
from centerhash.core.rendering import new_figure
from centerhash.data import load_image
from centerhash.data.layouts.contents import normal_name
from centerhash.data.layouts.tabular import read_rows
from centerhash.experiments.figures import look
from centerhash.experiments.runner import rounded
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from centerhash.model.model import HashModel
from reproduction import common
from reproduction.agreement import weight_distribution
from reproduction.common import Section, Settings, heading, note, paragraph, table, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHAT, TITLE = "weights", "What the weights look like"
FORMS = ("ewcs", "ics-printed", "ics", "ics-softmax")
IMAGES = 12
LABELS = (2, 4)  # fewest and most labels of an image that is shown


def run(settings: Settings) -> Section:
    """Train every form with the most bits; show weights of query images, and how all training weights are spread."""
    bits, forms = max(settings.bits), settings.chosen(WHAT, FORMS)
    tasks = [settings.task(form, bits) for form in forms]
    rows, failures = common.run_part(settings, WHAT, tasks, partial(_work, settings.models))
    found = {row["task"]["config"]["method"]: row["found"] for row in rows}
    if not found:
        return Section(WHAT, TITLE, (), failures)
    folder, examples = settings.folder(WHAT), _examples(settings, found)
    if examples:
        last, (fewest, most) = METHODS[list(found)[-1]].title, LABELS
        about = words("weights", fewest=fewest, most=most, count=len(examples), last=last)
        pieces = [paragraph(about), _example_plot(folder, examples)]
    else:
        pieces = [paragraph("This dataset has features and no images, so there are no pictures to show.")]
    spread = {form: values["weights"] for form, values in found.items()}
    captions = ", ".join(
        f"{row['variance']:.4f} for λ = {row['lambda']:g}" for row in common.printed()["weights"]
    )
    pieces += [
        heading(f"Weights of the training images, {bits} bits"),
        _histogram_plot(folder, spread),
        _table(spread),
        note(words("weights_remark", captions=captions)),
    ]
    return Section(WHAT, TITLE, tuple(pieces), failures)


def _work(models: Path, setup: EvaluationSetup, task: Task) -> Row:
    """How the training weights are spread, and the weights of the query images with a few labels."""
    model = common.trained(models, setup, task)
    return {
        "weights": weight_distribution(*common.train_weights(setup, model)),
        "queries": [] if setup.dataset.image_paths is None else _query_weights(setup, model),
    }


def _query_weights(setup: EvaluationSetup, model: HashModel) -> list[Row]:
    """Per query image with a few labels its row, and weight and area share by label."""
    dataset = setup.dataset
    counts = dataset.labels[dataset.splits.query].sum(axis=1)
    rows = dataset.splits.query[(counts >= LABELS[0]) & (counts <= LABELS[1])]
    weights = model.weights(setup.features[rows], dataset.labels[rows])
    areas = np.zeros_like(weights) if dataset.areas is None else dataset.areas[rows]
    found = []
    for place, row in enumerate(rows.tolist()):
        labels = np.flatnonzero(dataset.labels[row])
        total = float(areas[place, labels].sum(dtype=np.float64))
        named = {dataset.classes[j]: float(weights[place, j]) for j in labels}
        shares = {dataset.classes[j]: float(areas[place, j]) / total for j in labels} if total > 0 else {}
        # four digits are enough for a bar
        found.append({"row": row, "weights": rounded(named, 4), "shares": rounded(shares, 4)})
    return found


def evenness(weights: Mapping[str, float]) -> float:
    """Entropy of the weights of c labels over log c: 1 where they are equal, 0 where one has all."""
    values = np.array([value for value in weights.values() if value > 0])
    return float(-(values * np.log(values)).sum() / np.log(len(weights)))


def choose(queries: Sequence[Row], count: int = IMAGES) -> list[int]:
    """Places of at most `count` images at even quantiles of the weights' entropy over log c, lowest first.

    Ties are ordered by a seeded permutation, so that the order of the file decides nothing.
    """
    order = np.random.default_rng(0).permutation(len(queries))
    entropies = np.array([evenness(queries[place]["weights"]) for place in order])
    ranked = order[np.argsort(entropies, kind="stable")]
    quantiles = np.linspace(0, len(queries) - 1, count) if len(queries) else np.empty(0)
    return [int(ranked[place]) for place in np.unique(np.round(quantiles).astype(int))]


# Boxes: where the objects of an image are, as the column `boxes` of labels.csv tells it

_Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]  # of the frame's width or height
_Box: TypeAlias = tuple[_Share, _Share, _Share, _Share]  # x and y of the centre, width, height
Boxes: TypeAlias = dict[str, list[_Box]]  # by label
_BOXES: TypeAdapter[Boxes] = TypeAdapter(Boxes)


def read_boxes(root: Path) -> dict[str, Boxes]:
    """The boxes of a dataset by file name; none where it has no labels.csv, or that no such column."""
    path = root / "labels.csv"
    if not path.is_file():
        return {}
    rows = read_rows(path)
    if not {"file_name", "boxes"} <= rows.columns.keys():
        return {}
    names = (normal_name(name.strip()) for name in rows.columns["file_name"])
    return {
        name: _parsed(cell, where)
        for name, (where, cell) in zip(names, rows.pairs("boxes"), strict=True)
        if cell.strip()
    }


def _parsed(cell: str, where: str) -> Boxes:
    try:
        return _BOXES.validate_json(cell)
    except ValidationError:
        raise DataError(
            f"{where}: the cell 'boxes' is not json of label -> [[x center, y center, width, height], ...], "
            f"numbers from 0 to 1: {cell[:80]!r}."
        ) from None


# Figures

COLUMNS = 3  # examples side by side
PIXELS = 200  # of an image's longer side
AREA_COLOR = "#8a8f98"
# of boxes in images, which also carry numbers; no color of a method whose weights are shown
LABEL_COLORS = ("#CC3377", "#009E73", "#7F52E5", "#B8860B")


@dataclass(frozen=True)
class Example:
    """One image with the weight of each label by method, and the labels' shares of the area where known."""

    path: Path
    weights: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, float]
    boxes: Boxes


def _examples(settings: Settings, found: Mapping[str, Any]) -> list[Example]:
    """The chosen images with what all methods say of them."""
    forms = [form for form, values in found.items() if values["queries"]]
    if not forms:
        return []
    dataset = settings.source.open().dataset
    boxes, paths = read_boxes(dataset.root), dataset.image_paths or ()
    examples = []
    for place in choose(found[forms[-1]]["queries"]):
        query = found[forms[-1]]["queries"][place]
        examples.append(
            Example(
                path=paths[query["row"]],
                weights={form: found[form]["queries"][place]["weights"] for form in forms},
                shares=query["shares"],
                boxes=boxes.get(dataset.names[query["row"]], {}),
            )
        )
    return examples


def _example_plot(folder: Path, examples: Sequence[Example]) -> Markup:
    """Each image with its boxes, and beside it a group of bars per label."""
    columns = min(COLUMNS, len(examples))
    rows = -(-len(examples) // columns)
    with new_figure(4.5 * columns, 2.35 * rows + 0.4, 2 * columns, rows) as (figure, axes):
        for axis in axes[2 * len(examples) :]:
            axis.set_axis_off()
        for place, example in enumerate(examples):
            # by area where known, else by the last method's weight
            sizes = {**list(example.weights.values())[-1], **example.shares}
            order = sorted(next(iter(example.weights.values())), key=lambda name: -sizes[name])
            _image(axes[2 * place], example, order)
            _bars(axes[2 * place + 1], example, order)
        common.legend_below(figure, axes[1], 1.7)
        return common.write_figure(folder / "pictures", figure)


def _image(axis: Axes, example: Example, order: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    image = load_image(example.path)
    width, height = image.size
    image.thumbnail((PIXELS, PIXELS))
    axis.imshow(np.asarray(image), extent=(0, 1, 1, 0), aspect=height / width, interpolation="nearest")
    for number, label in enumerate(order):
        color = LABEL_COLORS[number % len(LABEL_COLORS)]
        for x, y, across, down in example.boxes.get(label, []):
            corner = (x - across / 2, y - down / 2)
            axis.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="white", linewidth=2.4))
            axis.add_patch(Rectangle(corner, across, down, fill=False, edgecolor=color, linewidth=1.4))
            badge = {"facecolor": color, "edgecolor": "none", "pad": 0.8}
            axis.text(*corner, str(number + 1), color="white", fontsize=7, va="top", bbox=badge, clip_on=True)
    axis.set_axis_off()


def _bars(axis: Axes, example: Example, order: Sequence[str]) -> None:
    lines = [(METHODS[form].title, look(form).color, values) for form, values in example.weights.items()]
    if example.shares:
        lines.append(("share of the area", AREA_COLOR, example.shares))
    thickness = 0.8 / len(lines)
    for line, (title, color, values) in enumerate(lines):
        places = [number - 0.4 + (line + 0.5) * thickness for number in range(len(order))]
        lengths = [values.get(label, 0.0) for label in order]
        axis.barh(places, lengths, thickness * 0.9, color=color, label=title)
    axis.set_yticks(range(len(order)), [f"{number} {label}" for number, label in enumerate(order, start=1)])
    axis.set(xlim=(0, 1), ylim=(len(order) - 0.5, -0.5))
    axis.set_xlabel("weight", fontsize=8)
    axis.tick_params(labelsize=8, length=0)
    axis.grid(visible=False, axis="y")


def _histogram_plot(folder: Path, spread: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Distribution of the weights of images with several labels, one panel per method."""
    with new_figure(2.9 * len(spread), 2.8, len(spread)) as (figure, axes):
        for axis, (form, values) in zip(axes, spread.items(), strict=True):
            common.weight_histogram(axis, np.array(values["histogram"]), look(form).color)
            title = f"{METHODS[form].title}\nvariance {values['variance_several']:.4f}"
            axis.set_title(title, fontsize=9, loc="left")
            axis.set_xlabel("weight")
        axes[0].set_ylabel("share of labels")
        return common.write_figure(folder / "histograms", figure)


def _table(spread: Mapping[str, Any]) -> Markup:
    columns = {  # by what stands over them: what was found, and how it is written
        "labels": "{labels:,}",
        "variance": "{variance:.4f}",
        "variance, two labels or more": "{variance_several:.4f}",
        "mean square of w - 1/c": "{variance_uneven:.5f}",
        "in a corner": "{corner:.1%}",
    }
    lines = [
        [METHODS[form].title, *(text.format(**values) for text in columns.values())]
        for form, values in spread.items()
    ]
    return table(["", *columns], lines)
