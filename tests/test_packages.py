"""The order of the packages, and how many files the two journeys pass."""

from __future__ import annotations

import ast

import pytest

from tools import packages


def test_imports_follow_the_order() -> None:
    assert packages.against_the_order() == []


def test_packages_are_listed() -> None:
    found = {
        file.relative_to(packages.SOURCE).with_suffix("").parts[0] for file in packages.SOURCE.rglob("*.py")
    }
    assert found - set(packages.ENTRIES) == set(packages.PACKAGES)


def test_picture_is_current() -> None:
    assert packages.PICTURE.read_text() == packages.drawn(), "run `python -m tools.packages`"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import centerhash.data.images", ["centerhash.data.images"]),
        ("from centerhash import cli", ["centerhash.cli"]),
        ("def f():\n    from centerhash.model.model import HashModel", ["centerhash.model.model"]),
        ("import numpy", []),
    ],
)
def test_modules_of_imports(line: str, expected: list[str]) -> None:
    found = [module for node in ast.walk(ast.parse(line)) for module in packages.modules(node)]
    assert found == expected


@pytest.mark.parametrize("importer", ["codes", "unlisted"])
def test_import_against_the_order(monkeypatch: pytest.MonkeyPatch, importer: str) -> None:
    monkeypatch.setattr(packages, "imports", lambda: iter([(importer, "serve", "codes.py:7")]))
    assert packages.against_the_order() == [f"codes.py:7: {importer} imports serve, which is not below it."]


@pytest.mark.slow
def test_journeys_pass_few_files() -> None:
    most = {"a search": 9, "a training run": 36}
    passed = packages.passed()
    assert {name: len(passed[name]) <= limit for name, limit in most.items()} == dict.fromkeys(most, True), (
        passed
    )
    assert sum(file.startswith("index/") for file in passed["a search"]) <= 5
