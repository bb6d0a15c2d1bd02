"""What the tab key offers, and that it is offered quickly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from centerhash.cli import arguments
from centerhash.data.published import DATASETS
from centerhash.encoding import bulk
from centerhash.index import exchange
from centerhash.methods.registry import METHODS
from centerhash.networks.backbones import BACKBONES
from centerhash.networks.engines import ENGINES
from centerhash.training.presets import preset_names
from tests.toys import cli


def offered(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the completions in bash for the last word of a line."""
    monkeypatch.setenv("_CENTERHASH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return cli().out.split()


def test_repeated_words() -> None:
    assert exchange.FORMATS == arguments.FORMATS
    assert bulk.RUNNERS == arguments.RUNNERS


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("centerhash train photos --method ics", [name for name in METHODS if name.startswith("ics")]),
        ("centerhash methods ", list(METHODS)),
        ("centerhash train photos --backbone ", ["timm:", *BACKBONES]),
        ("centerhash train photos --preset ", preset_names()),
        ("centerhash train photos --schedule c", ["cosine", "constant"]),
        ("centerhash encode run photos --engine ", ["auto", *ENGINES]),
        ("centerhash encode run photos --runner ", ["local", "ray"]),
        ("centerhash index export photos.index out --to p", ["parquet"]),
        ("centerhash explain run a.jpg --device c", ["cpu", "cuda"]),
        ("centerhash compare photos --methods a", ["all"]),
        ("centerhash download ", list(DATASETS)),
        ("centerhash train co", [name for name in DATASETS if name.startswith("co")]),
        ("centerhash eval", ["evaluate"]),
    ],
)
def test_completion(line: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(line, monkeypatch) == words


@pytest.mark.slow
def test_completion_without_torch() -> None:
    """Every callback of `completion`, then the answer to bash."""
    code = (
        "import sys; from centerhash.cli import arguments as c\n"
        "for name in ('methods', 'backbones', 'engines', 'presets', 'datasets'):\n"
        " assert getattr(c, f'complete_{name}')()\n"
        "assert not {'torch', 'numba', 'timm'} & set(sys.modules)\n"
        "sys.argv = ['centerhash']; from centerhash.cli import main; main()"
    )
    words = {"COMP_WORDS": "centerhash encode r p --engine op", "COMP_CWORD": "5"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_CENTERHASH_COMPLETE": "complete_bash", **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["openvino"], "")
