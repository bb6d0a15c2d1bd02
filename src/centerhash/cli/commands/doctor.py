"""What is installed here, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli.arguments import JsonOption, option


def doctor(
    cache: Annotated[
        Path | None, option("folder of the feature cache", default="$CENTERHASH_CACHE or ~/.cache")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show versions, device, engines, stores, weights and disk, for bug reports; exit code 1 if something is broken.

    Example: `centerhash doctor --json`
    """
    from centerhash.cli import console
    from centerhash.cli.doctor import diagnose

    found = diagnose(cache)
    if as_json:
        console.print_json(found.to_dict())
    else:
        for line in found.lines():
            console.out.print(line, soft_wrap=True)
        if not found.problems:
            console.out.print("Nothing essential is missing.")
    if found.problems:
        raise typer.Exit(1)
