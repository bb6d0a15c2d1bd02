"""Presets: named sets of training options, each a TOML file with what differs from the defaults. Needs no torch."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, unknown_name


def preset_names() -> list[str]:
    """List the presets that come with the package."""
    files = (Path(entry.name) for entry in resources.files(__name__).iterdir())
    return sorted(file.stem for file in files if file.suffix == ".toml")


def read_preset(name: str) -> dict[str, Any]:
    """Read the options of a preset by its name, or of a custom TOML file by its path."""
    if name in preset_names():
        return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    path = Path(name)
    if path.suffix != ".toml":
        raise unknown_name("preset", name, preset_names(), "Or the path of a .toml file of your own.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the preset '{path}': {error.strerror or error}.") from None
    # The text may be no TOML or no UTF-8, or nest lists too deeply.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the preset '{path}' is no TOML file: {error}.") from None
