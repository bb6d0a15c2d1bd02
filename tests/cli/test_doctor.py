from __future__ import annotations

import builtins
import json
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from centerhash.cli import doctor as module
from centerhash.cli.doctor import (
    NOT_INSTALLED,
    USER_EXTRAS,
    Diagnosis,
    diagnose,
    folder_size,
    installed_version,
    requirements,
)
from centerhash.cli.info import doctor

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
app = typer.Typer()
app.command()(doctor)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def without_version(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Let packages look as if they were not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)


def declared() -> list[str]:
    """The lines that the metadata of a wheel built from here would have."""
    project = PYPROJECT["project"]
    optional = []
    for extra, lines in project["optional-dependencies"].items():
        for line in lines:
            package, _, marker = line.partition(";")
            optional.append(f"{package} ; {f'({marker}) and ' if marker else ''}extra == '{extra}'")
    return [*project["dependencies"], *optional]


@pytest.fixture(autouse=True)
def this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of these sources, whatever is installed."""
    monkeypatch.setattr(metadata, "requires", lambda name: declared())


def test_every_package_that_a_user_may_need_is_looked_for() -> None:
    found = {(need.name, need.extra) for need in requirements()}
    assert found >= {("numpy", None), ("onnxruntime", None), ("fastapi", None), ("pillow-heif", None)}
    assert found >= {("torch", "train"), ("numba", "train"), ("numba", "fast"), ("pyarrow", "parquet")}
    assert not {"pytest", "mkdocs", "centerhash"} & {name for name, _ in found}
    assert len(found) == len(requirements())
    assert set(USER_EXTRAS) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_markers_of_other_systems_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=2", "winsdk ; sys_platform == 'no-such'", "rich ; sys_platform != 'no-such'"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert [need.name for need in requirements()] == ["numpy", "rich"]


def test_sources_that_are_not_installed_declare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    assert requirements() == []


def test_a_package_that_is_too_old_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=99"])
    (problem,) = diagnose(tmp_path).problems
    assert problem.endswith("but >=99 is needed: run `pip install 'numpy>=99'`.")


def test_a_sound_installation_has_no_problems(tmp_path: Path) -> None:
    found = diagnose(tmp_path / "new" / "cache")
    assert found.problems == []
    assert found.versions["numpy"] == metadata.version("numpy")
    assert found.backbones["efficientnet-lite0"] == "weights here"
    assert found.engines["torch"] == "usable"
    assert found.stores == {"sqlite": "usable", "milvus": "usable"}
    assert found.extras == dict.fromkeys(USER_EXTRAS, "installed")
    assert found.notes == []
    assert found.cache["size"] == "0 bytes"
    assert found.cache["writable"] == "yes"
    assert not (tmp_path / "new").exists(), "looking must not change anything"


def test_a_missing_package_is_a_problem_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_version(monkeypatch, "onnxruntime", "timm", "ray")
    found = diagnose(tmp_path)
    assert not {"onnxruntime", "timm", "ray"} & set(found.versions)
    (problem,) = found.problems
    assert problem.startswith("onnxruntime is not installed: run `pip install")
    assert found.extras["train"] == "timm missing: pip install 'centerhash[train]'"
    assert found.extras["ray"] == "not installed: pip install 'centerhash[ray]'"


def test_packages_of_an_extra_that_is_not_installed_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch of another program is no problem of ours, neither by its age nor by missing weights."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "torch" else real(name))
    monkeypatch.setattr(type(module.BACKBONES["resnet50"]), "is_here", property(lambda row: False))
    old, weights = diagnose(tmp_path).problems
    assert old.startswith("torch is 0.1, but >=")
    assert weights.startswith("the weights of efficientnet-lite0")
    without_version(monkeypatch, "timm")
    found = diagnose(tmp_path)
    assert found.extras["train"].startswith("timm missing")
    assert found.problems == []


def test_a_build_for_gpus_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "faiss-gpu":
            return "1.2.3"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert installed_version("faiss-cpu") == "1.2.3"
    assert installed_version("numpy") == NOT_INSTALLED


def test_without_pytorch_and_numba_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(type(module.BACKBONES["resnet50"]), "is_here", property(lambda row: False))
    found = diagnose(tmp_path)
    assert found.stores == {"sqlite": "usable", "milvus": NOT_INSTALLED}
    assert found.engines["torch"] == NOT_INSTALLED
    assert (found.machine["device"], found.backbones, found.problems) == ("cpu", {}, [])
    (note,) = found.notes
    assert note.startswith("numba is not installed")
    assert f"note: {note}" in found.lines()


def test_a_torch_that_does_not_load_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any, **named: Any) -> Any:
        if name == "torch":
            raise OSError("libgomp.so.1: cannot open shared object file\nmore")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", broken)
    found = diagnose(tmp_path)
    assert found.machine["device"] == "unknown"
    (problem,) = found.problems
    assert problem.startswith("torch cannot be imported (libgomp.so.1: cannot open shared object file): run")


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = diagnose(tmp_path / "file" / "cache")
    assert found.cache["writable"] == "no"
    (problem,) = found.problems
    assert "set CENTERHASH_CACHE to a folder that can" in problem


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10**9, 10**9 - 5_000_000, 5_000_000))
    (problem,) = diagnose(tmp_path).problems
    assert problem.startswith("only 5.0 MB are free for the feature cache")


def test_missing_weights_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(module.BACKBONES["resnet50"]), "is_here", property(lambda row: False))
    found = diagnose(tmp_path)
    assert found.backbones["resnet50"].startswith("no weights here: https://")
    (problem,) = found.problems
    assert problem.startswith("the weights of efficientnet-lite0, the default backbone, are missing")


def test_the_size_of_a_folder_counts_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"123")
    assert folder_size(tmp_path) == 8
    assert folder_size(tmp_path / "nowhere") == 0


def test_lines_are_a_plain_table() -> None:
    problems = ["all is lost: do this."]
    found = Diagnosis({"numpy": "1"}, {}, {"device": "cpu"}, {}, {}, {}, {}, problems=problems)
    assert found.lines()[:2] == ["versions", "  numpy   1"]
    assert "  device  cpu" in found.lines()
    assert found.lines()[-1] == "problem: all is lost: do this."


def test_the_command_ends_with_0_and_prints_every_fact(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--cache", str(tmp_path)])
    assert done.exit_code == 0
    assert "Nothing essential is missing." in done.output
    for name in (*(need.name for need in requirements()), *USER_EXTRAS, "sqlite", "milvus"):
        assert name in done.output


def test_the_command_ends_with_1_where_something_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["--cache", str(tmp_path / "file" / "cache"), "--json"])
    assert done.exit_code == 1
    assert len(json.loads(done.output)["problems"]) == 1
