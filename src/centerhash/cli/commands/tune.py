"""`centerhash tune`: settings of all methods, chosen with the same number of trials for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli.arguments import (
    CacheOption,
    DepthOption,
    DeviceOption,
    EpochsOption,
    JobsOption,
    MethodsOption,
    SkipBrokenOption,
)


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
    from centerhash.cli import console
    from centerhash.cli.commands.experiments import read_methods
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
        console.out.print(console.table(f"mAP of held-out training images, {bits} bits", heads, rows))
        console.out.print(f"settings: {out / BEST}", soft_wrap=True)
    if failed:
        console.warn([console.failed_cells(failed, out)])
        raise typer.Exit(1)
