"""Write docs/reference/commands.md, the page of the commands, from their help texts.

python -m tools.commands_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from centerhash.cli import app

# The text around the commands.
PAGE = Path(__file__).with_suffix(".md")
TRAIN = "centerhash train"
# An option that so many commands have in the same words is listed once for all.
SHARED_FROM = 3


def commands_page() -> str:
    """Return the page as markdown."""
    commands = dict(_commands("centerhash", get_command(app)))
    counts = Counter(_row(option) for command in commands.values() for option in _options(command))
    shared = [row for row, count in counts.items() if count >= SHARED_FROM]
    lines = ["| option | meaning |\n|---|---|", *sorted(shared)]
    for name, command in commands.items():
        section = _section(command, shared, commands[TRAIN])
        lines += ["", f"## {name.removeprefix('centerhash ')}", "", *section]
    return PAGE.read_text(encoding="utf-8").replace("{commands}", "\n".join(lines))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and commands, those of a group instead of the group."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for key, child in command.commands.items():
        yield from _commands(f"{name} {key}", child)


def _parameters(command: Any, kind: str) -> list[Any]:
    """Return the parameters of a kind, "option" or "argument"."""
    parameters = command.get_params(command.make_context("centerhash", [], resilient_parsing=True))
    return [parameter for parameter in parameters if parameter.param_type_name == kind]


def _options(command: Any) -> list[Any]:
    return [option for option in _parameters(command, "option") if "--help" not in option.opts]


def _section(command: Any, shared: list[str], train: Any) -> Iterator[str]:
    text, _, example = " ".join((command.help or "").split()).partition("Example")
    arguments = [
        f"`{(item.metavar or item.name or '').upper()}`" for item in _parameters(command, "argument")
    ]
    yield text.strip()
    yield ""
    yield f"Arguments: {', '.join(arguments)}. Example{example}" if arguments else f"Example{example}"
    rows = {_names(option)[0]: _row(option) for option in _options(command)}
    links = [f"`{name}`" for name, row in rows.items() if row in shared]
    of_train = [f"`{_names(option)[0]}`" for option in _options(train) if _row(option) in shared]
    if command is not train and set(of_train) <= set(links):
        links = ["those of [train](#train)", *(name for name in links if name not in of_train)]
    if links:
        yield ""
        yield f"Shared options: {', '.join(links)}."
    if table := [row for row in rows.values() if row not in shared]:
        yield ""
        yield "| option | meaning |\n|---|---|"
        yield from table


def _names(option: Any) -> list[str]:
    """Return the names of an option, long ones first and their negations last of these."""
    return sorted(
        [*option.opts, *option.secondary_opts],
        key=lambda name: (not name.startswith("--"), name.startswith("--no-")),
    )


def _row(option: Any) -> str:
    """Return the row of an option in a table: its names, its help text and its default."""
    text, default = " ".join((option.help or "").split()), option.default
    hidden = default is None or callable(default) or isinstance(default, bool) or default in ([], ())
    text += "" if hidden or "[default" in text else f" [default: {default}]"
    names = ", ".join(f"`{name}`" for name in _names(option))
    return f"| {names} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    print(commands_page(), end="")
