"""What there is: networks that turn images into features."""

from __future__ import annotations

import json

import typer

from centerhash.cli.commands.shared import JsonOption


def backbones(as_json: JsonOption = False) -> None:
    """List the networks that turn images into features, and whether their weights are here.

    Example: `centerhash backbones --json`
    """
    from rich.table import Table

    from centerhash.cli import console
    from centerhash.networks.backbones import backbone_rows

    rows = backbone_rows()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(title="backbones", title_justify="left")
    for column in ("name", "features", "input", "parameters", "file", "weights"):
        table.add_column(column, justify="left" if column in ("name", "weights") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["features"]),
            f"{row['crop']} x {row['crop']}",
            f"{row['parameters']:,}",
            f"{row['megabytes']} MB",
            "here" if row["weights_here"] else "not here",
        )
    console.out.print(table)
    for row in rows:
        if not row["weights_here"]:
            console.out.print(f"{row['name']}: {row['weights']}", soft_wrap=True)
    console.out.print("Also timm:NAME, any network of timm; --weights FILE takes weights of your own.")
