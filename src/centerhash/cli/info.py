"""List methods, networks and datasets; inspect a dataset and this installation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import JsonOption, NoLabelsOption, RootOption

if TYPE_CHECKING:
    from centerhash.data.inspection import Inspection

_MOST_CLASSES_SHOWN = 24


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="a method, to list its options", autocompletion=arguments.complete_methods),
    ] = None,
    bits: Annotated[
        int, typer.Option(min=8, max=1024, help="length of the codes: some defaults depend on it")
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """List the methods, or the options of one method with their defaults, for `train -o NAME=VALUE`.

    Examples: `centerhash methods`, `centerhash methods ics --bits 32`
    """
    from centerhash.core.options import options_of
    from centerhash.methods.registry import METHODS, get_method

    if name is None:
        summary = ("name", "title", "family", "uses_labels", "summary")
        rows = [{field: getattr(row, field) for field in summary} for row in METHODS.values()]
        console.records("methods", rows, summary, as_json)
        if not as_json:
            console.output("Options of a method: `centerhash methods NAME`")
        return
    method = get_method(name)
    fields = options_of(method.cls).model_fields
    described = {item.alias or keyword: item.description or "" for keyword, item in fields.items()}
    rows = [
        {"name": option, "default": value, "description": described[option]}
        for option, value in method.options({}, bits).items()
    ]
    title = f"{method.title}, defaults at {bits} bits"
    console.records(title, rows, ("name", "default", "description"), as_json)


def backbones(as_json: JsonOption = False) -> None:
    """List the backbone networks, and whether their weights are installed.

    Example: `centerhash backbones --json`
    """
    from centerhash.networks.backbones import backbone_rows

    columns = ("name", "features", "crop", "pool", "parameters", "weights_here")
    console.records("backbones", backbone_rows(), columns, as_json)
    if not as_json:
        console.output("Also timm:NAME, any network of timm; --weights FILE reads your own weights.")


def datasets(root: RootOption = Path("data"), as_json: JsonOption = False) -> None:
    """List the published datasets: classes, images, split, license, and which are under --root.

    Example: `centerhash datasets --root data`
    """
    from centerhash.data.published import DATASETS
    from centerhash.data.published.catalogue import describe

    rows = [describe(row, root) for row in DATASETS.values()]
    console.records("datasets", rows, ("name", "classes", "images", "path", "split", "license"), as_json)
    if not as_json:
        console.output(
            "Download one: `centerhash download NAME --root DIR`; more in docs/reference/datasets.md"
        )


def download(
    name: Annotated[
        str, typer.Argument(help="see `centerhash datasets`", autocompletion=arguments.complete_datasets)
    ],
    root: RootOption = Path("data"),
    mirror: Annotated[str | None, typer.Option(help="address to download from instead of the source")] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="keep the archives once unpacked")
    ] = False,
) -> None:
    """Download a published dataset, check and unpack it. The same command resumes after a stop.

    Example: `centerhash download flickr25k --root data`
    """
    from centerhash.data.published import get_dataset
    from centerhash.data.published.catalogue import download as download_archives
    from centerhash.data.published.catalogue import home_of

    row = get_dataset(name)
    with console.progress() as report:
        fetched = download_archives(
            row.files, root / row.folder, mirror=mirror, keep_archives=keep_archives, progress=report
        )
    complete = "all files were downloaded before" if row.files else "the files must be downloaded by hand"
    result = f"downloaded {', '.join(fetched)}" if fetched else complete
    console.output(f"{row.title}: {result}, in {root / row.folder}")
    if home_of(row, root) is None and row.by_hand:
        steps = (f"{number}. {step}" for number, step in enumerate(row.by_hand, 1))
        console.output("\n".join(["still to be done by hand:", *steps]))
    else:
        console.output(f"next: `centerhash train {row.name} --root {root} --out run`")


def doctor(
    index: Annotated[Path | None, typer.Argument(help="folder of an index to check")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print versions and engines for bug reports, and check an index and its model. Exit with 1 if there are problems.

    Examples: `centerhash doctor`, `centerhash doctor photos.index --json`
    """
    from centerhash.cli.doctor import diagnose

    report = diagnose(index)
    problems = report["problems"]
    if as_json:
        console.print_json(report)
    else:
        for title, facts in report.items():
            if title != "problems":
                console.output("\n".join([title, *(f"  {name}: {value}" for name, value in facts.items())]))
        console.output("\n".join(f"problem: {text}" for text in problems) or "no problems")
    if problems:
        raise typer.Exit(1)


def inspect(
    data: Annotated[Path, typer.Argument(help="a dataset of any layout")],
    images: Annotated[bool, typer.Option(help="decode every image, to find broken ones and copies")] = True,
    seed: Annotated[
        int, typer.Option(min=0, help="seed of splits that the data does not define, as in train")
    ] = 0,
    no_labels: NoLabelsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Report counts, classes, labels per image, splits, broken images and copies of a dataset.

    Example: `centerhash inspect photos`
    """
    from centerhash.data import open_dataset
    from centerhash.data.inspection import inspect_dataset

    dataset = open_dataset(data, seed=seed, labels=not no_labels)
    with console.progress() as report:
        inspection = inspect_dataset(dataset, images=images, progress=report)
    if as_json:
        console.print_json(asdict(inspection))
        return
    title = f"{inspection.name}: {inspection.images:,} rows of {inspection.kind}"
    console.table(title, ("", ">"), _overview(inspection))
    if inspection.classes:
        columns = ("class", ">images", ">train", ">query", ">database", "")
        console.table("classes", columns, _classes(inspection))
    if inspection.broken is not None:
        console.table("image files", ("", ""), _images(inspection))
    console.warn(inspection.warnings)
    console.output(f"next: `centerhash train {data} --out run`")


def _overview(inspection: Inspection) -> list[tuple[str, str]]:
    rows = [("classes", f"{len(inspection.classes):,}")]
    if inspection.classes:
        rows.append(("labels per image, mean", f"{inspection.labels_mean:.2f}"))
        for number, count in inspection.labels_per_image.items():
            rows.append((f"  images with {console.counted(number, 'label')}", f"{count:,}"))
    rows += [(f"split {name}", f"{size:,}") for name, size in inspection.splits.items()]
    rows += [(f"  in {names}", f"{size:,}") for names, size in inspection.overlaps.items()]
    return [*rows, ("splits are", inspection.splits_made)]


def _classes(inspection: Inspection) -> list[tuple[str, ...]]:
    """Return the rows of the classes by frequency; of many classes, the most frequent and the rarest."""
    ranked = sorted(inspection.classes, key=lambda entry: entry.images, reverse=True)
    rows: list[tuple[str, ...]] = []
    for entry in ranked:
        counts = (f"{count:,}" for count in (entry.images, entry.train, entry.query, entry.database))
        rows.append((entry.name, *counts, "█" * round(20 * entry.images / max(1, ranked[0].images))))
    hidden, half = len(rows) - _MOST_CLASSES_SHOWN, _MOST_CLASSES_SHOWN // 2
    if hidden > 0:
        rows[half:-half] = [(f"... {hidden:,} more", "", "", "", "", "")]
    return rows


def _images(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the rows of broken images and copies."""
    broken, copies = inspection.broken or {}, inspection.copies or ()
    rows = [("broken", f"{len(broken):,}"), *(("", reason) for reason in list(broken.values())[:5])]
    for case in copies:
        examples = ", ".join(f"{a} = {b}" for a, b in case.examples)
        rows.append(
            (f"{case.of} images that are copies of others in {case.among}", f"{case.count:,}: {examples}")
        )
    return rows if copies else [*rows, ("copies", "0")]
