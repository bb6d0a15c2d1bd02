from __future__ import annotations

import ast

import pytest

from benchmarks import packages


@pytest.mark.slow
def test_every_package_imports_only_from_the_packages_below_it() -> None:
    assert packages.against_the_order() == []


def test_every_module_is_in_a_package() -> None:
    found = {
        packages.package_of(file.relative_to(packages.SOURCE).with_suffix("").as_posix().replace("/", "."))
        for file in packages.SOURCE.rglob("*.py")
    }
    assert found - {"__init__", "__main__"} == set(packages.PACKAGES)


@pytest.mark.slow
def test_the_picture_is_the_one_that_the_code_draws() -> None:
    assert packages.PICTURE.read_text() == packages.drawn(), "run `python -m benchmarks.packages`"


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
    found = [module for node in ast.walk(ast.parse(line)) for module in packages._modules(node)]
    assert found == expected


def test_an_import_against_the_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = packages.SOURCE / "codes.py"
    monkeypatch.setattr(packages, "imports", lambda: iter([packages.Import("codes", "serve.app", file, 7)]))
    assert packages.against_the_order() == [
        "src/centerhash/codes.py:7: codes imports serve.app, which is above it."
    ]


@pytest.mark.slow
def test_a_query_and_a_training_run_pass_few_files() -> None:
    most = {"a query by id": 8, "a query by labels": 9, "a training run": 45}
    assert {name: len(files) <= most[name] for name, files in packages.passed().items()} == dict.fromkeys(
        most, True
    )
