"""`centerhash photos`: search the pictures of folders by image, words and dates, and find duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import option
from centerhash.cli.index import ModelOption, check_model, passed
from centerhash.core.errors import ConfigError, first_reasons

if TYPE_CHECKING:
    from centerhash.photos import PhotoIndex
    from centerhash.photos.duplicates import Duplicates

photos_app = typer.Typer(
    name="photos",
    help="Search the pictures of folders by image, words and dates; find duplicates.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_MAX_TABLE_GROUPS = 50
FolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="INDEX_OR_FOLDER",
        help="an index, or a folder of pictures, which means its default index",
        show_default=False,
    ),
]
UnderOption = Annotated[Path | None, typer.Option(help="only photos in this folder or below it")]
AfterOption = Annotated[
    str | None, typer.Option(help="only photos taken on or after 2024, 2024-06 or 2024-06-01")
]
BeforeOption = Annotated[
    str | None, typer.Option(help="only photos taken before 2024, 2024-06 or 2024-06-01")
]


def _open(folder: Path, *, model: str | None = None, read_only: bool = False, **options: Any) -> PhotoIndex:
    """Open an index, or the default index of a folder of pictures, which is printed."""
    from centerhash.index import is_index
    from centerhash.photos import PhotoIndex

    if is_index(folder):
        return PhotoIndex.open(folder, read_only=read_only, **options)
    photos = PhotoIndex.of(folder, model, **options)
    console.log(f"index: {photos.folder}")
    return photos


def _open_filled(folder: Path, **options: Any) -> PhotoIndex:
    """Open as `_open`; if the default index of a folder of pictures is empty, add the folder to it."""
    photos = _open(folder, **options)
    if not photos.index.read_only and not len(photos):
        with console.progress() as report:
            photos.add(folder, progress=report)
    return photos


@photos_app.command()
def add(
    folder: FolderArgument,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="pictures, folders, patterns; without any, the folders that were added before",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        option(
            "of the photos: given (by a labels.csv), predicted (by the model), none "
            "[default: given if there are any, else predicted]",
            arguments.one_of("given", "predicted", "none"),
        ),
    ] = None,
    model: ModelOption = None,
    with_removed: Annotated[
        bool, typer.Option("--with-removed", help="add photos of the folders again that were removed before")
    ] = False,
    device: arguments.DeviceOption = "auto",
    engine: arguments.EngineOption = "auto",
) -> None:
    """Bring an index in step with folders: add new photos, and note what was changed, moved or deleted.

    An index that does not exist is created, with --model, if paths are named. Unchanged files are not read again, so the
    same command resumes, and can be run every hour. Removed photos stay removed, unless they are named themselves.

    Examples: `centerhash photos add pictures`, `centerhash photos add my.index pictures phone`
    """
    from centerhash.data.listing import find_images
    from centerhash.index import is_index
    from centerhash.photos import PhotoIndex

    if not folder.exists():
        if not paths:
            raise ConfigError(f"there is no index or folder '{folder}': name what to add to a new index.")
        # No index is created if there are no images.
        find_images(paths)
        PhotoIndex.create(folder, model).close()
    entries = paths or (None if is_index(folder) else folder)
    with _open(folder, model=model, device=device, engine=engine) as photos:
        check_model(photos.index, model)
        with console.progress() as report:
            result = photos.add(entries, labels=labels, with_removed=with_removed, progress=report)
        used_engine = console.features_by(photos.index.encoder().used_engine) if result.added else ""
        size = f"{console.counted(len(photos), 'photo')} in {photos.folder}{used_engine}"
    console.report_added(result, size)


@photos_app.command()
def search(
    folder: FolderArgument,
    image: Annotated[Path | None, typer.Argument(help="picture to search by", show_default=False)] = None,
    id: Annotated[str | None, typer.Option(help="search by a photo of the index")] = None,
    labels: Annotated[
        str | None, typer.Option(help='search by words: "a cat without people" or "dog:0.7, bicycle:0.3"')
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(help="search by examples: id or path of a photo of the index; may be repeated"),
    ] = None,
    unlike: Annotated[
        list[str] | None, typer.Option(help="with --like: counterexamples; may be repeated")
    ] = None,
    k: arguments.KOption = 10,
    by: arguments.ByOption = None,
    within: arguments.WithinOption = None,
    rotations: Annotated[
        bool, typer.Option(help="also find rotated copies of the picture, in four times the time")
    ] = True,
    having: arguments.HavingOption = None,
    without: arguments.WithoutOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    under: UnderOption = None,
    device: arguments.DeviceOption = "auto",
    engine: arguments.EngineOption = "auto",
    as_json: arguments.JsonOption = False,
) -> None:
    """Find photos like a picture or a photo of the index, or photos that show what words name.

    Examples: `centerhash photos search pictures dog.jpg`,
    `centerhash photos search pictures --labels "a cat without people" --after 2024`
    """
    from centerhash.photos.text_query import match

    query = passed(id=id, labels=labels, like=like)
    if len(query) + (image is not None) != 1:
        raise ConfigError("search by one of IMAGE, --id, --labels, --like.")
    query |= passed(unlike=unlike, by=by, within=within, having=having, without=without)
    query |= passed(after=after, before=before, under=under)
    with _open_filled(folder, read_only=True, device=device, engine=engine) as photos:
        results = photos.search(image, k=k, rotations=rotations, **query)
        known = [*photos.labels(), *photos.index.classes] if having or without else []
        used_engine = console.features_by(photos.index.encoder().used_engine) if image is not None else ""
    if as_json:
        console.print_json(results.to_dict())
        return
    unknown = [name for name in (*(having or ()), *(without or ())) if match(name, known) is None]
    console.warn([f"no photo carries the label '{name}'." for name in unknown])
    console.show_query(results.labels)
    dated = {} if after is None and before is None else {"date": _day}
    console.show_results(results, {**dated, "path": _paths}, used_engine)


@photos_app.command("list")
def list_(
    folder: FolderArgument,
    k: arguments.KOption = 20,
    skip: Annotated[int, typer.Option(min=0, help="how many of the newest to skip")] = 0,
    having: arguments.HavingOption = None,
    without: arguments.WithoutOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    under: UnderOption = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """List photos, the last taken first, by the date in their EXIF data or otherwise of their files.

    Example: `centerhash photos list pictures --after 2024-06 --before 2024-09`
    """
    filters = passed(having=having, without=without, after=after, before=before, under=under)
    with _open_filled(folder, read_only=True) as photos:
        rows, total = photos.list(skip, k, **filters)
    if as_json:
        console.print_json({"items": [row.to_dict() for row in rows], "total": total})
        return
    lines = [(_day(row), row.id, console.labels_of(row), _paths(row)) for row in rows]
    title = f"{len(rows):,} of {console.counted(total, 'photo')}, the last taken first"
    console.table(title, ("date", "id", "labels", "path"), lines)


@photos_app.command()
def remove(
    folder: FolderArgument,
    items: Annotated[
        list[str] | None, typer.Argument(help="ids, or paths of photos or folders", show_default=False)
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="all photos whose files are gone")] = False,
) -> None:
    """Remove photos from an index by id or path. No file is deleted.

    Later scans of a folder skip removed photos, until `photos add` names them.

    Examples: `centerhash photos remove pictures pictures/old`, `centerhash photos remove pictures --missing`
    """
    if not items and not missing:
        raise ConfigError("nothing to remove: give ids, paths of photos or folders, or --missing.")
    with _open(folder) as photos:
        entries = [*(items or ()), *(photos.missing() if missing else ())]
        unknown = [entry for entry, ids in photos.find(entries).items() if not ids]
        removed, count = photos.remove(entries), len(photos)
    console.warn([f"'{entry}' is neither an id nor a path of this index." for entry in unknown])
    console.output(f"{removed:,} removed, {console.counted(count, 'photo')} left in {photos.folder}")


@photos_app.command()
def duplicates(
    folder: FolderArgument,
    kind: Annotated[str | None, option("show only one kind", ("same", "near", "similar"))] = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """List photos that are there more than once, the largest file of each group first. No file is changed.

    Same: equal bytes. Near: the same photo, recompressed, resized, brightened, rotated, mirrored, cropped, in gray or in
    a screenshot. Similar: photos that look alike. A folder is added to its default index first.

    Examples: `centerhash photos duplicates pictures`, `centerhash photos duplicates pictures --kind same --json`
    """
    from centerhash.index import is_index

    is_folder = not is_index(folder)
    with _open(folder, read_only=True) as photos, console.progress() as report:
        if is_folder:
            photos.add(folder, progress=report)
        groups = photos.duplicates(kind=kind, progress=report)
    if as_json:
        console.print_json(groups.to_dict())
    else:
        _show_duplicates(groups)
    if groups.skipped:
        console.warn([f"not compared:\n{first_reasons(groups.skipped.values())}"])


def _show_duplicates(groups: Duplicates) -> None:
    from centerhash.photos.duplicates import KINDS

    counts = ", ".join(f"{len(groups.of_kind(kind)):,} {kind}" for kind in KINDS)
    rows = [(group.kind, group.paths[0], "\n".join(group.paths[1:])) for group in groups[:_MAX_TABLE_GROUPS]]
    title = f"{console.counted(groups.compared, 'file')}, groups: {counts}"
    console.table(title, ("kind", "largest file", "others"), rows)
    if len(groups) > _MAX_TABLE_GROUPS:
        console.output(f"and {len(groups) - _MAX_TABLE_GROUPS:,} more groups: --json lists them.")


def _day(row: Any) -> str:
    return "-" if row.taken is None else f"{row.taken:%Y-%m-%d}"


def _paths(row: Any) -> str:
    return "\n".join(row.paths) or "-"
