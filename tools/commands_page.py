"""Write docs/reference/commands.md from the commands themselves.

python -m tools.commands_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from centerhash.cli import app

PAGE = Path(__file__).with_suffix(".md")  # the text around the commands
_TRAIN = "centerhash train"  # whose options others have too
_COMMON = 3  # commands that must have an option in the same words for it to be listed once


def commands_page() -> str:
    """The whole page as markdown."""
    commands = dict(_commands("centerhash", get_command(app)))
    texts = Counter(_option(one) for command in commands.values() for one in _options(command))
    shared = [option for option, count in texts.items() if count >= _COMMON]
    lines = ["| option | meaning |\n|---|---|", *sorted(shared)]
    for name, command in commands.items():
        lines += [
            "",
            f"## {name.removeprefix('centerhash ')}",
            "",
            *_section(command, shared, commands[_TRAIN]),
        ]
    return PAGE.read_text(encoding="utf-8").replace("{commands}", "\n".join(lines))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and commands, those of groups in the place of the group."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for key, child in command.commands.items():
        yield from _commands(f"{name} {key}", child)


def _options(command: Any) -> list[Any]:
    context = command.make_context("centerhash", [], resilient_parsing=True)
    return [
        one
        for one in command.get_params(context)
        if one.param_type_name == "option" and "--help" not in one.opts
    ]


def _section(command: Any, shared: list[str], train: Any) -> Iterator[str]:
    context = command.make_context("centerhash", [], resilient_parsing=True)
    about, _, examples = " ".join((command.help or "").split()).partition("Example")
    words = [
        f"`{(one.metavar or one.name or '').upper()}`"
        for one in command.get_params(context)
        if one.param_type_name == "argument"
    ]
    yield about.strip()
    yield ""
    yield f"Arguments: {', '.join(words)}. Example{examples}" if words else f"Example{examples}"
    options = _options(command)
    own = [line for one in options if (line := _option(one)) not in shared]
    also = [f"`{_names(one)[0]}`" for one in options if _option(one) in shared]
    of_train = [f"`{_names(one)[0]}`" for one in _options(train) if _option(one) in shared]
    if command is not train and set(of_train) <= set(also):
        also = ["those of [train](#train)", *(one for one in also if one not in of_train)]
    if also:
        yield ""
        yield f"Shared options: {', '.join(also)}."
    if own:
        yield ""
        yield "| option | meaning |\n|---|---|"
        yield from own


def _names(option: Any) -> list[str]:
    return sorted(
        [*option.opts, *option.secondary_opts],
        key=lambda name: (not name.startswith("--"), name.startswith("--no-")),
    )


def _option(option: Any) -> str:
    text = " ".join((option.help or "").split())
    default = option.default
    plain = (
        default is not None
        and not callable(default)
        and not isinstance(default, bool)
        and default not in ([], ())
        and "[default" not in text
    )
    text += f" [default: {default}]" if plain else ""
    shown = ", ".join(f"`{name}`" for name in _names(option))
    return f"| {shown} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    print(commands_page(), end="")
