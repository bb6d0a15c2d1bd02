"""The pages: links and anchors lead somewhere, and the reference is complete."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import centerhash
from centerhash.cli import app
from tests.test_examples import loaded
from tools.commands_page import commands_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# what is committed lies in these; folders that commands make (.venv, demo, site) are not ours to check
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
REMOTE = ("http://", "https://", "mailto:")


@cache
def prose(page: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("[", "").replace("(", ""), text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings as GitHub makes them; a second heading of the same words gets -1."""
    seen: dict[str, int] = {}
    names = []
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}-{seen[name]}" if seen[name] else name)
    return frozenset(names)


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose(page)):
        if target.startswith(REMOTE):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def test_broken_links_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n## Two `words`, here\n## A page\n[a](page.md) [b](#two-words-here) [c](page.md#a-page-1)\n"
        "[d](gone.md) [e](#gone) [f](page.md#gone) ![g](gone.png) [h](https://example.org/x)\n"
        "`[i](code.md)`\n```\n[j](code.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "#gone", "page.md#gone", "gone.png"]


def test_links_lead_somewhere() -> None:
    assert {page: links for page in PAGES if (links := broken_links(page))} == {}


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1].split("\n\n")[0]
    listed = re.findall(r": (\S+\.(?:md|ipynb))$", navigation, flags=re.MULTILINE)
    there = sorted(
        str(page.relative_to(DOCS)) for kind in ("md", "ipynb") for page in DOCS.rglob(f"*.{kind}")
    )
    assert sorted(listed) == there
    linked = re.findall(r"\]\((\S+?\.(?:md|ipynb))", (DOCS / "index.md").read_text())
    assert set(linked) | {"index.md"} == set(there)


def test_the_page_of_commands_is_the_generated_one() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    assert page == commands_page(), "run `python -m tools.commands_page > docs/reference/commands.md`"
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert len(names) >= 12
    for name in names:
        assert f"\n## {name}\n" in page
    for group in ("index", "photos"):
        assert f"\n## {group} " in page


def test_the_reference_has_every_public_name_and_only_names_that_are_there() -> None:
    listed = re.findall(r"^::: (\S+)$", (DOCS / "reference" / "python.md").read_text(), flags=re.MULTILINE)
    for name in listed:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
    missing = set(centerhash.__all__) - {name.rpartition(".")[2] for name in listed}
    assert missing == {"CenterhashError", "__version__"}  # comes with the whole of centerhash.core.errors
    assert "centerhash.core.errors" in listed


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        (
            "reference/methods.md",
            "[losses](../../src/losses.py#L3) and [search](../how-to/search.md)",
            "[losses](https://example.org/r/blob/main/src/losses.py#L3) and [search](../how-to/search.md)",
        ),
        (
            "index.md",
            "[all](../benchmarks/results)",
            "[all](https://example.org/r/tree/main/benchmarks/results)",
        ),
        ("paper.md", "![picture](../elsewhere.png)", "![picture](../elsewhere.png)"),  # must fail the build
    ],
)
def test_links_that_leave_the_site_lead_to_the_repository(page: str, text: str, shown: str) -> None:
    hooks = loaded(DOCS / "hooks.py", "docs_hooks")
    assert hooks.with_repository_links(text, page, "https://example.org/r") == shown
