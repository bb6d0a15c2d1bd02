"""`centerhash index`: create an index of embeddings or codes, add, search, check, export and import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import HavingOption, JsonOption, KOption, WithinOption, WithoutOption, option
from centerhash.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from centerhash.index import Index

index_app = typer.Typer(
    name="index",
    help="Create an index of embeddings or codes; add, search, check, export and import.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_MOST_FREQUENT_LABELS = 10
IndexArgument = Annotated[Path, typer.Argument(help="folder of the index", show_default=False)]
ModelOption = Annotated[
    str | None, typer.Option(help="folder of a finished run, coco (the built-in model), or hf:owner/name")
]


@index_app.command()
def create(
    index: IndexArgument,
    model: ModelOption = None,
    bits: Annotated[
        int | None, typer.Option(min=1, help="length of the codes, for an index without a model")
    ] = None,
) -> None:
    """Create an empty index for the embeddings of a model, or for codes.

    Examples: `centerhash index create shop.index --model run`, `centerhash index create codes.index --bits 64`
    """
    from centerhash.index import Index

    with Index.create(index, model, bits=bits) as opened:
        step = f"import {index} CODES" if bits else f"add {index} FEATURES"
        console.output(
            f"an empty index of {opened.bits}-bit codes in {index}  next: `centerhash index {step}`"
        )


@index_app.command()
def add(
    index: IndexArgument,
    features: Annotated[Path, typer.Argument(help="embeddings (N, D) in a .npy file", show_default=False)],
    model: ModelOption = None,
    ids: Annotated[Path | None, typer.Option(help="text file with the id of each item on a line")] = None,
    item_labels: Annotated[
        Path | None, typer.Option(help="text file with the labels of each item on a line: dog|bicycle")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace items of known ids")] = False,
) -> None:
    """Add items by their embeddings; an index that does not exist is created with --model.

    Without --item-labels, the model predicts the labels. Items of known ids are skipped, so the same command resumes.

    Example: `centerhash index add shop.index features.npy --model run --ids ids.txt --item-labels labels.txt`
    """
    from centerhash.index import Index, is_index

    embeddings = _read_embeddings(features)
    id_list = None if ids is None else _read_lines(ids)
    labels = None if item_labels is None else [_split_labels(line) for line in _read_lines(item_labels)]
    exists = is_index(index)
    if not exists and model is None:
        raise ConfigError(
            f"there is no index in '{index}': name the run that made the features with --model."
        )
    _refuse_photos(index, "add")
    with (
        Index.open(index) if exists else Index.create(index, model) as opened,
        console.progress() as report,
    ):
        check_model(opened, model)
        result = opened.add(embeddings, ids=id_list, labels=labels, replace=replace, progress=report)
        count = len(opened)
    added = f"{console.counted(result.added, 'item')} added, {result.known:,} already known"
    console.output(f"{added}; {console.counted(count, 'item')} in {index}")


def check_model(index: Index, model: str | None) -> None:
    """Raise ConfigError if a model is passed that is not the one of the index."""
    from centerhash.model.loading import load

    if model is not None and load(model).digest != index.model.digest:
        raise ConfigError(f"'{index.folder}' was created with another model than '{model}': omit --model.")


def _open(folder: Path, *, read_only: bool = False) -> Index:
    from centerhash.index import Index

    return Index.open(folder, read_only=read_only)


def passed(**options: Any) -> dict[str, Any]:
    """Return the options that were passed."""
    return {name: value for name, value in options.items() if value not in (None, [])}


@index_app.command()
def search(
    index: IndexArgument,
    features: Annotated[Path | None, typer.Option(help="embedding (D,) or (N, D) in a .npy file")] = None,
    id: Annotated[str | None, typer.Option(help="search by an item of the index")] = None,
    code: Annotated[str | None, typer.Option(help="search by a code in hex digits")] = None,
    labels: Annotated[
        str | None, typer.Option(help='search by labels: "dog, bicycle" or "dog:0.7, bicycle:0.3"')
    ] = None,
    like: Annotated[
        list[str] | None, typer.Option(help="search by examples: the id of an item; may be repeated")
    ] = None,
    unlike: Annotated[
        list[str] | None, typer.Option(help="with --like: the id of a counterexample; may be repeated")
    ] = None,
    k: KOption = 10,
    by: arguments.ByOption = None,
    within: WithinOption = None,
    having: HavingOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the items nearest to an embedding, an item, a code, labels or examples.

    Examples: `centerhash index search shop.index --id 17`, `centerhash index search shop.index --features query.npy`
    """
    query = passed(id=id, code=code, labels=labels, like=like)
    if len(query) + (features is not None) != 1:
        raise ConfigError("search by one of --features, --id, --code, --labels, --like.")
    query |= passed(unlike=unlike, by=by, within=within, having=having, without=without)
    with _open(index, read_only=True) as opened:
        embeddings: list[Any] = [None] if features is None else list(_read_embeddings(features))
        batch = [opened.search(embedding, k=k, **query) for embedding in embeddings]
    if as_json:
        values = [results.to_dict() for results in batch]
        console.print_json(values[0] if len(values) == 1 else values)
        return
    for results in batch:
        console.show_query(results.labels)
        console.show_results(results, {})


@index_app.command()
def remove(
    index: IndexArgument, ids: Annotated[list[str], typer.Argument(help="ids of items", show_default=False)]
) -> None:
    """Remove items by id.

    Example: `centerhash index remove shop.index 17 18`
    """
    _refuse_photos(index, "remove")
    with _open(index) as opened:
        removed, count = opened.remove(list(dict.fromkeys(ids))), len(opened)
    console.output(f"{removed:,} removed, {console.counted(count, 'item')} left in {index}")


@index_app.command()
def info(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Print the model, the number of items, and the number of items per label.

    Example: `centerhash index info shop.index`
    """
    from centerhash.index import Index
    from centerhash.photos import PhotoIndex, is_photo_index

    index_class: Any = PhotoIndex if is_photo_index(index) else Index
    with index_class.open(index, read_only=True) as opened:
        facts = opened.info()
    if as_json:
        console.print_json(facts)
        return
    labels = facts.pop("labels")
    rows = [(name, f"{value:,}" if type(value) is int else str(value)) for name, value in facts.items()]
    ordered = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    counts = [f"{name} {count:,}" for name, count in ordered[:_MOST_FREQUENT_LABELS]]
    if len(ordered) > len(counts):
        counts.append(f"and {len(ordered) - len(counts):,} more")
    console.table(str(index), ("", ""), [*rows, ("labels", ", ".join(counts) or "none")])


@index_app.command("list")
def list_(
    index: IndexArgument,
    k: KOption = 20,
    skip: Annotated[int, typer.Option(min=0, help="how many of the newest to skip")] = 0,
    having: HavingOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List items with their labels and attributes, the last added first.

    Example: `centerhash index list shop.index --having shoe`
    """
    with _open(index, read_only=True) as opened:
        items, total = opened.list(skip, k, **passed(having=having, without=without))
    if as_json:
        values = [{"id": item.id, "labels": item.labels, "attributes": item.attributes} for item in items]
        console.print_json({"items": values, "total": total})
        return
    rows = []
    for item in items:
        attributes = ", ".join(f"{name} {value}" for name, value in item.attributes.items())
        rows.append((item.id, ", ".join(item.labels), attributes))
    title = f"{len(items):,} of {console.counted(total, 'item')}, the last added first"
    console.table(title, ("id", "labels", "attributes"), rows)


@index_app.command()
def verify(index: IndexArgument) -> None:
    """Read everything and report damage with exit code 1.

    Example: `centerhash index verify shop.index`
    """
    from centerhash.photos import verify_photos

    problems = verify_photos(index)
    for problem in problems:
        console.log(f"damaged: {problem}")
    if problems:
        raise typer.Exit(1)
    console.output(f"no damage found in {index}")


@index_app.command()
def compact(index: IndexArgument) -> None:
    """Reclaim the space of removed items.

    Example: `centerhash index compact shop.index`
    """
    with _open(index) as opened:
        opened.compact()
        console.output(f"{console.counted(len(opened), 'item')} in {index}")


@index_app.command()
def backup(
    index: IndexArgument,
    folder: Annotated[Path, typer.Argument(help="new folder of the copy", show_default=False)],
) -> None:
    """Copy an index, also while it is being written, and verify the copy. Photos are not copied.

    Example: `centerhash index backup shop.index backups/shop.index`
    """
    with _open(index, read_only=True) as opened, console.progress() as report:
        count = opened.backup(folder, progress=report)
    console.output(f"{console.counted(count, 'item')} in {folder}")


@index_app.command("import")
def import_(
    index: IndexArgument,
    codes: Annotated[
        Path,
        typer.Argument(help="code file or folder of shards of `centerhash encode`", show_default=False),
    ],
) -> None:
    """Add codes that the same model made; their names become their ids.

    Example: `centerhash index import codes.index codes.npz`
    """
    _refuse_photos(index, "add")
    with _open(index) as opened:
        result, count = opened.import_codes(codes), len(opened)
    added = f"{console.counted(result.added, 'code')} added, {result.known:,} already known"
    console.output(f"{added}; {console.counted(count, 'item')} in {index}")


@index_app.command()
def export(
    index: IndexArgument,
    out: Annotated[
        str, typer.Argument(help="file to write, or milvus:http://HOST:PORT#COLLECTION", show_default=False)
    ],
    to: Annotated[
        str, option("format: npz (for `index import` and `evaluate`) or parquet", arguments.FORMATS)
    ] = "npz",
) -> None:
    """Write all codes with ids, labels and attributes.

    Examples: `centerhash index export shop.index items.parquet --to parquet`,
    `centerhash index export shop.index milvus:http://127.0.0.1:19530#shop`
    """
    with _open(index, read_only=True) as opened, console.progress() as report:
        count = opened.export(out, to, progress=report)
    console.output(f"{console.counted(count, 'item')} in {out}")


def _refuse_photos(index: Path, command: str) -> None:
    from centerhash.photos import is_photo_index

    if is_photo_index(index):
        raise ConfigError(f"'{index}' is an index of photos: use `centerhash photos {command} {index}`.")


def _read_embeddings(path: Path) -> NDArray[np.generic]:
    """Open the embeddings (N, D) of a .npy file, without reading them into memory."""
    import numpy as np

    try:
        embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"cannot read the embeddings '{path}': {getattr(error, 'strerror', None) or error}."
        ) from None
    if not isinstance(embeddings, np.ndarray):
        raise DataError(f"'{path}' holds several arrays: embeddings (N, D) are one array in a .npy file.")
    return np.atleast_2d(embeddings)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None


def _split_labels(line: str) -> list[str]:
    return [name.strip() for name in line.split("|") if name.strip()]
