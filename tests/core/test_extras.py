from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from centerhash.core.errors import ConfigError
from centerhash.core.extras import EXTRAS, TRAINING, check_installed, missing_library, require

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
PACKAGES = {  # where the name of the package is not that of its module
    "faiss": "faiss-cpu",
    "grpc": "pymilvus",  # depends on it
    "sklearn": "scikit-learn",
}


def named(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;\s]", line)[0] for line in lines}


@pytest.mark.parametrize("library", EXTRAS)
def test_require_missing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    line = rf"'{library}'.*pip install 'centerhash\[{EXTRAS[library].name}\]'\.$"
    for module in (library, f"{library}.part"):
        with pytest.raises(ConfigError, match=line):
            require(module)
    with pytest.raises(ConfigError, match=line):
        check_installed(library)
    assert re.search(line, str(missing_library(ImportError(name=f"{library}.part"))))


def test_missing_library_none() -> None:
    check_installed(*TRAINING)
    assert missing_library(ImportError(name="no_such_library")) is None
    assert missing_library(ImportError("undefined symbol", name="torch")) is None  # it is installed


def test_extra_installs_library() -> None:
    for library in EXTRAS:
        package = PACKAGES.get(library, library.replace("_", "-"))
        assert package in named(DECLARED["optional-dependencies"][EXTRAS[library].name])
        assert package not in named(DECLARED["dependencies"])


def test_extra_all() -> None:
    (every,) = DECLARED["optional-dependencies"]["all"]
    listed = set(every.removeprefix("centerhash[").removesuffix("]").split(","))
    assert listed == {extra.name for extra in EXTRAS.values()}
