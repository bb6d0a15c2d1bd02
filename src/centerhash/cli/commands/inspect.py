"""A look at a data set before it is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli.arguments import JsonOption, NoLabelsOption

if TYPE_CHECKING:
    from rich.table import Table

    from centerhash.data.inspection import Inspection, Pictures

_SHOWN_CLASSES = 24


def inspect(
    data: Annotated[Path, typer.Argument(help="a data set of any layout, or a parquet file")],
    images: Annotated[bool, typer.Option(help="decode every image, to find broken ones and copies")] = True,
    out: Annotated[
        Path | None, typer.Option(help="folder for inspection.json and the plot (svg, png)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of splits that the data does not name, as in train")] = 0,
    no_labels: NoLabelsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Report counts, classes, labels per image, splits, broken images and copies of a data set.

    Example: `centerhash inspect photos --out report`
    """
    from centerhash.cli import console
    from centerhash.data import open_dataset
    from centerhash.data.inspection import inspect_dataset

    dataset = open_dataset(data, seed=seed, labels=not no_labels)
    with console.progress() as report:
        found = inspect_dataset(dataset, images=images, progress=report)
    if out is not None:
        from centerhash.core.files import write_json
        from centerhash.data.inspection_plot import write_plot

        write_json(out / "inspection.json", found.to_dict())
        write_plot(found, out)
    if as_json:
        console.print_json(found.to_dict())
        return
    classes = [_classes(found)] if found.classes else []
    for table in (_overview(found), *classes, *_pictures(found.pictures)):
        console.out.print(table)
    if out is not None:
        console.out.print(f"plot: {out / 'inspection.svg'}", soft_wrap=True)
    console.warn(found.warnings)
    console.out.print(f"next: `centerhash train {data} --out run`", soft_wrap=True)


def _overview(found: Inspection) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{found.name}: {found.images:,} rows of {found.kind}", title_justify="left", show_header=False
    )
    table.add_column()
    table.add_column(justify="right")
    if found.classes:
        table.add_row("classes", f"{len(found.classes):,}")
        table.add_row("labels per image, mean", f"{found.labels_mean:.2f}")
        for number, count in found.labels_per_image.items():
            table.add_row(f"  with {number} label{'s' if number != 1 else ''}", f"{count:,}")
    else:
        table.add_row("labels", "none")
    for name, size in found.splits.items():
        table.add_row(f"split {name}", f"{size:,}")
    for names, size in found.overlaps.items():
        table.add_row(f"  in {names}", f"{size:,}")
    table.add_row("splits are", found.splits_made)
    return table


def _classes(found: Inspection) -> Table:
    """The classes by frequency; of many, the most frequent and the rarest."""
    from centerhash.cli import console

    ranked = sorted(found.classes, key=lambda entry: entry.images, reverse=True)
    most = max(1, ranked[0].images) if ranked else 1
    rows = [
        (
            entry.name,
            *(f"{count:,}" for count in (entry.images, entry.train, entry.query, entry.database)),
            "█" * round(20 * entry.images / most),
        )
        for entry in ranked
    ]
    hidden = len(rows) - _SHOWN_CLASSES
    if hidden > 0:
        half = _SHOWN_CLASSES // 2
        rows[half:-half] = [(f"... {hidden:,} more", "", "", "", "", "")]
    return console.table("classes", ("class", ">images", ">train", ">query", ">database", ""), rows)


def _pictures(pictures: Pictures | None) -> list[Table]:
    """Sizes, broken images and copies."""
    from rich.table import Table

    from centerhash.data.inspection import size_summary

    if pictures is None:
        return []
    table = Table(title="image files", title_justify="left", show_header=False)
    for key, value in size_summary(pictures.sizes).items():
        table.add_row(f"{key} size" if key != "different" else "different sizes", _shown(value))
    table.add_row("broken", f"{len(pictures.broken):,}")
    for _, reason in pictures.broken[:5]:
        table.add_row("", reason)
    for copies in pictures.copies:
        place = f"{copies.of} images that are copies of others in {copies.among}"
        table.add_row(place, f"{copies.count:,}: {', '.join(f'{a} = {b}' for a, b in copies.examples)}")
    if not pictures.copies:
        table.add_row("copies", "0")
    return [table]


def _shown(value: int | list[int]) -> str:
    return " x ".join(f"{side:,}" for side in value) if isinstance(value, list) else f"{value:,}"
