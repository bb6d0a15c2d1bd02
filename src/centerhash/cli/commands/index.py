"""Index images and search them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import completion, console
from centerhash.cli.arguments import DeviceOption, EngineOption, JsonOption, option
from centerhash.core.errors import ConfigError

if TYPE_CHECKING:
    from centerhash.search import Result

index_app = typer.Typer(
    help="Make an index of images, add to it, remove, look after it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
IndexArgument = Annotated[Path, typer.Argument(help="folder of the index", show_default=False)]


@index_app.command()
def create(
    index: IndexArgument,
    model: Annotated[
        str, typer.Option(help="folder of a finished run, the built-in model, or hf:owner/name; it is copied")
    ] = "coco",
    store: Annotated[
        str, option("where the items live: flat, or milvus:ADDRESS", completion.one_of(*completion.STORES))
    ] = "flat",
) -> None:
    """Make an empty index for the codes of the built-in model, or of a run's.

    Examples: `centerhash index create photos.index`, `centerhash index create photos.index --model run`
    """
    from centerhash.search import Index

    with Index.create(index, model, store=store) as made:
        bits, kind = made.model.bits, made.spec.store
    console.say(
        f"an empty index of {bits} bits ({kind}) in {index}  next: `centerhash index add {index} IMAGES`"
    )


@index_app.command()
def add(
    index: IndexArgument,
    images: Annotated[list[str], typer.Argument(help="images, folders, globs", show_default=False)],
    labels: Annotated[
        str | None,
        typer.Option(
            help="of the images: given (by labels.csv), predicted (by the model), none "
            "[default: given where there are any, else predicted]"
        ),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    batch: Annotated[int, typer.Option(min=1, help="images that are stored durably at a time")] = 256,
) -> None:
    """Add images; those that are there already, by content, are skipped, so the same command resumes.

    Example: `centerhash index add photos.index photos`
    """
    from centerhash.search import Index

    with Index.open(index, device=device, engine=engine) as opened, console.progress() as report:
        done = opened.add(images, labels=labels, batch=batch, progress=report)
        count, by = len(opened), console.features_by(opened.used_engine)
    console.added(done, f"{count:,} items in {index}{by}")


@index_app.command()
def remove(
    index: IndexArgument,
    items: Annotated[
        list[str] | None, typer.Argument(help="ids, or paths of images or folders", show_default=False)
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="all images whose file is gone")] = False,
) -> None:
    """Remove images by their ids or paths; also by paths of files that are gone. Your files stay.

    Examples: `centerhash index remove photos.index photos/old`, `centerhash index remove photos.index --missing`
    """
    from centerhash.search import Index

    if not items and not missing:
        raise ConfigError("say what to remove: ids, paths of images or folders, or --missing.")
    with Index.open(index) as opened:
        meant = opened.find([*(items or ()), *(opened.missing() if missing else ())])
        removed = opened.remove([id for ids in meant.values() for id in ids])
        count = len(opened)
    console.warn(
        [f"'{item}' is neither an id nor a path of this index." for item, ids in meant.items() if not ids]
    )
    console.say(f"{removed:,} items removed; {count:,} are left in {index}")


@index_app.command()
def info(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Say what is in an index: store, model, number of items, and how many carry each label.

    Example: `centerhash index info photos.index`
    """
    from centerhash.search import Index
    from centerhash.search.results import missing_text

    with Index.open(index, read_only=True) as opened:
        facts = opened.info()
    if as_json:
        console.print_json(facts)
        return
    console.warn([missing_text(index, facts["missing"])] if facts["missing"] else [])
    labels, details = facts.pop("labels"), facts.pop("details")
    rows = [
        (name, f"{value:,}" if type(value) is int else str(value))
        for name, value in {**facts, **details}.items()
    ]
    most = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    more = f", and {len(most) - 10:,} more labels" if len(most) > 10 else ""
    shown = ", ".join(f"{name} {count:,}" for name, count in most[:10]) + more or "none"
    console.show(str(index), ("", ""), [*rows, ("labels", shown)])


@index_app.command()
def verify(index: IndexArgument) -> None:
    """Read everything and say what is damaged, with exit code 1 when anything is; count images whose file is gone.

    Example: `centerhash index verify photos.index`
    """
    from centerhash.search import Index, verify_index
    from centerhash.search.results import missing_text

    problems = verify_index(index)
    for problem in problems:
        console.tell(f"damaged: {problem}")
    if problems:
        raise typer.Exit(1)
    with Index.open(index, read_only=True) as opened:
        gone = len(opened.missing())
    console.warn([missing_text(index, gone)] if gone else [])
    console.say(f"{index} is whole")


@index_app.command()
def compact(index: IndexArgument) -> None:
    """Give back the space of removed items.

    Example: `centerhash index compact photos.index`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        opened.compact()
        count = len(opened)
    console.say(f"{count:,} items in {index}")


@index_app.command("import")
def import_(
    index: IndexArgument,
    codes: Annotated[
        Path,
        typer.Argument(
            help="code file, or folder of parts, of `centerhash encode` by the same model, or a file of faiss",
            show_default=False,
        ),
    ],
) -> None:
    """Add codes without images; their names become their ids.

    Example: `centerhash index import photos.index codes.npz`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        done = opened.import_codes(codes)
        count = len(opened)
    console.say(f"{done.added:,} codes added, {done.known:,} were there already; {count:,} items in {index}")


@index_app.command()
def export(
    index: IndexArgument,
    out: Annotated[
        Path,
        typer.Argument(help="file to write, or for npy, faiss and pgvector a new folder", show_default=False),
    ],
    to: Annotated[
        str,
        option(
            "for whom: npz (`index import` and `evaluate`), npy, parquet, faiss, pgvector",
            completion.one_of(*completion.FORMATS),
        ),
    ] = "npz",
) -> None:
    """Write all codes with their ids, paths and labels, whole or not at all, for centerhash or other programs.

    Examples: `centerhash index export photos.index codes.npz`, `centerhash index export photos.index items --to pgvector`
    """
    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened, console.progress() as report:
        count = opened.export(out, to, progress=report)
    console.say(f"{count:,} codes in {out}")


def search(
    index: IndexArgument,
    image: Annotated[Path | None, typer.Argument(help="image to search by", show_default=False)] = None,
    id: Annotated[str | None, typer.Option(help="search by an item of the index instead")] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help='search by labels instead: "dog, bicycle" or "dog:0.7,bicycle:0.3"; a label with a comma stands '
            "in double quotes"
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="how many to show")] = 10,
    look: Annotated[bool, typer.Option("--look", help="by the look alone, whatever the labels")] = False,
    meaning: Annotated[
        bool, typer.Option("--meaning", help="by the semantic code alone, whatever the look")
    ] = False,
    having: Annotated[
        list[str] | None, typer.Option(help="show only items that carry this label; may be repeated")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="show no item that carries this label; may be repeated")
    ] = None,
    under: Annotated[Path | None, typer.Option(help="show only images in this folder")] = None,
    within: Annotated[int | None, typer.Option(min=0, help="show none farther than so many bits")] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find the images nearest to an image, to an item of the index, or to labels with weights.

    Examples: `centerhash search photos.index photo.jpg`, `centerhash search photos.index --labels "dog, car" -k 20`
    """
    from centerhash.search import Index
    from centerhash.search.names import match

    if sum(given is not None for given in (image, id, labels)) != 1:
        raise ConfigError("search by one thing: an IMAGE, --id or --labels.")
    if look and meaning:
        raise ConfigError("search by one of --look and --meaning, or by both without naming any.")
    with Index.open(index, read_only=True, device=device, engine=engine) as opened:
        results = opened.search(
            image,
            id=id,
            labels=labels,
            k=k,
            by="visual" if look else "semantic" if meaning else "both",
            having=having or (),
            without=without or (),
            under=under,
            within=within,
        )
        known = [*opened.labels(), *opened.model_info.classes] if having or without else []
        by = console.features_by(opened.used_engine)
    if as_json:
        console.print_json(results.to_dict())
        return
    asked = [*(having or ()), *(without or ())]
    console.warn(
        [f"no item of the index carries the label '{name}'." for name in asked if match(name, known) is None]
    )
    if results.labels:
        shown = ", ".join(f"{row.label} {row.weight:.2f}" for row in results.labels)
        console.say(f"query: {shown}")
    looks = any(row.visual is not None for row in results)
    heads = (">distance", *([">look"] if looks else []), "id", "labels", "path")
    rows = []
    for row in results:
        numbers = [str(row.distance), "-" if row.visual is None else str(row.visual)][: 1 + looks]
        rows.append((*numbers, row.id, _labels_shown(row), row.path or "-"))
    console.show(f"{len(results):,} results{by}", heads, rows)


def _labels_shown(row: Result) -> str:
    """The labels of a result with their shares, in percent, as far as they are known; then others asked for."""
    share = row.share or {}
    names = dict.fromkeys((*row.labels, *share))
    return ", ".join(f"{name} {share[name]:.0%}" if name in share else name for name in names)
