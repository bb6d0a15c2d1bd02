"""What is shipped: the wheel holds every file of the package, the source archive all that its own tests need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built from the tree as `make build` does."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(shipped: Path) -> zipfile.ZipFile:
    (file,) = shipped.glob("*.whl")
    return zipfile.ZipFile(file)


def package_files() -> set[str]:
    """Every file of the package, code and data, by its path below src/."""
    files = (path for path in (SOURCE / "centerhash").rglob("*") if path.is_file())
    return {str(path.relative_to(SOURCE)) for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = package_files()
    for data in (
        "py.typed",
        "training/presets/paper-alexnet.toml",
        "serve/static/index.html",
        "builtin/coco/model.onnx",
        "model/sample_photos/cat.jpg",
        "search/words.tsv",
        "search/templates/duplicates.html",
    ):
        assert f"centerhash/{data}" in files  # what a wheel without package data would lack
    assert {Path(name).suffix for name in files} >= {".py", ".toml", ".html", ".css", ".js"}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_the_wheel_tells_its_licence_and_its_command(wheel: zipfile.ZipFile) -> None:
    about = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE"} <= set(about)
    assert "centerhash = centerhash.cli:main" in wheel.read(about["entry_points.txt"]).decode()
    told = Parser().parsestr(wheel.read(about["METADATA"]).decode())
    assert told["Name"] == "centerhash"
    assert told["License-Expression"] == "Apache-2.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == set(told.get_all("Provides-Extra", []))
    assert {"train", "fast", "plots", "parquet", "demo", "milvus", "ray", "all"} <= set(extras)
    assert not any(
        "torch" in line or "numba" in line
        for line in told.get_all("Requires-Dist", [])
        if "extra ==" not in line
    )


def test_the_source_archive_holds_what_its_tests_and_docs_need(shipped: Path) -> None:
    (file,) = shipped.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} <= names
    needed = {"pyproject.toml", "Makefile", "mkdocs.yml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"}
    for folder in ("tests", "docs", "examples", "benchmarks", "reproduction"):
        kept = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        needed |= {str(path.relative_to(ROOT)) for path in kept if "__pycache__" not in path.parts}
    assert needed - names == set()
