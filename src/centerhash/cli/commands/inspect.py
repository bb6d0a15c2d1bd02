"""A look at a data set before it is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import console
from centerhash.cli.arguments import JsonOption, NoLabelsOption

if TYPE_CHECKING:
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
    from centerhash.data import open_dataset
    from centerhash.data.inspection import inspect_dataset

    dataset = open_dataset(data, seed=seed, labels=not no_labels)
    with console.progress() as report:
        found = inspect_dataset(dataset, images=images, progress=report)
    if out is not None:
        from centerhash.core.files import write_json
        from centerhash.data.inspection import write_plot

        write_json(out / "inspection.json", found.to_dict())
        write_plot(found, out)
    if as_json:
        console.print_json(found.to_dict())
        return
    console.show(f"{found.name}: {found.images:,} rows of {found.kind}", ("", ">"), _overview(found))
    if found.classes:
        columns = ("class", ">images", ">train", ">query", ">database", "")
        console.show("classes", columns, _classes(found))
    if found.pictures is not None:
        console.show("image files", ("", ""), _pictures(found.pictures))
    if out is not None:
        console.say(f"plot: {out / 'inspection.svg'}")
    console.warn(found.warnings)
    console.say(f"next: `centerhash train {data} --out run`")


def _overview(found: Inspection) -> list[tuple[str, str]]:
    rows = [("labels", "none")]
    if found.classes:
        rows = [
            ("classes", f"{len(found.classes):,}"),
            ("labels per image, mean", f"{found.labels_mean:.2f}"),
        ]
        for number, count in found.labels_per_image.items():
            rows.append((f"  with {number} label{'s' if number != 1 else ''}", f"{count:,}"))
    rows += [(f"split {name}", f"{size:,}") for name, size in found.splits.items()]
    rows += [(f"  in {names}", f"{size:,}") for names, size in found.overlaps.items()]
    return [*rows, ("splits are", found.splits_made)]


def _classes(found: Inspection) -> list[tuple[str, ...]]:
    """The classes by frequency; of many, the most frequent and the rarest."""
    ranked = sorted(found.classes, key=lambda entry: entry.images, reverse=True)
    most = max(1, ranked[0].images) if ranked else 1
    rows: list[tuple[str, ...]] = [
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
    return rows


def _pictures(pictures: Pictures) -> list[tuple[str, str]]:
    """Sizes, broken images and copies."""
    from centerhash.data.inspection import size_summary

    rows = [
        (f"{key} size" if key != "different" else "different sizes", _shown(value))
        for key, value in size_summary(pictures.sizes).items()
    ]
    rows.append(("broken", f"{len(pictures.broken):,}"))
    rows += [("", reason) for _, reason in pictures.broken[:5]]
    for copies in pictures.copies:
        place = f"{copies.of} images that are copies of others in {copies.among}"
        rows.append((place, f"{copies.count:,}: {', '.join(f'{a} = {b}' for a, b in copies.examples)}"))
    return rows if pictures.copies else [*rows, ("copies", "0")]


def _shown(value: int | list[int]) -> str:
    return " x ".join(f"{side:,}" for side in value) if isinstance(value, list) else f"{value:,}"
