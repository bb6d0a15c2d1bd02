"""The workflows: valid yaml that runs make targets which exist, on the Pythons that the package names."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_examples import loaded

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
FILES = sorted(WORKFLOWS.glob("*.yml"))


def read(path: Path) -> dict[Any, Any]:
    workflow = yaml.safe_load(path.read_text())
    assert isinstance(workflow, dict)
    return workflow


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return list(job.get("steps", []))


def make_targets(job: dict[str, Any]) -> set[str]:
    """The targets that a job makes, those of its matrix one by one."""
    named = {target for step in steps(job) for target in re.findall(r"\bmake (\S+)", step.get("run", ""))}
    of_matrix = job.get("strategy", {}).get("matrix", {}).get("target", [])
    return (named - {"${{"}) | (set(of_matrix) if "${{" in named else set())


def test_both_workflows_are_there() -> None:
    assert [path.name for path in FILES] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_has_what_github_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert workflow[True]  # "on" is a truth in yaml
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if "uses" in job:  # another workflow
            assert (ROOT / job["uses"]).is_file()
            assert "workflow_call" in read(ROOT / job["uses"])[True]
        else:
            systems = job.get("strategy", {}).get("matrix", {}).get("system", [job["runs-on"]])
            assert all(re.fullmatch(r"(ubuntu|macos|windows)-[\d.]+", system) for system in systems)
            assert all(("run" in step) != ("uses" in step) for step in steps(job))
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])


def test_the_make_targets_exist_and_all_that_counts_is_made() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    made = {target for path in FILES for job in read(path)["jobs"].values() for target in make_targets(job)}
    assert made == {"lint", "test", "build", "docs", "wheel-check"}
    assert made <= set(phony[1].split())


def test_the_package_names_the_pythons_that_the_base_install_is_tried_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", row) for row in project["classifiers"]
    ]
    matrix = read(WORKFLOWS / "ci.yml")["jobs"]["base"]["strategy"]["matrix"]
    assert [row[1] for row in named if row] == matrix["python"]


def test_the_base_install_is_tried_on_all_systems_and_pythons() -> None:
    job = read(WORKFLOWS / "ci.yml")["jobs"]["base"]
    matrix = job["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f">={matrix['python'][0]}" == project["requires-python"]
    words = "\n".join(step.get("run", "") for step in steps(job))
    assert "--noconftest tests/test_light_install.py" in words
    assert "torch" not in words


def test_the_tag_is_the_version_that_is_built(tmp_path: Path) -> None:
    job = read(WORKFLOWS / "ci.yml")["jobs"]["make"]
    (step,) = (step for step in steps(job) if step.get("if") == "github.ref_type == 'tag'")
    file = tmp_path / "src" / "centerhash" / "core" / "version.py"
    file.parent.mkdir(parents=True)
    file.write_text((ROOT / file.relative_to(tmp_path)).read_text())
    environment = {**os.environ, "GITHUB_REF_NAME": "v12.3.4rc1"}
    subprocess.run(["bash", "-ec", step["run"]], cwd=tmp_path, env=environment, check=True)
    assert loaded(file, "released").__version__ == "12.3.4rc1"


def test_only_a_tag_publishes_what_ci_built() -> None:
    release = read(WORKFLOWS / "release.yml")
    assert release[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}
    publish = release["jobs"]["publish"]
    assert publish["needs"] == "ci"
    assert publish["permissions"] == {"id-token": "write"}  # trusted publishing: no token is stored
    assert not re.search(r"secrets\.|password", (WORKFLOWS / "release.yml").read_text())
    job = read(WORKFLOWS / "ci.yml")["jobs"]["make"]
    (kept,) = (step["with"]["name"] for step in steps(job) if "upload-artifact" in step.get("uses", ""))
    (taken,) = (
        step["with"]["name"] for step in steps(publish) if "download-artifact" in step.get("uses", "")
    )
    assert kept == taken
