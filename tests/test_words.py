"""The check of words: banned ones are found, code and names are not looked at."""

from __future__ import annotations

import pytest

from tests.words import (
    MOST_WORDS,
    docstring_texts,
    help_texts,
    message_texts,
    page_texts,
    problems,
    web_texts,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The command says what it skipped.", "says"),
        ("A data set of photos.", "data set"),
        ("It reaches .845 at 16 bits.", ".845"),
        ("The licence is Apache-2.0.", "licence"),
        ("Files are written whole or not at all.", "whole or not at all"),
        ("The next line.\nA training that stops.", "A training"),
        ("It works. Those are kept.", "Those"),
    ],
)
def test_banned_words_are_found(text: str, words: str) -> None:
    (found,) = problems("page.md", text)
    line = text[: text.index(words)].count("\n") + 1
    assert found.startswith(f"page.md:{line}: '{words}'")


@pytest.mark.parametrize(
    "text",
    [
        "Set `data set` and `says` in code.",
        "```\nit says .845\n```\nA training run, 0.845, version 0.1.0, and those of others.",
        "See [results](says/questions.md) and `map_peers`.",
        'The label "fetch" is a name.',
    ],
)
def test_code_and_names_are_not_looked_at(text: str) -> None:
    assert problems("page.md", text) == []


def test_long_sentences_are_found() -> None:
    assert problems("page.md", "word " * MOST_WORDS + ".") == []
    (found,) = problems("page.md", "First.\n\n" + "word " * (MOST_WORDS + 1) + ".")
    assert found.startswith(f"page.md:3: {MOST_WORDS + 1} words")


def test_all_that_people_read_is_looked_at() -> None:
    pages = {text.place for text in page_texts()}
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "docs/tutorials/quickstart.ipynb"} <= pages
    assert any("Search by a photo" in text.text for text in web_texts())
    helps = {text.place: text.text for text in help_texts()}
    assert "similar" in helps["centerhash search --help"]
    assert helps["centerhash search within"]
    docstrings = {text.place: text.text for text in docstring_texts()}
    assert docstrings["centerhash.search.Index"]
    assert docstrings["centerhash.search.Index.search"]
    messages = [text.text for text in message_texts()]
    assert "nothing to remove: give ids, paths of images or folders, or --missing." in messages
    assert any(text.startswith("no damage found in `code`") for text in messages)
