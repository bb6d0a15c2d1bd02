"""Check the words of README, docs, help, docstrings, messages and web page: `python -m tests.words`, part of `make lint`.

Code, quoted names and links are not checked. Every finding is a line: file, line, the words, and what to write instead.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
MOST_WORDS = 25  # of a sentence; code counts as one word

# a pattern without regard to case, and what to write instead
BANNED = {
    r"\b(?:says|tells|knows|wants|asks|asked|speaks)\b": "print, report, list, support, store, expect, accept",
    r"\bquestions?\b": "query",
    r"\bby chance\b|\bchance level\b|\bwhat chance\b|\ba random order\b": "random ranking (baseline)",
    r"\bpeers'?(?= denominator|,)|\btextbook's?\b": "mAP@k over retrieved (all) relevant items",
    r"\bthe field\b": "prior work, other tools",
    r"\bdata sets?\b": "dataset",
    r"\btraining lists?\b": "training set",
    r"\b(?:a|every|each|another|one|second) training(?=[.,;:)]| (?:that|which|is|was|with|starts|ends|takes)\b)": (
        "training run"
    ),
    r"\bbeside\b": "next to, compared with",
    r"\belsewhere\b": "in other programs, remote",
    r"\bof (?:one's|our|its|their|your) own\b|\bone's own\b": "custom; my, your, its",
    r"\bwhole or not at all\b": "atomically",
    r"\bin work\b": "in progress",
    r"\bprocessors?\b": "CPU",
    r"\b(?:strangers?|somebody|nobody)\b": "untrusted, another person, no one",
    r"\bfair coins?\b": "Bernoulli(0.5) bits",
    r"\bdrawn codes\b": "codes sampled from model logits",
    r"\brefus(?:e|es|ed|ing|al)\b": "reject",
    r"\bfetch(?:es|ed|ing)?\b": "download",
    r"\bg(?:ive|ives|ave|iven) (?:back|out)\b": "reclaim, return, report, assign",
    r"\b(?:leaves?|left|leaving) out\b": "skip, exclude, omit",
    r"\bgoes on\b|\bgo on\b|\bwent on\b": "continue, resume",
    r"\b(?:kill|kills|killed)\b": "crash, stop",
    r"\blook(?:s|ed)? after\b": "maintain",
    r"\bcolou?rs? of before\b|\bof before\b": "earlier, or delete",
    r"\b(?:the )?goal was\b|\bwas the goal\b": "delete: no history in user docs",
    r"\bsees\b": "reads, detects",
    r"\blicences?\b": "license",
    r"\b\w*(?:colour|behaviour|favour|neighbour|centre|grey|labelled|unlabelled|modell|artefact)\w*\b": "US spelling",
    r"\b\w*(?:quanti|recogni|normali|minimi|optimi|summari|initiali|organi|reali)s(?:e|ed|es|ing|ation)\b": (
        "US spelling: -ize"
    ),
    r"(?<![\w.])\.\d{2,}\b": "a leading zero: 0.845",
    r"(?:^|(?<=[.!?:] ))(?-i:Those|What is|What are|What was|Where there)\b(?![^.]*\?)": "name the noun",
}


class Text(NamedTuple):
    """A piece of prose, and where it stands."""

    place: str
    text: str


class _Html(HTMLParser):
    """The visible text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style", "code", "pre")
        self.found += [(self.getpos()[0], value) for name, value in attrs if name == "aria-label" and value]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "code", "pre")

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.found.append((self.getpos()[0], data.strip()))


def prose(markdown: str) -> str:
    """Markdown with the same lines, in which code is the word `code`, and links are their words."""
    text = re.sub(
        r"^( *)```.*?^\1```",
        lambda block: "\n" * block[0].count("\n"),
        markdown,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"`+[^`]+`+", lambda span: "code" + "\n" * span[0].count("\n"), text)
    text = re.sub(r"\bcode(?:, code)+", "code", text)  # a list of names is one word
    text = re.sub(r"\$\$?[^$]+\$\$?", "formula", text)
    text = re.sub(
        r"^(?: {4,}|\t|:::).*$", "", text, flags=re.MULTILINE
    )  # formulas that are set as code, and generated references
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>\n]+>|https?://\S+", "", text)
    text = re.sub(r"\b[\w/-]+\.(?:json|jsonl|md|csv|toml|py|npz)\b", "file", text)
    return re.sub(r"[\"“][^\"”\n]{1,60}[\"”]|\*[A-Z][^*\n]{15,}\*", "name", text)  # quotations and titles


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and sentences of prose; rows of tables are not sentences."""
    for block in re.finditer(r"(?:^(?!\s*\||#|\s*$).*\n?)+", text, flags=re.MULTILINE):
        start = text.count("\n", 0, block.start()) + 1
        for item in re.split(r"^\s*(?:[-*]|\d+\.)\s", block[0], flags=re.MULTILINE):
            for sentence in re.split(
                r"(?<!\bEq\.)(?<!\bSec\.)(?<!\bFig\.)(?<!\bal\.)(?<=[.!?])\s+", " ".join(item.split())
            ):
                if sentence:
                    yield start, sentence


def problems(place: str, markdown: str) -> list[str]:
    """The findings in a text."""
    text = prose(markdown)
    found = []
    for pattern, instead in BANNED.items():
        for match in re.finditer(pattern, text, flags=re.IGNORECASE | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{place}:{line}: '{match[0].strip()}': {instead}")
    for line, sentence in sentences(text):
        if (count := len(re.findall(r"[\w'-]+", sentence))) > MOST_WORDS:
            found.append(f"{place}:{line}: {count} words: {sentence[:60]}...")
    return found


def page_texts() -> Iterator[Text]:
    """README and other pages for readers, the docs, and the text of the notebook."""
    for page in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))):
        yield Text(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    for book in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
        words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        yield Text(str(book.relative_to(ROOT)), "\n\n".join(words))


def web_texts() -> Iterator[Text]:
    """What people read on the web page and on written pages."""
    for page in sorted(page for part in ("src", "reproduction") for page in (ROOT / part).rglob("*.html")):
        parser = _Html()
        parser.feed(re.sub(r"\{[{%#].*?[%#}]\}", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        for line, text in parser.found:
            yield Text(f"{page.relative_to(ROOT)}:{line}", text)


def script_texts() -> Iterator[Text]:
    """The sentences in the scripts of the web page: literals of several words, with `name` for what is inserted."""
    literal = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
    for script in sorted((ROOT / "src").rglob("*.js")):
        for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), start=1):
            for found in literal.finditer(re.sub(r"(?:^|\s)//.*", "", line)):
                text = re.sub(r"\$\{[^}]*\}", "name", found[1] or found[2] or "")
                is_classes = re.fullmatch(r"[a-z]+ [a-z]+", text)  # of an element
                if re.search(r"\w \w", text) and not is_classes:
                    yield Text(f"{script.relative_to(ROOT)}:{number}", text)


def help_texts() -> Iterator[Text]:
    """The help of every command and of its options."""
    from typer.main import get_command

    from centerhash.cli import app

    def below(command: Any, name: str) -> Iterator[Text]:
        yield Text(f"{name} --help", command.help or "")
        for option in command.params:
            yield Text(f"{name} {option.name}", getattr(option, "help", None) or "")
        for inner, each in getattr(command, "commands", {}).items():
            yield from below(each, f"{name} {inner}")

    yield from below(get_command(app), "centerhash")


def docstring_texts() -> Iterator[Text]:
    """The docstrings of public names: those of the Python reference, and the methods of their classes."""
    listed = re.findall(
        r"^::: (\S+)$", (ROOT / "docs/reference/python.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for name in listed:
        module, _, last = name.rpartition(".")
        public = getattr(importlib.import_module(module), last)
        members = vars(public).items() if inspect.isclass(public) else ()
        parts = [
            (name, public),
            *((f"{name}.{key}", each) for key, each in members if not key.startswith("_")),
        ]
        for place, part in parts:
            if callable(part) or isinstance(part, property | classmethod | staticmethod):
                yield Text(place, inspect.getdoc(part) or "")


def message_texts() -> Iterator[Text]:
    """The text of errors, and of what commands print; inserted values are code."""

    def text_of(node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(text_of(value) for value in node.values)
        return "`code`"

    for file in sorted(file for part in ("src", "reproduction") for file in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            printed = isinstance(call.func, ast.Attribute) and call.func.attr in ("output", "warn", "log")
            if isinstance(node, ast.Raise) or printed:
                texts = call.args[0].elts if isinstance(call.args[0], ast.List) else call.args[:1]
                for each in texts:
                    yield Text(f"{file.relative_to(ROOT)}:{each.lineno}", text_of(each))


def main() -> int:
    """Print all findings; return 1 if there are any."""
    found = [
        problem
        for texts in (
            page_texts(),
            web_texts(),
            script_texts(),
            help_texts(),
            docstring_texts(),
            message_texts(),
        )
        for each in texts
        for problem in problems(each.place, each.text)
    ]
    for problem in found:
        print(problem)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
