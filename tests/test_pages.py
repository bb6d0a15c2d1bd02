"""Every page of the docs opens with what it is for, shows something that runs, and ends with what next."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.search import Index
from reproduction.scenes import write_scenes
from tests.test_docs import DOCS
from tests.toys import cli

# made by a command, or long readings with an order of their own
OTHERS = {"methods.md", "paper.md", "large-collections.md", "reliability.md"}
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.name not in OTHERS)
# whose examples no other test runs
RUN = [
    "index",
    "reference/commands",
    "how-to/monitor-a-run",
    "reference/metrics",
    "how-to/search",
    "how-to/duplicates",
    "how-to/backbones",
    "reference/python",
]
FIRST_BLOCK = (
    "index",
    "reference/commands",
    "how-to/monitor-a-run",
)  # search.md has its commands run by tests/cli


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_it_is_for_shows_it_and_says_what_next(page: Path) -> None:
    title, opening, *rest = page.read_text().strip().split("\n\n")
    assert title.startswith("# ")
    assert opening[0].isalpha(), "first a sentence, then examples"
    assert "```" in page.read_text()
    if page.name != "index.md":  # which is all about what next
        assert rest[-1].startswith("What next: ")
        assert "](" in rest[-1]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, image_run: Path) -> Path:
    """A folder as a reader has it: photos with labels, a photo, an index of them."""
    folder = tmp_path_factory.mktemp("desk")
    write_scenes(folder / "photos", 40, size=64)
    shutil.copy(folder / "photos" / "images" / "000001.jpg", folder / "photo.jpg")
    with Index.create(folder / "photos.index", image_run) as index:
        index.add(folder / "photos" / "images", progress=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_examples_run_as_they_stand(
    name: str, desk: Path, tmp_path: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(desk, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setenv("CENTERHASH_CACHE", str(feature_cache))
    page = DOCS / f"{name}.md"
    lines = [line for block in blocks(page, "console")[:1] for line in block.splitlines()]
    for line in lines if name in FIRST_BLOCK else ():
        if line == "centerhash index create photos.index":
            shutil.rmtree("photos.index")
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}: {done.err}"
    if Path("run").is_dir() and blocks(page, "python"):
        shutil.rmtree("run")
    generator = np.random.default_rng(0)
    known: dict[str, Any] = {
        f"{side}_{kind}": generator.random((20, size)) < 0.5
        for side in ("query", "database")
        for kind, size in (("codes", 16), ("labels", 4))
    }
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), known)
    assert (name in FIRST_BLOCK and lines) or blocks(page, "python")
