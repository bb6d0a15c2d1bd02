"""Whole experiments: the demo, its scenes, comparisons of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli.arguments import stands_alone
from centerhash.cli.commands.shared import CacheOption, DeviceOption, SkipBrokenOption
from centerhash.core.errors import ConfigError


def demo(
    out: Annotated[Path, typer.Option(help="folder for scenes, runs and the report")] = Path("demo"),
    scenes: Annotated[int, typer.Option(min=50, help="number of emoji scenes")] = 2400,
    bits: Annotated[int, typer.Option(help="length of the codes")] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="epochs per method [default: train's]")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Run everything on embedded data: scenes, features, CSQ, E-WCS and ICS, and a report to look at.

    Example: `centerhash demo --out demo`
    """
    from centerhash.cli import console
    from centerhash.experiments.demo import run_demo

    with console.progress() as report:
        result = run_demo(
            out, scenes=scenes, bits=bits, seed=seed, epochs=epochs, device=device, report=report
        )
    console.out.print(result.table())
    console.out.print(f"report: {result.report}", soft_wrap=True)


def scenes(
    out: Annotated[Path, typer.Argument(help="folder to write images/ and labels.csv into")],
    count: Annotated[int, typer.Option(min=1, help="number of scenes")] = 3000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    size: Annotated[int, typer.Option(min=32, help="width and height in pixels")] = 224,
) -> None:
    """Write emoji scenes: images with known labels and the exact visible share of each label.

    Example: `centerhash scenes scenes --count 3000`
    """
    from centerhash.cli import console
    from centerhash.data.scenes.scenes import write_scenes

    with console.progress() as report:
        write_scenes(out, count, seed=seed, size=size, progress=report)
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
    methods: Annotated[str, typer.Option(help="all, or names such as csq,ics")] = "all",
    bits: Annotated[str, typer.Option(help="lengths of the codes")] = "16,32,64",
    seeds: Annotated[int, typer.Option(help="trainings of each, with seeds 0, 1, ...")] = 3,
    jobs: Annotated[int, typer.Option(help="trainings at the same time, sharing the processors")] = 1,
    validation: Annotated[
        bool, typer.Option(help="hold out a quarter of the training images: choose settings only there")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="of every training [default: train's]")] = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="depth of mAP")] = 5000,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="METHOD:NAME=VALUE, e.g. ics:lambda=0.2")
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: SkipBrokenOption = False,
    stored: Annotated[Path | None, typer.Option("--from", help="only make the tables of this folder")] = None,
) -> None:
    """Train and score methods x bits x seeds on one data set: tables, curves and times.

    Examples: `centerhash compare photos --methods csq,ics --bits 16,64 --out table`, `centerhash compare --from table`
    """
    from centerhash.cli import console
    from centerhash.experiments.comparison import read_failures, read_results, write_comparison
    from centerhash.experiments.tables import terminal_tables

    failed: list[dict[str, Any]] = []
    if stored is not None:
        stands_alone(context, "--from")
        folder, rows = stored, read_results(stored)
    elif data is None or out is None:
        raise ConfigError("compare takes a data folder and --out DIR, or --from DIR alone.")
    else:
        from centerhash.experiments import grid

        folder = out
        names = grid.read_methods(methods)
        settings = grid.read_settings(option or [], names)
        cells = grid.plan_cells(names, grid.read_bits(bits), seeds, settings, epochs)
        source = grid.Source(data, k, validation, cache, device, skip_broken)
        with console.progress() as report:
            rows, failed = grid.run_grid(
                source, cells, out, jobs=jobs, report=report, on_cell=console.cell_done, warn=console.warn
            )
    if rows:
        for table in terminal_tables(write_comparison(rows, folder, read_failures(folder))):
            console.out.print(table)
        console.out.print(f"page: {folder / 'report.html'}", soft_wrap=True)
    if failed:
        console.warn([console.failed_cells(failed, folder)])
        raise typer.Exit(1)
