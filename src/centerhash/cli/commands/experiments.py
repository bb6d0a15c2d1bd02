"""Whole experiments: the demo, its scenes, comparisons and settings of methods, the paper's tables and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import completion, console
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
    source,
    stands_alone,
    training,
)
from centerhash.core.errors import ConfigError, unknown_name


def demo(
    out: Annotated[Path, typer.Option(help="folder for scenes, runs and the report")] = Path("demo"),
    scenes: Annotated[int, typer.Option(min=50, help="number of emoji scenes")] = 2400,
    bits: Annotated[int, typer.Option(help="length of the codes")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="decides scenes, splits and trainings")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="epochs per method [default: train's]")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Run everything on embedded data: scenes, features, CSQ, E-WCS and ICS, and a report to look at.

    Example: `centerhash demo --out demo`
    """
    given: dict[str, Any] = dict(locals())  # by name, as `run_demo` takes them

    from centerhash.experiments.demo import run_demo

    with console.progress() as progress:
        result = run_demo(**given, progress=progress)
    console.say(result.table())
    console.say(f"report: {result.report}")


def scenes(
    out: Annotated[Path, typer.Argument(help="folder to write images/ and labels.csv into")],
    count: Annotated[int, typer.Option(min=1, help="number of scenes")] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="decides what is drawn")] = 0,
    size: Annotated[int, typer.Option(min=32, help="width and height in pixels")] = 224,
) -> None:
    """Write emoji scenes: images with known labels and the exact visible share of each label.

    Example: `centerhash scenes scenes --count 3000`
    """
    from reproduction.scenes import write_scenes

    with console.progress() as report:
        write_scenes(out, count, seed=seed, size=size, progress=report)
    console.say(f"{count:,} scenes in {out}: train on them with `centerhash train {out} --out run`")


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
            console.say(table)
        console.say(f"page: {folder / 'report.html'}")
    console.end_of_cells(failed, folder)


def tune(
    data: Annotated[Path, typer.Argument(help="folder with labels.csv and images, or with features.npy")],
    out: Annotated[Path, typer.Option(help="folder for results and best.json; finished trials are kept")],
    methods: MethodsOption = "all",
    bits: Annotated[int, typer.Option(help="length of the codes")] = 32,
    trials: Annotated[int, typer.Option(min=1, help="settings tried for each method")] = 12,
    full: Annotated[int, typer.Option(min=1, help="the best of them, trained again with all epochs")] = 3,
    epochs_part: Annotated[int, typer.Option(min=1, help="a trial has 1/N of the epochs")] = 3,
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
    from centerhash.experiments.bench import Source
    from centerhash.experiments.tune import BEST, Budget, point_text
    from centerhash.experiments.tune import tune as run

    budget, names = Budget(trials, full, epochs, epochs_part), read_methods(methods)
    source = Source(data, k, True, cache, device, skip_broken)
    with console.progress() as progress:
        found, failed = run(
            source, names, bits, out, budget, jobs=jobs, progress=progress, on_done=console.cell_done
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
        console.show(f"mAP of held-out training images, {bits} bits", heads, rows)
        console.say(f"settings: {out / BEST}")
    console.end_of_cells(failed, out)


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table-methods, table-ablation, pgd, beta, lambda, weights, instances, or all",
            autocompletion=completion.one_of(*completion.PARTS),
        ),
    ],
    data: Annotated[Path, typer.Option(help="folder of a data set, images or features")],
    out: Annotated[Path, typer.Option(help="folder for results and pages; what is finished there is kept")],
    bits: BitsOption = "16,32,64",
    seeds: SeedsOption = 3,
    methods: MethodsOption = "all",
    k: DepthOption = 5000,
    device: DeviceOption = "auto",
    results: Annotated[
        Path | None, typer.Option(help="folder of `centerhash compare` whose finished rows the tables take")
    ] = None,
    epochs: EpochsOption = None,
    option: SettingsOption = None,
    test_images: Annotated[
        Path | None, source("instances: measure on this data set, its classes by name")
    ] = None,
    exclude: Annotated[
        Path | None, source("instances: file of image names or ids to leave out, one per line")
    ] = None,
    validation: ValidationOption = False,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    jobs: JobsOption = 1,
) -> None:
    """Make a table or a figure of the paper on your data, the printed figures beside it; `all` for one report.

    Example: `centerhash reproduce lambda --data photos --out paper --seeds 1`
    """
    from centerhash.experiments.bench import Source
    from centerhash.experiments.paper.common import Settings
    from centerhash.experiments.paper.report import reproduce as make

    names = read_methods(methods)
    with console.progress() as progress:
        settings = Settings(
            source=Source(data, k, validation, cache, device, skip_broken),
            out=out,
            bits=tuple(read_bits(bits)),
            seeds=seeds,
            methods=None if methods.strip() == "all" else tuple(names),
            epochs=epochs,
            jobs=jobs,
            options=read_settings(option or [], names),
            results=results,
            test_images=test_images,
            exclude=exclude,
            progress=progress,
            on_done=console.cell_done,
            warn=console.warn,
        )
        done = make(what, settings)
    console.say(f"page: {done.page}")
    if done.failures:
        shown = "\n".join(f"  {text}" for text in done.failures)
        console.warn([f"some of it failed, all else is kept:\n{shown}\nThe same command tries again."])
        raise typer.Exit(1)


# What is asked for


def read_methods(text: str) -> list[str]:
    """Names of methods from `all` or `csq,ics`."""
    from centerhash.methods.registry import METHODS, get_method

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
    from centerhash.methods.registry import get_method
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
