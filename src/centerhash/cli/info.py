"""Look at datasets, methods and their options, networks, and at this installation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import (
    CacheOption,
    JsonOption,
    MarkdownOption,
    NoLabelsOption,
    RootOption,
    stands_alone,
)
from centerhash.core.extras import check_installed

if TYPE_CHECKING:
    from centerhash.data.inspection import Inspection, Pictures

_SHOWN_CLASSES = 24


def methods(context: typer.Context, as_json: JsonOption = False, markdown: MarkdownOption = False) -> None:
    """List the methods: family, paper, year, and how they handle several labels.

    Example: `centerhash methods --json`
    """
    check_installed("torch", purpose="`centerhash methods`")
    if markdown:
        from centerhash.methods.page import methods_page

        stands_alone(context, "--markdown")
        typer.echo(methods_page(), nl=False)
        return
    from centerhash.methods.registry import METHODS

    fields = ("name", "title", "family", "year", "uses_labels", "multi_label", "paper")
    rows = [{field: getattr(row, field) for field in fields} for row in METHODS.values()]
    if as_json:
        console.print_json(rows)
        return
    columns = ("name", "family", "year", "labels", "an image with several labels", "paper")
    shown = (
        (row.name, row.family, str(row.year), "yes" if row.uses_labels else "no", row.multi_label, row.paper)
        for row in METHODS.values()
    )
    console.table("methods", columns, shown, show_lines=True)
    console.output("Options of a method: `centerhash options NAME`")


def options(
    method: Annotated[
        str, typer.Argument(help="name of a method", autocompletion=arguments.complete_methods)
    ],
    bits: Annotated[
        int, typer.Option(min=8, max=1024, help="length of the codes: some defaults depend on it")
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """List the options of one method with their defaults, for `train -o NAME=VALUE`.

    Example: `centerhash options ics`
    """
    check_installed("torch", purpose="`centerhash options`")

    from centerhash.methods.registry import get_method

    row = get_method(method)
    values = row.options({}, bits)
    rows = [
        {"name": item.alias or name, "default": getattr(values, name), "description": item.description or ""}
        for name, item in type(values).model_fields.items()
    ]
    if as_json:
        console.print_json(rows)
        return
    title = f"{row.title}, defaults at {bits} bits"
    shown = ([str(value) for value in row.values()] for row in rows)
    console.table(title, ("option", "default", "meaning"), shown)


def backbones(as_json: JsonOption = False) -> None:
    """List the backbone networks, and whether their weights are installed.

    Example: `centerhash backbones --json`
    """
    from centerhash.networks.backbones import backbone_rows

    rows = backbone_rows()
    if as_json:
        console.print_json(rows)
        return
    shown = (
        (
            str(row["name"]),
            str(row["features"]),
            str(row["crop"]) + ("" if row["crop"] == row["resize"] else f" of {row['resize']}"),
            str(row["pool"] or "its own"),
            f"{row['parameters']:,}",
            "here" if row["weights_here"] else f"{row['megabytes']} MB" if row["megabytes"] else "a file",
        )
        for row in rows
    )
    columns = ("name", ">features", ">input", "pool", ">parameters", ">weights")
    console.table("backbones", columns, shown)
    for row in rows:
        if row["megabytes"] and not row["weights_here"]:
            console.output(f"{row['name']}: {row['weights']}")
    console.output("Also timm:NAME, any network of timm; --weights FILE reads your own weights.")


def datasets(
    context: typer.Context,
    root: RootOption = Path("data"),
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
) -> None:
    """List the published datasets: classes, images, split, license, and which are under --root.

    Example: `centerhash datasets --root data`
    """
    if markdown:
        from centerhash.data.published import datasets_page

        stands_alone(context, "--markdown")
        typer.echo(datasets_page(), nl=False)
        return
    from centerhash.data.published import describe
    from centerhash.data.published.catalogue import DATASETS

    rows = [describe(row, root) for row in DATASETS.values()]
    if as_json:
        console.print_json(rows)
        return
    columns = ("name", "classes", "images", "there", "split", "license")
    there = ["yes" if row["path"] else "no" for row in rows]
    shown = (
        (row.name, str(row.classes), f"{row.images:,}", here, str(row.split), row.license)
        for row, here in zip(DATASETS.values(), there, strict=True)
    )
    console.table(f"datasets, and which are in {root}", columns, shown, show_lines=True)
    console.output("Download one: `centerhash download NAME --root DIR`; more in docs/reference/datasets.md")


def download(
    name: Annotated[
        str, typer.Argument(help="see `centerhash datasets`", autocompletion=arguments.complete_datasets)
    ],
    root: RootOption = Path("data"),
    mirror: Annotated[
        str | None,
        typer.Option(help="download from this address instead of the source, e.g. https://host/folder"),
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="do not delete the archives once unpacked")
    ] = False,
) -> None:
    """Download a published dataset, check and unpack it. The same command resumes after a stop.

    Example: `centerhash download voc2007 --root data`
    """
    from centerhash.data.published import download as download_archives
    from centerhash.data.published import get_dataset, home_of

    row = get_dataset(name)
    with console.progress() as report:
        fetched = download_archives(
            row.files, root / row.folder, mirror=mirror, keep_archives=keep_archives, progress=report
        )
    before = "all files were downloaded before" if row.files else "the files must be downloaded by hand"
    news = f"downloaded {', '.join(fetched)}" if fetched else before
    console.output(f"{row.title}: {news}, in {root / row.folder}")
    if home_of(row, root) is None and row.by_hand:
        console.output("still to be done by hand:")
        for number, step in enumerate(row.by_hand, 1):
            console.output(f"{number}. {step}")
        return
    console.output(f"next: `centerhash train {row.name} --root {root} --out run`")


def doctor(cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """Print versions, engines and disk space for bug reports. Exit with 1 if something is broken.

    Example: `centerhash doctor --json`
    """
    from centerhash.cli.doctor import diagnose

    found = diagnose(cache)
    if as_json:
        console.print_json(found.to_dict())
    else:
        for line in found.lines():
            console.output(line)
        if not found.problems:
            console.output("Nothing essential is missing.")
    if found.problems:
        raise typer.Exit(1)


def inspect(
    data: Annotated[Path, typer.Argument(help="a dataset of any layout, or a parquet file")],
    images: Annotated[bool, typer.Option(help="decode every image, to find broken ones and copies")] = True,
    out: Annotated[
        Path | None, typer.Option(help="folder for inspection.json and the plot (svg, png)")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="seed of splits that the data does not define, as in train")
    ] = 0,
    no_labels: NoLabelsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Report counts, classes, labels per image, splits, broken images and copies of a dataset.

    Example: `centerhash inspect photos --out report`
    """
    if out is not None:
        check_installed("matplotlib")

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
    console.table(f"{found.name}: {found.images:,} rows of {found.kind}", ("", ">"), _overview(found))
    if found.classes:
        columns = ("class", ">images", ">train", ">query", ">database", "")
        console.table("classes", columns, _classes(found))
    if found.pictures is not None:
        console.table("image files", ("", ""), _pictures(found.pictures))
    if out is not None:
        console.output(f"plot: {out / 'inspection.svg'}")
    console.warn(found.warnings)
    console.output(f"next: `centerhash train {data} --out run`")


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
