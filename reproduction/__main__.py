"""`python -m reproduction`: the demo, its emoji scenes, the COCO features, and the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
)

# the parts of the paper, with what they make; importing the module that runs them takes seconds, a test keeps both equal
PARTS = {
    "table-methods": "Make Tables 2 and 3: mAP of all methods, with the printed results next to yours.",
    "table-ablation": "Make Table 4: equal weights against instance weights.",
    "pgd": "Draw Fig. 2: convergence of the weight solver, and its times.",
    "beta": "Draw Fig. 5: mAP and weights against the parameter beta.",
    "lambda": "Draw Fig. 4 and 6: mAP and weights against the parameter lambda.",
    "weights": "Draw Fig. 3: images with the weight of each label.",
    "instances": "Compare weights with the areas of the labels, which the paper does not.",
    "all": "Run everything, on one page.",
}

app = typer.Typer(
    name="reproduction",
    help="The demo, its emoji scenes, the COCO features of the results, and the paper's tables and figures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for scenes, runs and the report")] = Path("demo"),
    scenes: Annotated[int, typer.Option(min=50, help="number of emoji scenes")] = 2400,
    bits: Annotated[int, typer.Option(help="length of the codes")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="decides scenes, splits and training runs")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="epochs per method [default: train's]")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Run everything on emoji scenes: features, CSQ, E-WCS, ICS and ICS-softmax, the built-in model, and a report.

    Example: `python -m reproduction demo --out demo`
    """
    from reproduction.demo import run_demo

    with console.progress() as report:
        result = run_demo(
            out, scenes=scenes, bits=bits, seed=seed, epochs=epochs, device=device, progress=report
        )
    console.output(result.table())
    console.output(f"report: {result.report}")


@app.command()
def scenes(
    out: Annotated[Path, typer.Argument(help="folder to write images/ and labels.csv into")],
    count: Annotated[int, typer.Option(min=1, help="number of scenes")] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="decides what is drawn")] = 0,
    size: Annotated[int, typer.Option(min=32, help="width and height in pixels")] = 224,
) -> None:
    """Draw emoji scenes: images with known labels and the exact visible share of each label.

    Example: `python -m reproduction scenes scenes --count 3000`
    """
    from reproduction.scenes import write_scenes

    with console.progress() as report:
        write_scenes(out, count, seed=seed, size=size, progress=report)
    console.output(f"{count:,} scenes in {out}: train on them with `centerhash train {out} --out run`")


PhotosOption = Annotated[
    Path | None, typer.Option(help="folder of the photos of train2017, instead of a download of 19 GB")
]
AnnotationsOption = Annotated[
    Path | None, typer.Option(help="instances_train2017.json, instead of a download of 0.3 GB")
]
MirrorOption = Annotated[str | None, typer.Option(help="address to download from instead of COCO's")]


@app.command()
def coco117k(
    root: Annotated[Path, typer.Option(help="folder for the downloads and for the folder coco117k")],
    images: PhotosOption = None,
    annotations: AnnotationsOption = None,
    mirror: MirrorOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
) -> None:
    """Build the dataset of the stored table of all methods from COCO's photos: features, labels and HashNet's split.

    The same command resumes after a stop.

    Example: `python -m reproduction coco117k --root data`, then
    `centerhash compare data/coco117k --methods all --seeds 3 --out table`
    """
    from reproduction.coco117k import build

    with console.progress() as report:
        folder = build(
            root,
            images=images,
            annotations=annotations,
            mirror=mirror,
            cache=cache,
            device=device,
            progress=report,
            log=console.log,
        )
    console.output(
        f"dataset: {folder}  next: `centerhash compare {folder} --methods all --seeds 3 --out table`"
    )


@app.command()
def coco29k(
    root: Annotated[Path, typer.Option(help="folder for the downloads and for the folder coco29k")],
    images: PhotosOption = None,
    annotations: AnnotationsOption = None,
    mirror: MirrorOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="all 117,266 photos, in the folder coco117k-photos")
    ] = False,
) -> None:
    """Build the dataset of the stored tables of trained networks: 29,409 photos of COCO with HashNet's split.

    Example: `python -m reproduction coco29k --root data`, then
    `centerhash compare data/coco29k --finetune last --methods csq,ics --bits 64 --seeds 1 --out table`
    """
    from reproduction.coco117k import build_photos

    with console.progress() as report:
        folder = build_photos(
            root,
            images=images,
            annotations=annotations,
            mirror=mirror,
            every=every,
            progress=report,
            log=console.log,
        )
    console.output(
        f"dataset: {folder}  next: `centerhash compare {folder} --finetune last --methods csq,ics --bits 64 --seeds 1 "
        "--out table`"
    )


def reproduce(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="folder of a dataset, images or features")],
    out: Annotated[Path, typer.Option(help="folder for results and pages; finished work there is kept")],
    bits: BitsOption = "16,32,64",
    seeds: SeedsOption = 3,
    methods: MethodsOption = "all",
    k: DepthOption = 5000,
    device: DeviceOption = "auto",
    results: Annotated[
        Path | None,
        typer.Option(help="tables: folder of `centerhash compare` whose finished rows are copied"),
    ] = None,
    epochs: EpochsOption = None,
    options: SettingsOption = None,
    test_images: Annotated[
        Path | None, option("instances: evaluate on this dataset, its classes by name", panel="Data")
    ] = None,
    exclude: Annotated[
        Path | None, option("instances: file of image names or ids to skip, one per line", panel="Data")
    ] = None,
    validation: ValidationOption = False,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    jobs: JobsOption = 1,
) -> None:
    """Run one part of the paper, named by the command, and write its page."""
    from centerhash.experiments.tasks import Source
    from reproduction.common import Settings
    from reproduction.report import reproduce as run

    names = read_methods(methods)
    with console.progress() as report:
        settings = Settings(
            source=Source(data, k, validation, cache, device, skip_broken),
            out=out,
            bits=tuple(sorted(read_bits(bits))),
            seeds=seeds,
            methods=None if methods.strip() == "all" else tuple(names),
            epochs=epochs,
            jobs=jobs,
            options=read_settings(options or [], names),
            results=results,
            test_images=test_images,
            exclude=exclude,
            progress=report,
            on_done=console.report_task,
            warn=console.warn,
        )
        done = run(context.info_name or "", settings)
    console.output(f"page: {done.page}")
    if done.failures:
        shown = "\n".join(f"  {text}" for text in done.failures)
        console.warn([f"some parts failed, everything else is kept:\n{shown}\nThe same command tries again."])
        raise typer.Exit(1)


for name, made in PARTS.items():
    example = f"Example: `python -m reproduction {name} --data photos --out paper --seeds 1`"
    app.command(name, help=f"{made}\n\n{example}")(reproduce)

if __name__ == "__main__":
    console.run(app, "python -m reproduction")
