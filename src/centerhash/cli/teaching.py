"""Teach labels by examples, and look after taught labels."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import console
from centerhash.cli.arguments import JsonOption

if TYPE_CHECKING:
    from centerhash.search import Result

IndexArgument = Annotated[Path, typer.Argument(help="folder of the index", show_default=False)]
NameArgument = Annotated[str, typer.Argument(help="name of the label", show_default=False)]

taught_app = typer.Typer(
    help="List, rename, remove, export and import taught labels, and suggest further examples.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def teach(
    index: IndexArgument,
    name: NameArgument,
    like: Annotated[
        list[str] | None,
        typer.Option(help="id or path of an image that shows it, or a folder of them; may be repeated"),
    ] = None,
    unlike: Annotated[
        list[str] | None,
        typer.Option(help="id or path of an image that does not show it, or a folder; may be repeated"),
    ] = None,
) -> None:
    """Teach a label by examples in the index; more examples improve it. No image is encoded again.

    Example: `centerhash index teach photos.index Bella --like photos/bella --unlike photos/rex.jpg`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        taught = opened.teach(name, like or (), unlike or ())
        count = len(opened)
    examples = f"examples ({len(taught.like):,} like it, {len(taught.unlike):,} unlike it)"
    console.output(
        f"'{taught.name}' was learned from {examples}; {taught.items:,} of {count:,} items carry it"
    )
    console.output(
        f"next: `centerhash search {index} --labels {quote(taught.name)}`, or check "
        f"`centerhash index taught suggest {index} {quote(taught.name)}`"
    )


@taught_app.command("list")
def list_(index: IndexArgument, as_json: JsonOption = False) -> None:
    """List the taught labels with their examples and the number of items that carry them.

    Example: `centerhash index taught list photos.index`
    """
    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened:
        labels = list(opened.taught().values())
    if as_json:
        console.print_json([label.to_dict() for label in labels])
        return
    rows = [(one.name, f"{len(one.like):,}", f"{len(one.unlike):,}", f"{one.items:,}") for one in labels]
    console.table(f"{len(labels):,} taught labels", ("label", ">like", ">unlike", ">items"), rows)


@taught_app.command()
def suggest(
    index: IndexArgument,
    name: NameArgument,
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=1000, help="how many to show")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show items whose confirmation or rejection improves a label: the likeliest and the most uncertain.

    Example: `centerhash index taught suggest photos.index Bella`
    """
    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened:
        found = opened.suggest(name, k)
    if as_json:
        console.print_json(found.to_dict())
        return

    def row(kind: str, one: Result) -> tuple[str, ...]:
        return (kind, f"{(one.probability or {})[found.name]:.2f}", one.id, one.path or "-")

    rows = [row("likely", one) for one in found.likely] + [row("uncertain", one) for one in found.uncertain]
    console.table(f"is it '{found.name}'?", ("kind", ">probability", "id", "path"), rows)
    console.output(f"next: `centerhash index teach {index} {quote(found.name)} --like ID --unlike ID`")


@taught_app.command()
def rename(
    index: IndexArgument,
    name: NameArgument,
    new: Annotated[str, typer.Argument(help="its new name", show_default=False)],
) -> None:
    """Rename a taught label.

    Example: `centerhash index taught rename photos.index Bella "Bella the dog"`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        opened.rename_taught(name, new)
    console.output(f"'{name}' is now '{new}'")


@taught_app.command()
def remove(index: IndexArgument, name: NameArgument) -> None:
    """Remove a taught label; the images that carried it stay.

    Example: `centerhash index taught remove photos.index Bella`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        opened.forget(name)
    console.output(f"'{name}' is removed")


@taught_app.command()
def export(
    index: IndexArgument, out: Annotated[Path, typer.Argument(help="json file to write", show_default=False)]
) -> None:
    """Write all taught labels with the codes of their examples, for another index of the same model.

    Example: `centerhash index taught export photos.index labels.json`
    """
    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened:
        count = opened.export_taught(out)
    console.output(f"{count:,} taught labels in {out}")


@taught_app.command("import")
def import_(
    index: IndexArgument,
    file: Annotated[Path, typer.Argument(help="file of `index taught export`", show_default=False)],
) -> None:
    """Add the taught labels of another index of the same model.

    Example: `centerhash index taught import photos.index labels.json`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        names = opened.import_taught(file)
    console.output(f"{len(names):,} taught labels added: {', '.join(names)}")
