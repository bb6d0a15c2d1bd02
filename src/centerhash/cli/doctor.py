"""The installed versions and engines, and the state of an index, for bug reports."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from centerhash.core.errors import first_line
from centerhash.core.extras import EXTRAS
from centerhash.core.version import __version__
from centerhash.networks.engines import ENGINES

NOT_INSTALLED = "not installed"


def diagnose(index: Path | None = None) -> dict[str, Any]:
    """Return the versions, the engines, the facts of an index and its model, and a list of problems."""
    versions = {"centerhash": __version__, "python": platform.python_version(), "system": platform.platform()}
    versions |= {"cpus": str(os.cpu_count()), **{name: _version(name) for name in _packages()}}
    is_installed = {name: find_spec(library) is not None for name, library in ENGINES.items()}
    engines = {name: "usable" if usable else NOT_INSTALLED for name, usable in is_installed.items()}
    report: dict[str, Any] = {"versions": versions, "engines": engines, "problems": []}
    if is_installed["torch"]:
        try:
            import torch

            versions["cuda"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        except (ImportError, OSError) as error:
            report["problems"].append(f"torch cannot be imported: {first_line(error)}.")
    if index is not None:
        from centerhash.index.index import Index, verify_index

        report["problems"] += verify_index(index)
        if not report["problems"]:
            with Index.open(index, read_only=True) as opened:
                facts = opened.info().items()
                report["index"] = {name: str(value) for name, value in facts if name != "labels"}
    return report


def _packages() -> Iterator[str]:
    """Yield the dependencies of centerhash, without those for its development."""
    extras = {extra.name for extra in EXTRAS.values()}
    for line in metadata.requires("centerhash") or []:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"](\w+)", line)
        if name is not None and name[0] != "centerhash" and (extra is None or extra[1] in extras):
            yield name[0]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
