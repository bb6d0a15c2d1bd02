"""The notebook of the docs: it runs, its stored output is what it prints, and it is small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import DOCS
from tests.test_examples import loaded
from tools.notebook import NOTEBOOK, executed

STORED: dict[str, Any] = json.loads(NOTEBOOK.read_text())


def shown(book: dict[str, Any]) -> list[list[list[str]]]:
    """The kinds of what each cell of code shows."""
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    return [
        [sorted(out.get("data", [out.get("name", "error")])) for out in cell["outputs"]] for cell in cells
    ]


def test_what_is_stored_is_small_whole_and_of_no_machine() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 100_000
    assert all(shown(STORED)), "run `python -m tools.notebook`"
    assert "error" not in {kind for cell in shown(STORED) for kinds in cell for kind in kinds}
    assert 'title=\\"photos/cat-chelsea.jpg' in text  # where the photos lay is left out


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_is_stored(
    tmp_path: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    book = executed(NOTEBOOK, tmp_path)
    assert [cell["source"] for cell in book["cells"]] == [cell["source"] for cell in STORED["cells"]]
    assert shown(book) == shown(STORED)


def test_the_site_shows_text_code_and_outputs() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# One\n", "two"]},
        {
            "cell_type": "code",
            "source": ["f(1)\n", "f(2)"],
            "outputs": [{"name": "stdout", "text": ["a\n"]}, {"data": {"text/plain": ["b"]}}],
        },
        {
            "cell_type": "code",
            "source": ["g()"],
            "outputs": [{"data": {"text/plain": ["c"], "text/html": ["<p>", "c</p>"]}}],
        },
    ]
    page = loaded(DOCS / "hooks.py", "docs_hooks").notebook_markdown(json.dumps({"cells": cells}))
    assert page == (
        "# One\ntwo\n\n```python\nf(1)\nf(2)\n```\n\n```\na\n```\n\n```\nb\n```\n\n"
        "```python\ng()\n```\n\n<div><p>c</p></div>"
    )
