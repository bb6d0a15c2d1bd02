"""The pages: links and anchors lead somewhere, the reference is complete, and the tutorials run as they stand."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest

import centerhash
from centerhash.cli import app
from reproduction.scenes import write_scenes
from tests.test_examples import loaded
from tests.toys import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
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


def test_the_page_of_commands_names_every_command() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert len(names) >= 18
    for name in [*names, *(group.name for group in app.registered_groups)]:
        assert f"`centerhash {name}" in page


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
            "methods.md",
            "[losses](../src/losses.py) and [own](own-images.md)",
            "losses and [own](own-images.md)",
        ),
        (
            "tutorials/a.md",
            "[in](../scale.md#sizes) [out](../../README.md#more)",
            "[in](../scale.md#sizes) out",
        ),
        ("paper.md", "![picture](../elsewhere.png)", "![picture](../elsewhere.png)"),  # must fail the build
    ],
)
def test_links_that_leave_the_site_become_words(page: str, text: str, shown: str) -> None:
    hooks = loaded(DOCS / "hooks.py", "docs_hooks")
    assert hooks.without_outside_links(text, page) == shown


def commands(page: Path) -> list[list[str]]:
    """The commands of a tutorial's console blocks, word by word."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run_as_they_stand(
    page: Path, tmp_path: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = commands(page)
    write_scenes(tmp_path / "photos", 40, size=64)
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    assert len(lines) >= 4
    for program, *words in lines:
        assert program == "centerhash"
        if words[0] == "compare" and "--from" not in words:
            words[words.index("--seeds") + 1] = "1"
        if words[0] in ("train", "compare", "tune") and "--from" not in words:
            words += ["--epochs", "2"]  # that it runs, not that it learns
        done = cli(*words)
        assert done.code == 0, f"{words}: {done.err}"
