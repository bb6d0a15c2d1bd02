"""The order of the packages, and how many files a search and a training run pass."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from importlinter.cli import lint_imports

import centerhash as ch
from tools.architecture import PICTURE, architecture_svg

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "centerhash"
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"


def test_lint_imports() -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("codes.py", "import centerhash.data.images"),
        ("codes.py", "from centerhash import cli"),
        ("codes.py", "def load():\n    from centerhash.model.model import HashModel"),
        ("codes.py", "if TYPE_CHECKING:\n    from centerhash.serve.app import create_app"),
        ("unlisted.py", "import centerhash.core"),
    ],
)
def test_lint_imports_rejects(tmp_path: Path, file: str, line: str) -> None:
    data = shutil.ignore_patterns("builtin", "static", "__pycache__")
    with (shutil.copytree(SOURCE, tmp_path / "centerhash", ignore=data) / file).open("a") as stream:
        stream.write(f"{line}\n")
    words = [sys.executable, "-c", LINT, str(ROOT / "pyproject.toml")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, Path(file).stem in done.stdout) == (1, True), done.stdout + done.stderr


def test_picture_is_current() -> None:
    assert PICTURE.read_text() == architecture_svg(), "run `python -m tools.architecture`"


def files_passed(work: Callable[[], object]) -> list[str]:
    """The files of the package whose functions run during `work`; imports do not count."""
    files: set[str] = set()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(SOURCE)):
            files.add(Path(code.co_filename).relative_to(SOURCE).as_posix())

    sys.setprofile(trace)
    threading.setprofile(trace)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(files)


@pytest.mark.slow
def test_files_passed(tmp_path: Path) -> None:
    data = ch.sample("coco6k")

    def train(out: Path) -> None:
        ch.evaluate(ch.train(data, method="ics", epochs=1, out=out, progress=False), data)

    train(tmp_path / "first")  # imports everything
    training = files_passed(lambda: train(tmp_path / "run"))
    model = ch.load(tmp_path / "run")
    with ch.Index.create(tmp_path / "index", model) as index:
        index.add(codes=ch.pack(model.encode_features(data.features[:400])), ids=range(400))
        search = files_passed(lambda: index.search(id="7"))
    assert len(training) <= 36, training
    assert len(search) <= 9, search
    assert sum(file.startswith("index/") for file in search) <= 5
