"""The library names parameters; the command line names options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import centerhash
from centerhash.cli import app, console
from centerhash.cli.arguments import with_flags
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig

PACKAGE = Path(centerhash.__file__).parent
LIBRARY = [path for path in PACKAGE.rglob("*.py") if "cli" not in path.relative_to(PACKAGE).parts]


def options() -> Iterator[tuple[str, Any]]:
    """Every option of every command, with the command's name."""
    group: Any = typer.main.get_command(app)
    commands = [command for command in group.commands.values() if not hasattr(command, "commands")]
    groups = [command for command in group.commands.values() if hasattr(command, "commands")]
    for command in [*commands, *(one for each in groups for one in each.commands.values())]:
        for parameter in command.get_params(typer.Context(command)):
            yield command.name, parameter


def test_with_flags() -> None:
    for text, expected in (
        ("or pass `skip_broken=True`.", "or pass --skip-broken."),
        ('Try `device="cpu"` or auto.', "Try --device cpu or auto."),
        ("pass `pretrained=False`", "pass --no-pretrained"),
        ("a file as `weights=`, lower `learning_rate=`", "a file as --weights, lower --learning-rate"),
        ("`results=/a/b c` is", "--results /a/b c is"),
        ("run `centerhash train`: it needs `packed` and `bits`, out=a", None),
    ):
        assert with_flags(text) == (text if expected is None else expected)


def test_named_parameters_are_options() -> None:
    named = {name for path in LIBRARY for name in re.findall(r"`([a-z_0-9]+)=[^`]*`", path.read_text())}
    flags = {flag for _, parameter in options() for flag in (*parameter.opts, *parameter.secondary_opts)}
    # The option of `labels=` is --no-labels, and loggers are objects of Python.
    assert {f"--{name.replace('_', '-')}" for name in named} <= flags | {"--labels", "--logger"}


def test_warnings_name_options(capsys: pytest.CaptureFixture[str]) -> None:
    console.warn(["evaluate with `exclude_self=True`."])
    assert capsys.readouterr().err == "warning: evaluate with --exclude-self.\n"


def messages(path: Path) -> Iterator[str]:
    """The texts of the errors that a file makes; commands for a shell, which stand in backticks, are left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(getattr(node, "func", None), "id", "")
        if name.endswith("Error") or name == "unknown_name":
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield re.sub(r"`[^`]*`", "", "".join(str(part) for part in parts))


@pytest.mark.slow
def test_library_errors_name_parameters() -> None:
    texts = [text for path in LIBRARY for text in messages(path)]
    assert len(texts) > 100
    assert [text for text in texts if re.search(r"(?<!-)--[a-z]", text)] == []


@pytest.mark.parametrize("option", ["--device", "--cache", "--json", "--skip-broken", "--runner", "--root"])
def test_equal_help_of_equal_options(option: str) -> None:
    texts = {
        parameter.help
        for command, parameter in options()
        if option in parameter.opts and not (option == "--root" and command in ("train", "compare", "tune"))
    }
    assert len(texts) == 1


def test_settings_of_train() -> None:
    flags = {parameter.name for command, parameter in options() if command == "train"}
    assert set(TrainConfig.model_fields) - flags == {"warm_start", "head", "shorter"}
    assert set(HeadOptions.model_fields) & flags == {"hidden", "rotate", "evidence", "presence"}


def test_settings_of_grids() -> None:
    names: dict[str, set[str]] = {}
    for command, parameter in options():
        names.setdefault(command, set()).add(parameter.name)
    settings = names["train"] & {*TrainConfig.model_fields, *HeadOptions.model_fields}
    for command in ("compare", "tune"):
        assert settings - names[command] - {"options"} == {"method", "seed", "eval_interval"}
        assert {"root", "lists", "cache", "device", "skip_broken"} <= names[command]
