"""Whole experiments: the demo, its scenes, comparisons of methods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli.arguments import (
    BitsOption,
    CacheOption,
    DepthOption,
    DeviceOption,
    EpochsOption,
    JobsOption,
    MethodsOption,
    SeedsOption,
    SettingsOption,
    SkipBrokenOption,
    ValidationOption,
    stands_alone,
    training,
)
from centerhash.core.errors import ConfigError, unknown_name

HardOption = Annotated[
    bool,
    typer.Option("--hard", help="small, partly hidden objects in any colour among things that resemble them"),
]


def demo(
    out: Annotated[Path, typer.Option(help="folder for scenes, runs and the report")] = Path("demo"),
    scenes: Annotated[int, typer.Option(min=50, help="number of emoji scenes")] = 2400,
    bits: Annotated[int, typer.Option(help="length of the codes")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="decides scenes, splits and trainings")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="epochs per method [default: train's]")] = None,
    hard: HardOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Run everything on embedded data: scenes, features, CSQ, E-WCS and ICS, and a report to look at.

    Example: `centerhash demo --out demo`
    """
    from centerhash.cli import console
    from centerhash.experiments.demo import run_demo

    with console.progress() as progress:
        result = run_demo(
            out,
            scenes=scenes,
            bits=bits,
            seed=seed,
            epochs=epochs,
            hard=hard,
            device=device,
            progress=progress,
        )
    console.out.print(result.table())
    console.out.print(f"report: {result.report}", soft_wrap=True)


def scenes(
    out: Annotated[Path, typer.Argument(help="folder to write images/ and labels.csv into")],
    count: Annotated[int, typer.Option(min=1, help="number of scenes")] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="decides what is drawn")] = 0,
    size: Annotated[int, typer.Option(min=32, help="width and height in pixels")] = 224,
    hard: HardOption = False,
) -> None:
    """Write emoji scenes: images with known labels and the exact visible share of each label.

    Example: `centerhash scenes scenes --count 3000`
    """
    from centerhash.cli import console
    from centerhash.data.scenes.scenes import write_scenes

    with console.progress() as report:
        write_scenes(out, count, seed=seed, size=size, hard=hard, progress=report)
    console.out.print(
        f"{count:,} scenes in {out}: train on them with `centerhash train {out} --out run`", soft_wrap=True
    )


def compare(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="folder with labels.csv and images, or with features.npy")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for results, tables and page; finished cells there are kept")
    ] = None,
    methods: MethodsOption = "all",
    bits: BitsOption = "16,32,64",
    seeds: SeedsOption = 3,
    k: DepthOption = 5000,
    device: DeviceOption = "auto",
    stored: Annotated[Path | None, typer.Option("--from", help="only make the tables of this folder")] = None,
    epochs: EpochsOption = None,
    option: SettingsOption = None,
    settings: Annotated[
        Path | None,
        training("best.json of `centerhash tune`: the setting of every method; --option still counts"),
    ] = None,
    validation: ValidationOption = False,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    jobs: JobsOption = 1,
) -> None:
    """Train and score methods x bits x seeds on one data set: tables, curves and times.

    Examples: `centerhash compare photos --methods csq,ics --bits 16,64 --out table`, `centerhash compare --from table`
    """
    from centerhash.cli import console
    from centerhash.experiments.bench import Source, plan_tasks
    from centerhash.experiments.compare import measure, read_results, write_comparison
    from centerhash.experiments.runner import left_over, read_failures, run_tasks, stored_rows
    from centerhash.experiments.tables import terminal_tables
    from centerhash.experiments.tune import read_best

    failed: list[dict[str, Any]] = []
    if stored is not None:
        stands_alone(context, "--from")
        folder, rows = stored, read_results(stored)
    elif data is None or out is None:
        raise ConfigError("compare takes a data folder and --out DIR, or --from DIR alone.")
    else:
        folder, names = out, read_methods(methods)
        points = None if settings is None else read_best(settings, names)
        tasks = plan_tasks(names, read_bits(bits), seeds, read_settings(option or [], names), epochs, points)
        source = Source(data, k, validation, cache, device, skip_broken)
        console.planned(len(tasks), len(left_over(tasks, stored_rows(out))))
        with console.progress() as progress:
            rows, failed = run_tasks(
                source,
                tasks,
                out,
                measure,
                jobs=jobs,
                progress=progress,
                on_done=console.cell_done,
                warn=console.warn,
            )
    if rows:
        for table in terminal_tables(write_comparison(rows, folder, read_failures(folder))):
            console.out.print(table)
        console.out.print(f"page: {folder / 'report.html'}", soft_wrap=True)
    if failed:
        console.warn([console.failed_cells(failed, folder)])
        raise typer.Exit(1)


# What is asked for, also of `reproduce`


def read_methods(text: str) -> list[str]:
    """Names of methods from `all` or `csq,ics`."""
    from centerhash.methods.table import METHODS, get_method

    names = list(METHODS) if text.strip() == "all" else _listed(text)
    for name in names:
        get_method(name)
    if not names:
        raise ConfigError("nothing to compare: --methods is empty. Give for example --methods csq,ics.")
    return names


def read_bits(text: str) -> list[int]:
    """Lengths of codes from `16,32,64`."""
    try:
        bits = [int(part) for part in _listed(text)]
    except ValueError:
        bits = []
    if not bits:
        raise ConfigError(f"--bits takes lengths of codes such as 16,32,64, got '{text}'.")
    return bits


def _listed(text: str) -> list[str]:
    """The parts of a list with commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def read_settings(texts: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings per method from METHOD:NAME=VALUE texts: options of the method, or of training.

    `all` stands for every method of the grid; training settings such as learning_rate or head take json.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = (part.strip() for part in text.partition("="))
        method, colon, name = (part.strip() for part in left.rpartition(":"))  # a method may be file.py:Class
        if not (colon and equals and method and name):
            raise ConfigError(f"--option takes METHOD:NAME=VALUE, such as ics:lambda=0.2, got '{text}'.")
        for target in methods if method == "all" else [method]:
            if target not in methods:
                raise unknown_name(
                    "method in --option", target, [*methods, "all"], "It must be in --methods."
                )
            _set(settings.setdefault(target, {}), target, name, value)
    return settings


def _set(chosen: dict[str, Any], method: str, name: str, value: str) -> None:
    from centerhash.core.options import option_names
    from centerhash.methods.table import get_method
    from centerhash.training.config import TrainConfig

    # decided by the grid itself, or, for the backbone, the same for all
    fixed = ("method", "bits", "seed", "backbone", "crop", "pool", "options")
    training = [known for known in TrainConfig.model_fields if known not in fixed]
    options = option_names(get_method(method).options_class())
    if name in options:
        chosen.setdefault("options", {})[name] = value
    elif name in training:
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            chosen[name] = value
    else:
        raise unknown_name(f"option of method '{method}' or of training", name, [*options, *training])
