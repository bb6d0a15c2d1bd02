"""The picture of an inspection: class balance, labels per image, image sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from centerhash.core.files import atomic
from centerhash.core.rendering import as_it_is, new_figure
from centerhash.data.inspection import Inspection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED_CLASSES = 30  # more bars than that cannot carry their names
_COLOURS = {"train": "#0072B2", "query": "#D55E00", "database": "#999999"}


def write_plot(inspection: Inspection, folder: Path) -> list[Path]:
    """Write `inspection.svg` and `inspection.png` into a folder and return their paths."""
    panels = [_draw_classes, _draw_labels] if inspection.classes else [_draw_labels]
    if inspection.pictures is not None and inspection.pictures.sizes:
        panels.append(_draw_sizes)
    height = max(3.4, 0.8 + 0.2 * min(len(inspection.classes), _NAMED_CLASSES))
    written = [folder / "inspection.svg", folder / "inspection.png"]
    with new_figure(4.4 * len(panels), height, len(panels)) as (figure, axes):
        for draw, axis in zip(panels, axes, strict=True):
            draw(inspection, axis)
        figure.suptitle(
            f"{as_it_is(inspection.name)}: {inspection.images:,} images, {len(inspection.classes):,} classes"
        )
        for path in written:
            with atomic(path) as stream:
                metadata = {"Date": None} if path.suffix == ".svg" else {}
                figure.savefig(stream, format=path.suffix[1:], dpi=120, metadata=metadata)
    return written


def _draw_classes(inspection: Inspection, axis: Axes) -> None:
    """Bars per class, or a curve by rank where the classes are too many to name."""
    ranked = sorted(inspection.classes, key=lambda entry: entry.images, reverse=True)
    if len(ranked) <= _NAMED_CLASSES:
        places = range(len(ranked))
        axis.barh(places, [entry.images for entry in ranked], color=_COLOURS["database"], label="all")
        axis.barh(places, [entry.train for entry in ranked], 0.45, color=_COLOURS["train"], label="train")
        axis.set_yticks(places, [as_it_is(entry.name) for entry in ranked], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("images")
    else:
        ranks = range(1, len(ranked) + 1)
        axis.plot(ranks, [entry.images for entry in ranked], color=_COLOURS["database"], label="all")
        axis.plot(ranks, [entry.train for entry in ranked], ":", color=_COLOURS["train"], label="train")
        axis.set_yscale("symlog", linthresh=1)
        axis.set(xlabel="class by frequency", ylabel="images")
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    axis.set_title("class balance", fontsize=10, loc="left")


def _draw_labels(inspection: Inspection, axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = inspection.labels_per_image
    axis.bar(list(numbers), list(numbers.values()), color=_COLOURS["train"])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set_xlim(min(numbers) - 1, max(numbers) + 1)
    axis.set(xlabel="labels", ylabel="images")
    axis.set_title(f"labels per image, mean {inspection.labels_mean:.2f}", fontsize=10, loc="left")


def _draw_sizes(inspection: Inspection, axis: Axes) -> None:
    sizes = inspection.pictures.sizes if inspection.pictures is not None else ()
    widths, heights = zip(*sizes, strict=True)
    axis.scatter(widths, heights, s=9, alpha=0.35, linewidths=0, color=_COLOURS["query"], rasterized=True)
    axis.set(xlabel="width, pixels", ylabel="height, pixels", xlim=(0, None), ylim=(0, None))
    axis.set_title("image sizes", fontsize=10, loc="left")
