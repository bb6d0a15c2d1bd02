from __future__ import annotations

import ast

import pytest

from benchmarks import rooms


@pytest.mark.slow
def test_every_room_imports_only_from_the_rooms_below_it() -> None:
    assert rooms.against_the_order() == []


def test_every_module_is_in_a_room() -> None:
    found = {
        rooms.room_of(file.relative_to(rooms.PACKAGE).with_suffix("").as_posix().replace("/", "."))
        for file in rooms.PACKAGE.rglob("*.py")
    }
    assert found - {"__init__", "__main__"} == set(rooms.ROOMS)


@pytest.mark.slow
def test_the_picture_is_the_one_that_the_code_draws() -> None:
    assert rooms.PICTURE.read_text() == rooms.drawn(), "run `python -m benchmarks.rooms`"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import centerhash.data.images", ["data.images"]),
        ("from centerhash import cli", ["cli"]),
        ("from centerhash.serve.app import create", ["serve.app"]),
        ("def f():\n    from centerhash.model.model import HashModel", ["model.model"]),
        ("import numpy", []),
    ],
)
def test_imports_are_read_wherever_they_stand(line: str, expected: list[str]) -> None:
    found = [module for node in ast.walk(ast.parse(line)) for module in rooms._modules(node)]
    assert found == expected


def test_an_import_against_the_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = rooms.PACKAGE / "codes.py"
    monkeypatch.setattr(rooms, "imports", lambda: iter([rooms.Import("codes", "serve.app", file, 7)]))
    assert rooms.against_the_order() == [
        "src/centerhash/codes.py:7: codes imports serve.app, which stands above it."
    ]
