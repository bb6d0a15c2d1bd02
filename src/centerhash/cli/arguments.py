"""Words of the command line that are more than a number or a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from centerhash.core.errors import ConfigError

if TYPE_CHECKING:
    from typer import Context


def read_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE texts."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option takes NAME=VALUE, got '{text}'. See `centerhash options METHOD`.")
        pairs[name.strip()] = value.strip()
    return pairs


def read_widths(text: str) -> tuple[int, ...]:
    """Read the widths of hidden layers: "2048,512", or "0" for none."""
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--hidden takes widths such as 1024 or 2048,512, or 0, got '{text}'.") from None
    if widths == (0,):
        return ()
    if min(widths) < 1:
        raise ConfigError(f"--hidden takes widths of at least 1, or a single 0 for none, got '{text}'.")
    return widths


def stands_alone(context: Context, flag: str) -> None:
    """Refuse everything beside an option that stands alone, rather than ignore it."""
    given = [
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
        for parameter in context.command.params
        if parameter.name is not None and flag not in parameter.opts
        if getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(f"{flag} stands alone: leave out {', '.join(given)}.")
