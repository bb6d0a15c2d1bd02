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
from centerhash.cli.arguments import FLAGS, with_flags

PACKAGE = Path(centerhash.__file__).parent
LIBRARY = [path for path in PACKAGE.rglob("*.py") if "cli" not in path.relative_to(PACKAGE).parts]


def commands() -> Iterator[Any]:
    group: Any = typer.main.get_command(app)
    yield from (command for command in group.commands.values() if not hasattr(command, "commands"))
    yield from group.commands["index"].commands.values()


def test_parameters_become_options() -> None:
    for text, shown in (
        ("or pass `skip_broken=True`.", "or pass --skip-broken."),
        ('Try `device="cpu"` or auto.', "Try --device cpu or auto."),
        ("pass `pretrained=False`", "pass --no-pretrained"),
        ("a file as `weights=`, lower `learning_rate=`", "a file as --weights, lower --learning-rate"),
        ("evaluate with exclude_self=True.", "evaluate with --exclude-self."),
        ("`results=/a/b c` is", "--results /a/b c is"),
        ("run `centerhash train`: it needs `packed` and `bits`, `id=3`, out=a", None),
    ):
        assert with_flags(text) == (text if shown is None else shown)


def test_every_parameter_of_the_table_is_an_option() -> None:
    there = {name for command in commands() for parameter in command.params for name in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in FLAGS} <= there


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
def test_no_error_of_the_library_speaks_of_an_option() -> None:
    found = {path.name: list(messages(path)) for path in LIBRARY}
    assert sum(map(len, found.values())) > 100
    assert [text for texts in found.values() for text in texts if re.search(r"(?<!-)--[a-z]", text)] == []


@pytest.mark.parametrize("option", ["--device", "--cache", "--json", "--skip-broken", "--runner", "--root"])
def test_an_option_means_the_same_everywhere(option: str) -> None:
    found = {
        parameter.help
        for command in commands()
        for parameter in command.params
        if option in parameter.opts and not (option == "--root" and command.name == "train")
    }
    assert len(found) == 1
