"""What every experiment is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError
from centerhash.core.files import make_folder
from centerhash.experiments.grid import Cell, CellDone, Source, plan_cells
from centerhash.training.fitting import Reporter


@dataclass(frozen=True)
class Section:
    """One part of the report: a title, its HTML, and what failed on the way."""

    what: str
    title: str
    body: str
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What is trained on, where results go, and how much is asked for."""

    source: Source
    out: Path
    bits: tuple[int, ...] = (16, 32, 64)
    seeds: int = 3
    methods: tuple[str, ...] | None = None  # None: as each experiment wants
    epochs: int | None = None
    jobs: int = 1
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as `read_settings` returns them
    results: Path | None = None  # folder of `centerhash compare` whose finished rows are taken over
    test_images: Path | None = None
    exclude: Path | None = None
    report: Reporter | None = None
    on_cell: CellDone | None = None
    warn: Callable[[Sequence[str]], None] = lambda messages: None

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"--seeds must be at least 1, got {self.seeds}.")
        if self.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.jobs}.")
        if not self.bits:
            raise ConfigError("--bits is empty: give lengths of codes such as 16,32,64.")
        object.__setattr__(self, "bits", tuple(sorted(self.bits)))  # figures and tables rely on the order

    def folder(self, what: str) -> Path:
        """Where one experiment keeps its raw results and figures."""
        return make_folder(self.out / what)

    def chosen(self, what: str, methods: Sequence[str]) -> list[str]:
        """Those of an experiment's methods that were asked for; refused where none is."""
        kept = [name for name in methods if self.methods is None or name in self.methods]
        if not kept:
            raise ConfigError(
                f"{what} compares {', '.join(methods)}: name at least one of them in --methods."
            )
        return kept

    def cells(self, methods: Sequence[str], bits: Sequence[int] | None = None, **options: Any) -> list[Cell]:
        """The trainings of methods x bits x seeds; `options` are the method's, before those of the command."""
        own = {name: self._with(name, options) for name in methods}
        return plan_cells(methods, bits or self.bits, self.seeds, own, self.epochs)

    def cell(self, method: str, bits: int, seed: int = 0, **options: Any) -> Cell:
        """One training."""
        cells = plan_cells([method], [bits], seed + 1, {method: self._with(method, options)}, self.epochs)
        return cells[-1]

    def _with(self, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the command for a method, in which the experiment's own options stay as they are."""
        given = dict(self.options.get(method, {}))
        return {**given, "options": {**given.get("options", {}), **options}}
