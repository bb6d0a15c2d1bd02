"""The wheel contains every file of the package, the source archive everything that its tests need."""

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


def test_files_of_wheel(wheel: zipfile.ZipFile) -> None:
    files = package_files()
    # A wheel without package data would lack these.
    data = ("py.typed", "training/presets/paper-alexnet.toml", "builtin/coco/model.onnx")
    data += (
        "builtin/samples/coco6k.npz",
        "model/sample_photos/cat.jpg",
        "experiments/templates/compare.html",
    )
    data += ("serve/static/index.html", "serve/static/icon.svg")
    assert {f"centerhash/{name}" for name in data} <= files
    assert {Path(name).suffix for name in files} >= {".py", ".toml", ".html", ".css", ".js"}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_metadata_of_wheel(wheel: zipfile.ZipFile) -> None:
    about = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE"} <= set(about)
    assert "centerhash = centerhash.cli:main" in wheel.read(about["entry_points.txt"]).decode()
    metadata = Parser().parsestr(wheel.read(about["METADATA"]).decode())
    assert metadata["Name"] == "centerhash"
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == set(metadata.get_all("Provides-Extra", []))
    assert {"train", "fast", "parquet", "milvus", "ray", "all"} <= set(extras)
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not any("torch" in line or "numba" in line for line in base)


def test_files_of_source_archive(shipped: Path) -> None:
    (file,) = shipped.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} <= names
    needed = {"pyproject.toml", "Makefile", "mkdocs.yml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"}
    for folder in ("tests", "docs", "examples", "benchmarks", "reproduction", "tools"):
        kept = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        needed |= {str(path.relative_to(ROOT)) for path in kept if "__pycache__" not in path.parts}
    assert needed - names == set()
