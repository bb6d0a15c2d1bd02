"""Published data sets: which there are, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import completion
from centerhash.cli.arguments import JsonOption, MarkdownOption, RootOption, stands_alone


def datasets(
    context: typer.Context,
    root: RootOption = Path("data"),
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
) -> None:
    """List the published data sets: classes, images, split, licence, and which are under --root.

    Example: `centerhash datasets --root data`
    """
    if markdown:
        from centerhash.data.published.page import datasets_page

        stands_alone(context, "--markdown")
        typer.echo(datasets_page(), nl=False)
        return
    from centerhash.cli import console
    from centerhash.data.published.catalogue import DATASETS
    from centerhash.data.published.named import describe

    rows = [describe(row, root) for row in DATASETS.values()]
    if as_json:
        console.print_json(rows)
        return
    columns = ("name", "classes", "images", "there", "split", "licence")
    shown = (
        (
            row["name"],
            str(row["classes"]),
            f"{row['images']:,}",
            "yes" if row["path"] else "no",
            row["split"],
            row["licence"],
        )
        for row in rows
    )
    console.out.print(console.table(f"data sets, and which are in {root}", columns, shown, show_lines=True))
    console.out.print("Fetch one: `centerhash download NAME --root DIR`; more in docs/datasets.md")


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
    from centerhash.cli import console
    from centerhash.data.published.catalogue import get_dataset
    from centerhash.data.published.download import download as fetch_and_unpack
    from centerhash.data.published.named import home_of

    row = get_dataset(name)
    with console.progress() as report:
        fetched = fetch_and_unpack(
            row.files, root / row.folder, mirror=mirror, keep_archives=keep_archives, progress=report
        )
    before = "all files had been fetched before" if row.files else "no file can be fetched by a program"
    news = f"fetched {', '.join(fetched)}" if fetched else before
    console.out.print(f"{row.title}: {news}, in {root / row.folder}", soft_wrap=True)
    if home_of(row, root) is None and row.by_hand:
        console.out.print("still to be done by hand:")
        for number, step in enumerate(row.by_hand, 1):
            console.out.print(f"{number}. {step}", soft_wrap=True)
        return
    console.out.print(f"next: `centerhash train {row.name} --root {root} --out run`", soft_wrap=True)
