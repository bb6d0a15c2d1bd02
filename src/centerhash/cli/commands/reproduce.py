"""The paper's tables and figures on the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import completion
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
)
from centerhash.cli.commands.experiments import read_bits, read_methods, read_settings


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
    from centerhash.cli import console
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
    console.out.print(f"page: {done.page}", soft_wrap=True)
    if done.failures:
        shown = "\n".join(f"  {text}" for text in done.failures)
        console.warn([f"some of it failed, all else is kept:\n{shown}\nThe same command tries again."])
        raise typer.Exit(1)
