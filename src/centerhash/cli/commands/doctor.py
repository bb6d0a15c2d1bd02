"""What is installed here, and what is missing."""

from __future__ import annotations

import json

import typer

from centerhash.cli.commands.shared import CacheOption, JsonOption


def doctor(cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """Tell versions, device, engines, weights and disk, for reports of bugs; exit code 1 if something is broken.

    Example: `centerhash doctor --json`
    """
    from centerhash.cli import console
    from centerhash.cli.doctor import diagnose

    found = diagnose(cache)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        for line in found.lines():
            console.out.print(line, soft_wrap=True)
        if not found.problems:
            console.out.print("Nothing essential is missing.")
    if found.problems:
        raise typer.Exit(1)
