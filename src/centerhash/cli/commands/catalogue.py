"""What there is: methods and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from centerhash.cli import completion
from centerhash.cli.arguments import JsonOption, MarkdownOption, stands_alone


def methods(context: typer.Context, as_json: JsonOption = False, markdown: MarkdownOption = False) -> None:
    """List the methods: family, paper, year, and what they do with several labels.

    Example: `centerhash methods --json`
    """
    if markdown:
        from centerhash.methods.page import methods_page

        stands_alone(context, "--markdown")
        typer.echo(methods_page(), nl=False)
        return
    from centerhash.cli import console
    from centerhash.methods.table import METHODS

    fields = ("name", "title", "family", "year", "uses_labels", "multi_label", "paper")
    rows = [{field: getattr(row, field) for field in fields} for row in METHODS.values()]
    if as_json:
        console.print_json(rows)
        return
    columns = ("name", "family", "year", "labels", "an image with several labels", "paper")
    shown = (
        (
            row["name"],
            row["family"],
            str(row["year"]),
            "yes" if row["uses_labels"] else "no",
            row["multi_label"],
            row["paper"],
        )
        for row in rows
    )
    console.out.print(console.table("methods", columns, shown, show_lines=True))
    console.out.print("Options of a method: `centerhash options NAME`")


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
    from centerhash.cli import console
    from centerhash.methods.table import get_method

    row = get_method(method)
    values = row.options({}, bits)
    rows = [
        {
            "name": item.alias or name,
            "default": getattr(values, name),
            "description": item.description or "",
        }
        for name, item in type(values).model_fields.items()
    ]
    if as_json:
        console.print_json(rows)
        return
    title = f"{row.title}, defaults at {bits} bits"
    shown = ([str(value) for value in row.values()] for row in rows)
    console.out.print(console.table(title, ("option", "default", "meaning"), shown))
