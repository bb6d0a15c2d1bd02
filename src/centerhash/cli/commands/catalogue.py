"""What there is: methods and their options, networks, published data sets, and what is installed here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import completion, console
from centerhash.cli.arguments import JsonOption, MarkdownOption, RootOption, option, stands_alone


def methods(context: typer.Context, as_json: JsonOption = False, markdown: MarkdownOption = False) -> None:
    """List the methods: family, paper, year, and what they do with several labels.

    Example: `centerhash methods --json`
    """
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
    console.show("methods", columns, shown, show_lines=True)
    console.say("Options of a method: `centerhash options NAME`")


def options(
    method: Annotated[str, typer.Argument(help="name of a method", autocompletion=completion.methods)],
    bits: Annotated[
        int, typer.Option(min=8, max=1024, help="length of the codes: some defaults depend on it")
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """List the options of one method with their defaults, to be set by `train -o NAME=VALUE`.

    Example: `centerhash options ics`
    """
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
    console.show(title, ("option", "default", "meaning"), shown)


def backbones(as_json: JsonOption = False) -> None:
    """List the networks that turn images into features, and whether their weights are here.

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
            "here" if row["weights_here"] else f"{row['megabytes']} MB",
        )
        for row in rows
    )
    columns = ("name", ">features", ">input", "pool", ">parameters", ">weights")
    console.show("backbones", columns, shown)
    for row in rows:
        if not row["weights_here"]:
            console.say(f"{row['name']}: {row['weights']}")
    console.say("Also timm:NAME, any network of timm; --weights FILE takes weights of your own.")


def datasets(
    context: typer.Context,
    root: RootOption = Path("data"),
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
) -> None:
    """List the published data sets: classes, images, split, license, and which are under --root.

    Example: `centerhash datasets --root data`
    """
    if markdown:
        from centerhash.data.published import datasets_page

        stands_alone(context, "--markdown")
        typer.echo(datasets_page(), nl=False)
        return
    from centerhash.data.published import DATASETS, describe

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
    console.show(f"data sets, and which are in {root}", columns, shown, show_lines=True)
    console.say("Fetch one: `centerhash download NAME --root DIR`; more in docs/datasets.md")


def download(
    name: Annotated[
        str, typer.Argument(help="see `centerhash datasets`", autocompletion=completion.datasets)
    ],
    root: RootOption = Path("data"),
    mirror: Annotated[
        str | None, typer.Option(help="address to fetch from instead of the source, e.g. https://host/folder")
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="do not delete the archives once unpacked")
    ] = False,
) -> None:
    """Fetch a published data set: checked, unpacked, and resumed by the same command after a stop.

    Example: `centerhash download voc2007 --root data`
    """
    from centerhash.data.published import download as download_archives
    from centerhash.data.published import get_dataset, home_of

    row = get_dataset(name)
    with console.progress() as report:
        fetched = download_archives(
            row.files, root / row.folder, mirror=mirror, keep_archives=keep_archives, progress=report
        )
    before = "all files had been fetched before" if row.files else "no file can be fetched by a program"
    news = f"fetched {', '.join(fetched)}" if fetched else before
    console.say(f"{row.title}: {news}, in {root / row.folder}")
    if home_of(row, root) is None and row.by_hand:
        console.say("still to be done by hand:")
        for number, step in enumerate(row.by_hand, 1):
            console.say(f"{number}. {step}")
        return
    console.say(f"next: `centerhash train {row.name} --root {root} --out run`")


def doctor(
    cache: Annotated[
        Path | None, option("folder of the feature cache", default="$CENTERHASH_CACHE or ~/.cache")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show versions, device, engines, stores, weights and disk, for bug reports; exit code 1 if something is broken.

    Example: `centerhash doctor --json`
    """
    from centerhash.cli.doctor import diagnose

    found = diagnose(cache)
    if as_json:
        console.print_json(found.to_dict())
    else:
        for line in found.lines():
            console.say(line)
        if not found.problems:
            console.say("Nothing essential is missing.")
    if found.problems:
        raise typer.Exit(1)
