"""The notebook of the docs: it runs, its output is stored, and it is small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import DOCS
from tests.test_examples import loaded
from tools.notebook import NOTEBOOK, executed

STORED: dict[str, Any] = json.loads(NOTEBOOK.read_text())


def outputs(book: dict[str, Any]) -> list[list[list[str]]]:
    """The kinds of the outputs of each cell of code."""
    cells = [cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"]
    return [[sorted(out.get("data", [out.get("name", "error")])) for out in cell] for cell in cells]


def test_stored_notebook() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 100_000
    assert all(outputs(STORED)), "run `python -m tools.notebook`"
    assert "error" not in {kind for cell in outputs(STORED) for kinds in cell for kind in kinds}
    assert 'title=\\"photos/cat-chelsea.jpg' in text  # without the path of the folder


@pytest.mark.slow
def test_executed(tmp_path: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    book = executed(NOTEBOOK, tmp_path)
    assert [cell["source"] for cell in book["cells"]] == [cell["source"] for cell in STORED["cells"]]
    assert outputs(book) == outputs(STORED)


def test_notebook_markdown() -> None:
    printed, plain = {"name": "stdout", "text": ["a\n"]}, {"data": {"text/plain": ["b"]}}
    page = {"text/plain": ["c"], "text/html": ["<p>", "c</p>"]}
    cells = [
        {"cell_type": "markdown", "source": ["# One\n", "two"]},
        {"cell_type": "code", "source": ["f(1)\n", "f(2)"], "outputs": [printed, plain]},
        {"cell_type": "code", "source": ["g()"], "outputs": [{"data": page}]},
    ]
    markdown = loaded(DOCS / "hooks.py", "docs_hooks").notebook_markdown(json.dumps({"cells": cells}))
    assert markdown == (
        "# One\ntwo\n\n```python\nf(1)\nf(2)\n```\n\n```\na\n```\n\n```\nb\n```\n\n"
        "```python\ng()\n```\n\n<div><p>c</p></div>"
    )
