"""What there is: methods and their options."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from centerhash.cli.arguments import stands_alone
from centerhash.cli.commands.shared import JsonOption


def methods(
    context: typer.Context,
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print docs/methods.md")] = False,
) -> None:
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

    shown = ("name", "title", "family", "year", "uses_labels", "multi_label", "paper")
    rows = [{column: getattr(row, column) for column in shown} for row in METHODS.values()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    console.out.print(console.methods_table())
    console.out.print("Options of a method: `centerhash options NAME`")


def options(
    method: Annotated[str, typer.Argument(help="name of a method")],
    bits: Annotated[
        int, typer.Option(min=8, max=1024, help="length of the codes: some defaults depend on it")
    ] = 64,
) -> None:
    """List the options of one method with their defaults, to be set by `train -o NAME=VALUE`.

    Example: `centerhash options ics`
    """
    from rich.table import Table

    from centerhash.cli import console
    from centerhash.methods.table import get_method

    row = get_method(method)
    resolved = row.options({}, bits)
    table = Table(title=f"{row.title}, defaults at {bits} bits", title_justify="left")
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    for name, item in type(resolved).model_fields.items():
        table.add_row(item.alias or name, str(getattr(resolved, name)), item.description or "")
    console.out.print(table)
