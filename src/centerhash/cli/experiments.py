"""Compare methods, and choose their settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import console
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
    option,
    read_bits,
    read_methods,
    read_settings,
    stands_alone,
)
from centerhash.core.errors import ConfigError
from centerhash.core.extras import TRAINING, check_installed


def compare(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="folder with labels.csv and images, or with features.npy")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for results, tables and page; finished runs are kept")
    ] = None,
    methods: MethodsOption = "all",
    bits: BitsOption = "16,32,64",
    seeds: SeedsOption = 3,
    k: DepthOption = 5000,
    device: DeviceOption = "auto",
    stored: Annotated[
        Path | None, typer.Option("--from", help="only write the tables of this folder")
    ] = None,
    epochs: EpochsOption = None,
    options: SettingsOption = None,
    settings: Annotated[
        Path | None,
        option(
            "best.json of `centerhash tune`: the setting of every method; --option overrides it",
            panel="Training",
        ),
    ] = None,
    validation: ValidationOption = False,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    jobs: JobsOption = 1,
    keep: Annotated[
        bool,
        option(
            "also store the model and the codes of every run, in OUT/runs", panel="Running", name="--keep"
        ),
    ] = False,
) -> None:
    """Train and score methods x bits x seeds on one dataset: tables, curves and times.

    Examples: `centerhash compare photos --methods csq,ics --bits 16,64 --out table`, `centerhash compare --from table`
    """
    check_installed(*TRAINING, "matplotlib", purpose="`centerhash compare`")

    from centerhash.experiments.compare import is_kept, read_results, train_and_evaluate, write_comparison
    from centerhash.experiments.runner import RESULTS, read_failures, read_rows, run_tasks, unfinished
    from centerhash.experiments.tables import terminal_tables
    from centerhash.experiments.tasks import Source, plan_tasks
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
        tasks = plan_tasks(names, read_bits(bits), seeds, read_settings(options or [], names), epochs, points)
        source = Source(data, k, validation, cache, device, skip_broken)
        is_complete = partial(is_kept, out) if keep else None
        planned = unfinished(tasks, read_rows(out / RESULTS), is_complete)
        console.report_planned(len(tasks), len(planned))
        with console.progress() as progress:
            rows, failed = run_tasks(
                source,
                tasks,
                out,
                partial(train_and_evaluate, keep=out) if keep else train_and_evaluate,
                jobs=jobs,
                progress=progress,
                on_done=console.report_task,
                warn=console.warn,
                is_complete=is_complete,
            )
    if rows:
        for table in terminal_tables(write_comparison(rows, folder, read_failures(folder))):
            console.output(table)
        console.output(f"page: {folder / 'report.html'}")
        if keep:
            console.output(f"models and codes: {folder / 'runs'}")
    console.report_failures(failed, folder)


def tune(
    data: Annotated[Path, typer.Argument(help="folder with labels.csv and images, or with features.npy")],
    out: Annotated[Path, typer.Option(help="folder for results and best.json; finished trials are kept")],
    methods: MethodsOption = "all",
    bits: Annotated[int, typer.Option(help="length of the codes")] = 32,
    trials: Annotated[int, typer.Option(min=1, help="settings tried for each method")] = 12,
    full: Annotated[int, typer.Option(min=1, help="best settings trained again with all epochs")] = 3,
    epochs_part: Annotated[int, typer.Option(min=1, help="trials have 1/N of the epochs")] = 3,
    k: DepthOption = 5000,
    device: DeviceOption = "auto",
    epochs: EpochsOption = None,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    jobs: JobsOption = 1,
) -> None:
    """Choose settings on held-out training images, with the same number of trials for every method.

    Example: `centerhash tune photos --methods csq,dch --out tuned`, then
    `centerhash compare photos --methods csq,dch --settings tuned/best.json --out table`
    """
    check_installed(*TRAINING, purpose="`centerhash tune`")

    from centerhash.experiments.tasks import Source
    from centerhash.experiments.tune import BEST, Budget, point_text
    from centerhash.experiments.tune import tune as run

    budget, names = Budget(trials, full, epochs, epochs_part), read_methods(methods)
    source = Source(data, k, True, cache, device, skip_broken)
    with console.progress() as progress:
        found, failed = run(
            source, names, bits, out, budget, jobs=jobs, progress=progress, on_done=console.report_task
        )
    rows = (
        (
            name,
            str(choice.trials),
            "failed" if choice.default is None else f"{choice.default:.4f}",
            f"{choice.part:.4f}",
            f"{choice.score:.4f}",
            point_text(choice.point),
        )
        for name, choice in found.items()
    )
    heads = ("method", ">trials", ">default", ">best", ">all epochs", "setting")
    if found:
        console.table(f"mAP of held-out training images, {bits} bits", heads, rows)
        console.output(f"settings: {out / BEST}")
    console.report_failures(failed, out)
