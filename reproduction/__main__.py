"""`python -m reproduction`: the demo, the COCO features of the results, and the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import arguments, console
from centerhash.core.rendering import text_table

# The parts of the paper with their help texts. The module that runs them is slow to import; a test keeps both equal.
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
    help="The demo, the COCO features of the results, and the paper's tables and figures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder of report.html and results.json")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="seed of the training runs")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="epochs per method [default: train's]")] = None,
) -> None:
    """Train five methods on the sample of COCO and compare them with features, ITQ and a linear classifier.

    Example: `python -m reproduction demo --out demo`
    """
    from reproduction.demo import run_demo

    with console.progress() as progress:
        scores = run_demo(out, seed=seed, epochs=epochs, progress=progress)
    rows = [[row.title, str(row.bytes or ""), f"{row.map:.3f}", f"{row.precision:.3f}"] for row in scores]
    console.output(text_table("", ("", ">bytes", ">mAP", ">precision@10"), rows))
    console.output(f"report: {out / 'report.html'}")


RootOption = Annotated[Path, typer.Option(help="folder for the dataset; with coco2017 below it by default")]
PhotosOption = Annotated[Path | None, typer.Option(help="folder of the photos of train2017")]
AnnotationsOption = Annotated[Path | None, typer.Option(help="instances_train2017.json")]


@app.command()
def coco117k(
    root: RootOption,
    images: PhotosOption = None,
    annotations: AnnotationsOption = None,
    device: arguments.DeviceOption = "auto",
    cache: arguments.CacheOption = None,
) -> None:
    """Build the dataset of the stored table of all methods from COCO's photos: features, labels and HashNet's split.

    Example: `centerhash download coco2017 --root data`, then `python -m reproduction coco117k --root data`
    """
    from reproduction.coco117k import build

    with console.progress() as progress:
        folder = build(root, images, annotations, cache=cache, device=device, progress=progress)
    console.output(f"dataset: {folder}")


@app.command()
def coco29k(
    root: RootOption,
    images: PhotosOption = None,
    annotations: AnnotationsOption = None,
    every: Annotated[bool, typer.Option("--all", help="all photos, in the folder coco117k-photos")] = False,
) -> None:
    """Build the dataset of the stored tables of trained networks: 29,409 photos of COCO with HashNet's split.

    Example: `python -m reproduction coco29k --root data`
    """
    from reproduction.coco117k import build_photos

    console.output(f"dataset: {build_photos(root, images, annotations, every=every)}")


def reproduce(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="folder of a dataset, images or features")],
    out: Annotated[Path, typer.Option(help="folder for results and pages; finished work there is kept")],
    bits: arguments.BitsOption = "16,32,64",
    seeds: arguments.SeedsOption = 3,
    methods: arguments.MethodsOption = "all",
    k: arguments.DepthOption = 5000,
    device: arguments.DeviceOption = "auto",
    epochs: arguments.EpochsOption = None,
    options: arguments.SettingsOption = None,
    cache: arguments.CacheOption = None,
    jobs: arguments.JobsOption = 1,
) -> None:
    """Run the part of the paper that the command names, and write its page."""
    from centerhash.experiments.tasks import Source
    from reproduction.common import Settings
    from reproduction.report import reproduce as run

    names = arguments.read_methods(methods)
    with console.progress() as progress:
        settings = Settings(
            source=Source(data, k, cache=cache, device=device),
            out=out,
            bits=tuple(sorted(arguments.read_bits(bits))),
            seeds=seeds,
            methods=tuple(names),
            training={} if epochs is None else {"epochs": epochs},
            jobs=jobs,
            options=arguments.read_settings(options or [], names),
            progress=progress,
            warn=console.warn,
        )
        page, failures = run(context.info_name or "", settings)
    console.output(f"page: {page}")
    if failures:
        lines = "\n".join(f"  {text}" for text in failures)
        console.warn([f"some parts failed, everything else is kept:\n{lines}\nThe same command tries again."])
        raise typer.Exit(1)


for part, text in PARTS.items():
    example = f"Example: `python -m reproduction {part} --data photos --out paper --seeds 1`"
    app.command(part, help=f"{text}\n\n{example}")(reproduce)

if __name__ == "__main__":
    console.run(app, "python -m reproduction")
