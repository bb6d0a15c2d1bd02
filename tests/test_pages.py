"""Every page of the docs opens with what it is for and what it needs; its examples run with no more than that.

A page's `Needs:` line is the base install, a clone, or the pip line of extras. Its console and python blocks run in their
order, in one process in which libraries of other extras cannot be imported. A `text` block right after a console block
is the output of those commands: its words must be printed in this order, whatever the numbers.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image, ImageOps

from centerhash.core.extras import EXTRAS
from centerhash.photos import PhotoIndex
from tests.shapes import write_shapes
from tests.test_docs import DOCS, ROOT
from tests.toys import cli_process, python_process

PAGES = sorted(DOCS.rglob("*.md"))
# their examples run in tests of their own: torch files, other databases, many layouts
ELSEWHERE = {
    "how-to/export.md": "tests/model/test_export.py",
    "how-to/recipes.md": "tests/test_recipes.py",
    "reference/data-layouts.md": "tests/data/layouts/test_contract.py",
}
# libraries that several extras install; pyarrow looks for pandas, and fails if its import is blocked
ALSO = {"fast": {"numba"}, "ray": {"pyarrow", "pandas"}, "parquet": {"pandas"}}
WITH_TRAINING = {"train", "all"}
NOT_OURS = ("lightning", "scipy", "imagehash", "pandas", "sklearn", "httpx", "IPython")
SHORT = {"train": ["--epochs", "2"], "tune": ["--epochs", "2"], "compare": ["--epochs", "2", "--seeds", "1"]}
RUN = """
import contextlib, io, json, os, sys

os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = "400"  # tables must not fold the long paths of a test
blocked, steps = json.loads(sys.argv[1])
imported = [name for name in sys.modules if name.partition(".")[0] in blocked]
sys.modules.update(dict.fromkeys([*blocked, *imported]))
from centerhash.cli import main

known = {"__name__": "__page__"}
for kind, text in steps:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if kind == "python":
            exec(compile(text, "<page>", "exec"), known)
        else:
            sys.argv = text
            try:
                main()
            except SystemExit as ended:
                if ended.code:
                    raise RuntimeError(text) from ended
    print(json.dumps(out.getvalue()), flush=True)
"""


class Block(NamedTuple):
    """A block of code: its language, its text, and the output that the page shows for it."""

    language: str
    text: str
    output: str | None


def blocks(text: str) -> list[Block]:
    """The console and python blocks of a page in their order."""
    found = re.findall(
        r"^```(console|python)\n(.*?)^```\n(?:\n*```text\n(.*?)^```)?", text, flags=re.DOTALL | re.MULTILINE
    )
    return [Block(language, code, output or None) for language, code, output in found]


def needs(text: str) -> set[str]:
    """The extras that the `Needs:` line of a page names."""
    line = re.search(r"^Needs:.*(?:\n.+)*", text, flags=re.MULTILINE)
    assert line is not None, "a page has a line `Needs: ...`"
    named = {name for names in re.findall(r"centerhash\[([\w,]+)\]", line[0]) for name in names.split(",")}
    if "a clone" in line[0]:
        return {"all"}
    assert named or "base install" in line[0], line[0]
    assert named <= {"all", *(extra.name for extra in EXTRAS.values())}
    return named


def blocked(extras: set[str]) -> list[str]:
    """Libraries that the extras do not install."""
    if "all" in extras:
        return []
    allowed = extras
    also = {library for name in allowed for library in ALSO.get(name, ())}
    ours = [name for name, extra in EXTRAS.items() if extra.name not in allowed and name not in also]
    return [*ours, *(NOT_OURS if not allowed else ())]


def words(output: str) -> list[str]:
    """The words of an output, without numbers, ids and drawn lines; folders above the photos are all the same."""
    text = re.sub(r"(?<!\w)/[^\s\"']+(?=/(?:photos|doubles)\b)", "/home/me", output)
    found = re.findall(r"(?<![\w.])[A-Za-z/][\w./:'-]*", text)
    return [word for word in found if not re.fullmatch(r"[0-9a-f]{12,}|[a-z]", word)]


def test_needs_and_blocks_are_read() -> None:
    assert needs("# A\n\nNeeds: the base install.\n") == set()
    assert needs("# A\n\nNeeds:\n`pip install 'centerhash[train]'`, for\n`centerhash[fast,ray]`.\n") == {
        "train",
        "fast",
        "ray",
    }
    assert "torch" in blocked({"fast"})
    assert not {"numba", "openvino"} & set(blocked({"fast"}))
    assert blocked({"train"}).count("torch") == 0
    page = "```console\na b\n```\n\n```text\nc 1\n```\n\n```python\nx\n```\n\n```\nno\n```\n"
    assert blocks(page) == [Block("console", "a b\n", "c 1\n"), Block("python", "x\n", None)]
    shown = words("│ 12 │ 0123456789abcdef │ cat 51% │ /x/y/photos/a.jpg")
    assert shown == ["cat", "/home/me/photos/a.jpg"]


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory, image_run: Path) -> dict[bool, Path]:
    """Folders as readers have them: photos without labels, and labelled ones with a trained model."""
    plain, labelled = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("labelled")
    shutil.copytree(ROOT / "examples" / "photos", plain / "photos")
    shutil.copy(plain / "photos" / "cat-chelsea.jpg", plain / "photo.jpg")
    with PhotoIndex.create(plain / "photos.index") as index:
        index.add(plain / "photos", progress=False)
    shutil.copytree(plain / "photos", plain / "doubles")
    shutil.copy(plain / "photos" / "owl.jpg", plain / "doubles" / "owl-copy.jpg")
    with Image.open(plain / "photos" / "dog.jpg") as dog, Image.open(plain / "photos" / "boats.jpg") as boats:
        dog.resize((256, 256)).save(plain / "doubles" / "dog-small.jpg", quality=70)
        ImageOps.mirror(boats).save(plain / "doubles" / "boats-mirrored.jpg", quality=85)
    write_shapes(labelled / "photos", 40, size=64)
    shutil.copy(labelled / "photos" / "images" / "000001.jpg", labelled / "photo.jpg")
    shutil.copytree(image_run, labelled / "run")
    with PhotoIndex.create(labelled / "photos.index", image_run) as index:
        index.add(labelled / "photos" / "images", progress=False)
    for desk in (plain, labelled):
        shutil.copytree(ROOT / "examples", desk / "examples")
    return {False: plain, True: labelled}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if str(page.relative_to(DOCS)) not in ELSEWHERE and blocks(page.read_text())],
    ids=lambda page: page.stem,
)
def test_examples_run_with_no_more_than_the_page_needs(
    page: Path, desks: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text()
    extras, found = needs(text), blocks(text)
    trains = bool(extras & WITH_TRAINING)
    desk = tmp_path / "desk"
    shutil.copytree(desks[trains], desk)
    steps: list[tuple[str, str | list[str]]] = []
    for block in found:
        if block.language == "python":
            steps.append(("python", block.text))
            continue
        for line in block.text.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "centerhash", f"{line}: what is not run here is no console block"
            assert arguments[0] != "serve", f"{line}: a server does not end, so it is no console block"
            if arguments[:2] == ["photos", "add"] and not steps:  # the page begins with a new index
                shutil.rmtree(desk / arguments[2], ignore_errors=True)
            if "create" in arguments or "--out" in arguments:
                made = arguments[2] if "create" in arguments else arguments[arguments.index("--out") + 1]
                shutil.rmtree(desk / made, ignore_errors=True)
            short = [] if "--from" in arguments else SHORT.get(arguments[0], [])
            steps.append(("console", [program, *arguments, *short]))
    monkeypatch.chdir(desk)
    start = cli_process if trains else python_process  # torch is imported in the process that forks
    done = start("-c", RUN, json.dumps([blocked(extras), steps]))
    assert done.code == 0, done.err
    outputs = iter([json.loads(line) for line in done.out.splitlines()])
    for block in found:
        lines = 1 if block.language == "python" else len(block.text.splitlines())
        printed = "".join(next(outputs) for _ in range(lines))
        if block.output is not None and not trains:
            assert words(block.output) == words(printed)
