"""The command line: one thin command per verb. Imports what is slow only inside the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash import __version__
from centerhash.arguments import read_pairs, read_widths, stands_alone
from centerhash.errors import CenterhashError, ConfigError

app = typer.Typer(
    name="centerhash",
    help="Compact binary codes for multi-label images, learned around hash centers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

DeviceOption = Annotated[str, typer.Option(help="auto (the GPU where there is one), cpu, cuda, cuda:1, mps")]
CacheOption = Annotated[
    Path | None, typer.Option(help="folder of the feature cache [default: $CENTERHASH_CACHE or ~/.cache]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print json for machines instead of a table")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"centerhash {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Compact binary codes for multi-label images, learned around hash centers."""


@app.command()
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
    from centerhash import console
    from centerhash.experiments.demo import run_demo

    with console.progress() as report:
        result = run_demo(
            out, scenes=scenes, bits=bits, seed=seed, epochs=epochs, device=device, report=report
        )
    console.out.print(result.table())
    console.out.print(f"report: {result.report}", soft_wrap=True)


@app.command()
def scenes(
    out: Annotated[Path, typer.Argument(help="folder to write images/ and labels.csv into")],
    count: Annotated[int, typer.Option(min=1, help="number of scenes")] = 3000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    size: Annotated[int, typer.Option(min=32, help="width and height in pixels")] = 224,
) -> None:
    """Write emoji scenes: images with known labels and the exact visible share of each label.

    Example: `centerhash scenes scenes --count 3000`
    """
    from centerhash import console
    from centerhash.data.scenes import write_scenes

    with console.progress() as report:
        write_scenes(
            out, count, seed=seed, size=size, progress=lambda done, total: report("scenes", done, total)
        )
    console.out.print(f"{count:,} scenes in {out}: train on them with `centerhash train {out} --out run`")


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="folder with labels.csv and images, or with features.npy")],
    out: Annotated[Path, typer.Option(help="folder of the run; the same command goes on where it stopped")],
    method: Annotated[str, typer.Option(help="see `centerhash methods`")] = "ics-softmax",
    bits: Annotated[int, typer.Option(help="length of the codes, 8 to 1024")] = 64,
    seed: Annotated[int, typer.Option(help="decides splits, centers, initial weights and order")] = 0,
    epochs: Annotated[int | None, typer.Option(help="passes over the training images [default: 30]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="images per step [default: 256]")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="[default: 0.004, or as the method wants]")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="decoupled, as in AdamW [default: 0.0001]")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="of the learning rate: cosine, steps, constant [default: cosine]")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help="widths of the head's hidden layers, e.g. 1024 or 2048,512; 0 for none")
    ] = None,
    centers: Annotated[
        str | None, typer.Option(help="kind of hash centers: auto, hadamard, spread, random")
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(help="of centers to classes: cooccurrence (classes that share images) or random"),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="option of the method, e.g. -o lambda=0.2")
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: Annotated[bool, typer.Option(help="leave out images that cannot be read")] = False,
    overwrite: Annotated[bool, typer.Option(help="start anew when --out holds another run")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="least time between checkpoints")] = 20.0,
) -> None:
    """Train a model on your images or features, and encode queries and database.

    Example: `centerhash train photos --method ics --bits 64 --out run`
    """
    from centerhash import console
    from centerhash.data import open_dataset
    from centerhash.features import default_cache
    from centerhash.options import read_options
    from centerhash.runs import train as run_training
    from centerhash.train import TrainConfig

    given: dict[str, Any] = {
        "method": method,
        "bits": bits,
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "centers": centers,
        "assignment": assignment,
        "head": None if hidden is None else {"hidden": read_widths(hidden)},
        "options": read_pairs(option or []),
    }
    config = read_options(TrainConfig, {k: v for k, v in given.items() if v is not None}, "training")
    dataset = open_dataset(data, seed=seed)
    console.warn(dataset.warnings)
    with console.progress() as report:
        run_training(
            dataset,
            config,
            out,
            cache=cache or default_cache(),
            device=device,
            overwrite=overwrite,
            skip_broken=skip_broken,
            checkpoint_seconds=checkpoint_seconds,
            report=report,
        )
    console.out.print(f"run: {out}  next: `centerhash evaluate {out}`", soft_wrap=True)


@app.command()
def evaluate(
    codes: Annotated[
        list[Path], typer.Argument(help="the folder of a run, or two code files: QUERY.npz DATABASE.npz")
    ],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="depth of mAP, NDCG, ACG and WAP")] = 5000,
    exclude_self: Annotated[bool, typer.Option(help="a query never retrieves its own database item")] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the permutation that breaks ties")] = 0,
    curve: Annotated[bool, typer.Option(help="also print precision and recall by Hamming radius")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score codes: mAP in both conventions with its chance level, precision, NDCG, ACG, WAP.

    Examples: `centerhash evaluate run`, `centerhash evaluate query.npz database.npz --json`
    """
    from centerhash import console
    from centerhash.codefiles import evaluate_codes, read_evaluation_codes

    result = evaluate_codes(read_evaluation_codes(codes), k=k, exclude_self=exclude_self, seed=seed)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    console.out.print(console.evaluation_table(result, ", ".join(str(path) for path in codes)))
    if curve:
        console.out.print(console.curve_table(result))
    for note in console.evaluation_notes(result):
        console.out.print(note)


@app.command()
def encode(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    images: Annotated[
        list[str],
        typer.Argument(help="images, folders, globs, a data set with labels.csv, or a features .npy"),
    ],
    out: Annotated[Path, typer.Option(help="code file to write (.npz)")],
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: Annotated[bool, typer.Option(help="leave out images that cannot be read")] = False,
) -> None:
    """Encode images into packed binary codes.

    Example: `centerhash encode run photos/*.jpg --out codes.npz`
    """
    from centerhash import console
    from centerhash.codefiles import encode_to_file
    from centerhash.features import default_cache
    from centerhash.model import HashModel

    model = HashModel.load(run)
    with console.progress() as report:
        written = encode_to_file(
            model,
            images,
            out,
            cache=cache or default_cache(),
            device=device,
            skip_broken=skip_broken,
            progress=lambda done, total: report("features", done, total),
        )
    console.warn(written.warnings)
    console.out.print(f"{written.count:,} codes of {model.bits} bits in {out}", soft_wrap=True)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    images: Annotated[list[str], typer.Argument(help="images, folders or globs")],
    top: Annotated[int, typer.Option(min=1, help="how many centers to show at least")] = 5,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say what an image shows: predicted labels with their weights, and the nearest centers.

    Example: `centerhash explain run photo.jpg`
    """
    from rich.table import Table

    from centerhash import console
    from centerhash.data import list_images
    from centerhash.model import HashModel

    model = HashModel.load(run)
    paths = list_images(images)
    answers = model.explain(model.features_of(paths, device=device), top=top)
    if as_json:
        rows = [
            {"image": str(p), "labels": [vars(a) for a in found]}
            for p, found in zip(paths, answers, strict=True)
        ]
        typer.echo(json.dumps(rows))
        return
    for path, found in zip(paths, answers, strict=True):
        table = Table(title=str(path), title_justify="left")
        for column in ("label", "weight", "", "similarity", "Hamming distance"):
            table.add_column(column, justify="left" if column in ("label", "") else "right")
        for row in found:
            weight = f"{row.weight:.2f}" if row.weight else "-"
            bar = "█" * round(20 * row.weight)
            table.add_row(row.label, weight, bar, f"{row.similarity:+.2f}", str(row.distance))
        console.out.print(table)


@app.command()
def methods(
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print docs/methods.md")] = False,
) -> None:
    """List the methods: family, paper, year, and what they do with several labels."""
    if markdown:
        from centerhash.methods_page import methods_page

        typer.echo(methods_page(), nl=False)
        return
    from centerhash import console
    from centerhash.methods import METHODS

    shown = ("name", "title", "family", "year", "uses_labels", "multi_label", "paper")
    rows = [{column: getattr(row, column) for column in shown} for row in METHODS.values()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    console.out.print(console.methods_table())
    console.out.print("Options of a method: `centerhash options NAME`")


@app.command()
def options(
    method: Annotated[str, typer.Argument(help="name of a method")],
    bits: Annotated[int, typer.Option(help="length of the codes: some defaults depend on it")] = 64,
) -> None:
    """List the options of one method with their defaults, to be set by `train -o NAME=VALUE`.

    Example: `centerhash options ics`
    """
    from rich.table import Table

    from centerhash import console
    from centerhash.methods import get_method

    row = get_method(method)
    resolved = row.options({}, bits)
    table = Table(title=f"{row.title}, defaults at {bits} bits", title_justify="left")
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    for name, item in type(resolved).model_fields.items():
        table.add_row(item.alias or name, str(getattr(resolved, name)), item.description or "")
    console.out.print(table)


@app.command()
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
    skip_broken: Annotated[bool, typer.Option(help="leave out images that cannot be read")] = False,
    stored: Annotated[Path | None, typer.Option("--from", help="only make the tables of this folder")] = None,
) -> None:
    """Train and score methods x bits x seeds on one data set: tables, curves and times.

    Examples: `centerhash compare photos --methods csq,ics --bits 16,64 --out table`, `centerhash compare --from table`
    """
    from centerhash import console
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


def main() -> None:
    """Run the command line: errors of ours end with exit code 2 and one message, never a traceback."""
    try:
        app()
    except CenterhashError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as ended:
        if ended.code == 130:  # what typer makes of an interrupt
            print("interrupted: the same command goes on where it stopped.", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
