"""The paper's tables and figures on the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli.commands.experiments import read_bits, read_methods, read_settings
from centerhash.cli.commands.shared import CacheOption, DeviceOption, SkipBrokenOption


def reproduce(
    what: Annotated[
        str,
        typer.Argument(help="table-methods, table-ablation, pgd, beta, lambda, weights, instances, or all"),
    ],
    data: Annotated[Path, typer.Option(help="folder of a data set, images or features")],
    out: Annotated[Path, typer.Option(help="folder for results and pages; what is finished there is kept")],
    bits: Annotated[str, typer.Option(help="lengths of the codes")] = "16,32,64",
    seeds: Annotated[int, typer.Option(min=1, help="trainings of each, with seeds 0, 1, ...")] = 3,
    methods: Annotated[str, typer.Option(help="all, or some of those that the part compares")] = "all",
    epochs: Annotated[int | None, typer.Option(help="of every training [default: train's]")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="trainings at the same time, sharing the processors")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="folder of `centerhash compare` whose finished rows the tables take")
    ] = None,
    test_images: Annotated[
        Path | None, typer.Option(help="instances: measure on this data set, its classes by name")
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="instances: file of image names or ids to leave out, one per line")
    ] = None,
    validation: Annotated[
        bool, typer.Option(help="hold out a quarter of the training images: choose settings only there")
    ] = False,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="depth of mAP")] = 5000,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="METHOD:NAME=VALUE, e.g. ics:gamma=0.2")
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: SkipBrokenOption = False,
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
