"""Compare methods, and choose their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import flag, option
from centerhash.core.errors import ConfigError
from centerhash.core.extras import TRAINING, check_installed


def compare(
    context: typer.Context,
    data: Annotated[Path | None, arguments.DataArgument] = None,
    out: Annotated[Path | None, typer.Option(help="folder for results; finished runs are kept")] = None,
    methods: arguments.MethodsOption = "all",
    bits: arguments.BitsOption = "16,32,64",
    seeds: arguments.SeedsOption = 3,
    k: arguments.DepthOption = 5000,
    device: arguments.DeviceOption = "auto",
    stored: Annotated[Path | None, typer.Option("--from", help="only write this folder's tables")] = None,
    options: arguments.SettingsOption = None,
    settings: Annotated[
        Path | None, option("best.json of `centerhash tune`; options override it", panel="Training")
    ] = None,
    validation: arguments.ValidationOption = False,
    root: arguments.NamedRootOption = None,
    lists: arguments.ListsOption = None,
    skip_broken: arguments.SkipBrokenOption = False,
    cache: arguments.CacheOption = None,
    jobs: arguments.JobsOption = 1,
    keep: Annotated[bool, flag("--keep", "also store models and codes in OUT/runs", "Running")] = False,
    both_forms: Annotated[
        bool, flag("--both-forms", "also score logits as trained and rotated", "Running")
    ] = False,
) -> None:
    """Train and score methods x bits x seeds on one dataset: tables, curves and times.

    Options of training apply to every run. Features are computed once for all runs.

    Examples: `centerhash compare photos --methods csq,ics --bits 16,64 --out table`, `centerhash compare --from table`
    """
    check_installed(*TRAINING, "matplotlib", "pandas")

    from centerhash.experiments.compare import compare as run
    from centerhash.experiments.compare import planned_runs, read_results, write_comparison
    from centerhash.experiments.runner import read_failures
    from centerhash.experiments.tables import tables
    from centerhash.experiments.tasks import Source, plan_tasks, shared_backbone
    from centerhash.experiments.tune import read_best

    failed: list[dict[str, Any]] = []
    if stored is not None:
        if data is not None or out is not None or context.obj:
            raise ConfigError("--from stands alone: omit DATA, --out and the options of training.")
        folder, rows = stored, read_results(stored)
    elif data is None or out is None:
        raise ConfigError("compare takes DATA and --out DIR, or --from DIR alone.")
    else:
        folder, names, training = out, arguments.read_methods(methods), arguments.read_training(context.obj)
        points = None if settings is None else read_best(settings, names)
        per_method = arguments.read_settings(options or [], names)
        tasks = plan_tasks(names, arguments.read_bits(bits), seeds, per_method, training, points)
        network = shared_backbone(training)
        source = Source(data, k, validation, cache, device, skip_broken, root, lists, network)
        planned = len(planned_runs(tasks, out, keep))
        finished = f"; the other {len(tasks) - planned:,} are finished" if planned < len(tasks) else ""
        console.log(f"{planned:,} of {len(tasks):,} training runs to do{finished}")
        reporting: dict[str, Any] = {"on_done": console.report_task, "warn": console.warn, "jobs": jobs}
        with console.progress() as progress:
            rows, failed = run(
                source, tasks, out, keep=keep, both_forms=both_forms, progress=progress, **reporting
            )
    if rows:
        summary = write_comparison(rows, folder, read_failures(folder))
        for title, (first, *heads), lines in tables(summary):
            columns = [first, *(f">{head}" for head in heads)]
            console.table(f"{summary.first['data']}: {title}", columns, lines)
        console.output(summary.title)
        console.output(f"page: {folder / 'report.html'}")
        if keep:
            console.output(f"models and codes: {folder / 'runs'}")
    console.report_failures(failed, folder)


def tune(
    context: typer.Context,
    data: Annotated[Path, arguments.DataArgument],
    out: Annotated[Path, typer.Option(help="folder for results and best.json; finished trials are kept")],
    methods: arguments.MethodsOption = "all",
    bits: Annotated[int, typer.Option(help="length of the codes")] = 32,
    trials: Annotated[int, typer.Option(min=1, help="settings tried for each method")] = 12,
    full: Annotated[int, typer.Option(min=1, help="best settings trained again with all epochs")] = 3,
    epochs_part: Annotated[int, typer.Option(min=1, help="trials have 1/N of the epochs")] = 3,
    k: arguments.DepthOption = 5000,
    device: arguments.DeviceOption = "auto",
    root: arguments.NamedRootOption = None,
    lists: arguments.ListsOption = None,
    skip_broken: arguments.SkipBrokenOption = False,
    cache: arguments.CacheOption = None,
    jobs: arguments.JobsOption = 1,
) -> None:
    """Choose settings on held-out training images, with the same number of trials for every method.

    Options of training apply to every trial, and are then not tuned.

    Example: `centerhash tune photos --methods csq,dch --out tuned`, then
    `centerhash compare photos --methods csq,dch --settings tuned/best.json --out table`
    """
    check_installed(*TRAINING)

    from centerhash.experiments.tasks import Source, shared_backbone
    from centerhash.experiments.tune import BEST, Budget, point_text
    from centerhash.experiments.tune import tune as run

    training, names = arguments.read_training(context.obj), arguments.read_methods(methods)
    budget = Budget(trials, full, training.pop("epochs", None), epochs_part)
    network = shared_backbone(training)
    source = Source(data, k, True, cache, device, skip_broken, root, lists, network)
    reporting: dict[str, Any] = {"on_done": console.report_task, "warn": console.warn, "jobs": jobs}
    with console.progress() as progress:
        best, failed = run(
            source, names, bits, out, budget, training=training, progress=progress, **reporting
        )
    rows = []
    for name, (point, score, trial_score, default_score, count) in best.items():
        default = "failed" if default_score is None else f"{default_score:.4f}"
        rows.append((name, str(count), default, f"{trial_score:.4f}", f"{score:.4f}", point_text(point)))
    heads = ("method", ">trials", ">default", ">best", ">all epochs", "setting")
    if best:
        console.table(f"mAP of held-out training images, {bits} bits", heads, rows)
        console.output(f"settings: {out / BEST}")
    console.report_failures(failed, out)
