"""Index photos, search them, find duplicates, serve them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import DeviceOption, EngineOption, JsonOption, option
from centerhash.core.errors import ConfigError
from centerhash.core.extras import check_installed

if TYPE_CHECKING:
    from centerhash.core.progress import Progress
    from centerhash.search import Added, Index, Result
    from centerhash.search.duplicates import Duplicates
    from centerhash.serve.limits import Settings

index_app = typer.Typer(
    help="Create an index of images; add, remove, check, import and export.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_SHOWN = 50  # groups of duplicates in the table; --json and --page show more
HavingOption = Annotated[
    list[str] | None, typer.Option(help="return only items with this label; may be repeated")
]
WithoutOption = Annotated[
    list[str] | None, typer.Option(help="exclude items with this label; may be repeated")
]
UnderOption = Annotated[Path | None, typer.Option(help="return only images in this folder")]
AfterOption = Annotated[
    str | None, typer.Option(help="return only images taken on or after 2024, 2024-06 or 2024-06-01")
]
BeforeOption = Annotated[
    str | None, typer.Option(help="return only images taken before 2024, 2024-06 or 2024-06-01")
]
CameraOption = Annotated[
    str | None, typer.Option(help="return only images of cameras whose name contains this text")
]
IndexArgument = Annotated[Path, typer.Argument(help="folder of the index", show_default=False)]


@index_app.command()
def create(
    index: IndexArgument,
    model: Annotated[
        str | None,
        option(
            "folder of a finished run, the built-in model, or hf:owner/name; it is copied", default="coco"
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(min=1, help="length of codes from other programs, for an index without a model"),
    ] = None,
    store: Annotated[
        str, option("where items are stored: sqlite, or milvus:ADDRESS", arguments.one_of(*arguments.STORES))
    ] = "sqlite",
) -> None:
    """Create an empty index for the codes of the built-in model or of a trained model.

    Examples: `centerhash index create photos.index`, `centerhash index create photos.index --model run`
    """
    from centerhash.search import Index

    with Index.create(index, model, bits=bits, store=store) as made:
        spec = made.spec
    then = f"add {index} IMAGES" if spec.model else f"import {index} CODES"
    console.output(
        f"an empty index of {spec.bits}-bit codes ({spec.store}) in {index}  next: `centerhash index {then}`"
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
    with_removed: Annotated[
        bool, typer.Option("--with-removed", help="add images of the folders again that were removed before")
    ] = False,
) -> None:
    """Add images. Images with known content are skipped, so the same command resumes.

    Images that were removed from the index are not added again by their folder, but by their own path.

    Examples: `centerhash index add photos.index photos`, `centerhash index add photos.index photos/a.jpg`
    """
    from centerhash.search import Index

    with Index.open(index, device=device, engine=engine) as opened, console.progress() as report:
        done = opened.add(images, labels=labels, batch=batch, progress=report, with_removed=with_removed)
        count, by = len(opened), console.features_by(opened.used_engine)
    console.report_added(done, f"{console.counted(count, 'item')} in {index}{by}")


@index_app.command()
def watch(
    index: IndexArgument,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="folders of images; without any, all that were added", show_default=False),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Keep an index in step with folders: new, changed, moved and vanished images are noticed within seconds.

    The index can be searched, served and changed by other commands meanwhile. Stop with Ctrl-C.

    Examples: `centerhash index watch photos.index`, `centerhash index watch photos.index photos`
    """
    from centerhash.search import Index
    from centerhash.search.watching import Watch

    with Index.open(index, shared=True, device=device, engine=engine) as opened:
        places = folders or [Path(root) for root in opened.store.roots()]
        if not places:
            raise ConfigError(f"no folder has been added to '{index}' yet: name the folders to watch.")
        for place in folders or ():
            if not place.is_dir():
                raise ConfigError(f"no such folder: '{place}'.")

        def changed(done: Added) -> None:
            console.report_added(done, f"{console.counted(len(opened), 'item')} in {index}")

        console.output(f"watching {', '.join(map(str, places))} (stop with Ctrl-C)")
        with console.progress() as report:
            try:
                Watch(opened, places, changed, report).run()
            except KeyboardInterrupt:
                console.output("stopped")


@index_app.command()
def remove(
    index: IndexArgument,
    items: Annotated[
        list[str] | None, typer.Argument(help="ids, or paths of images or folders", show_default=False)
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="all images whose file is gone")] = False,
) -> None:
    """Remove images by id or path, also if their files are gone. No file of yours is deleted.

    Later scans of a folder leave removed images out, until `index add` names them. A folder that was added as a whole
    is no longer followed once it is removed.

    Examples: `centerhash index remove photos.index photos/old`, `centerhash index remove photos.index --missing`
    """
    from centerhash.search import Index

    if not items and not missing:
        raise ConfigError("nothing to remove: give ids, paths of images or folders, or --missing.")
    with Index.open(index) as opened:
        entries = [*(items or ()), *(opened.missing() if missing else ())]
        meant = opened.find(entries)
        removed = opened.remove(entries)
        count = len(opened)
    console.warn(
        [f"'{item}' is neither an id nor a path of this index." for item, ids in meant.items() if not ids]
    )
    console.output(f"{removed:,} removed, {console.counted(count, 'item')} left in {index}")


@index_app.command()
def info(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Print the store, the model, the number of items, and the number of items per label.

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
    more = f", and {len(most) - 10:,} more" if len(most) > 10 else ""
    shown = ", ".join(f"{name} {count:,}" for name, count in most[:10]) + more or "none"
    console.table(str(index), ("", ""), [*rows, ("labels", shown)])


@index_app.command("list")
def list_(
    index: IndexArgument,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="how many to show")] = 20,
    skip: Annotated[int, typer.Option(min=0, help="how many of the newest to skip")] = 0,
    months: Annotated[bool, typer.Option("--months", help="count images by month instead")] = False,
    having: HavingOption = None,
    without: WithoutOption = None,
    under: UnderOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    camera: CameraOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the images of an index, the newest first, by the date in their EXIF data or otherwise of their files.

    Examples: `centerhash index list photos.index --after 2024-06 --before 2024-09`,
    `centerhash index list photos.index --months`
    """
    from centerhash.search import Index
    from centerhash.search.index import Only

    only = Only(
        having=having or (), without=without or (), under=under, after=after, before=before, camera=camera
    )
    with Index.open(index, read_only=True) as opened:
        _warn_of_camera(opened, camera)
        if months:
            counts = opened.months(**only)
            if as_json:
                console.print_json(counts)
            else:
                rows = [(month, f"{count:,}") for month, count in counts.items()]
                console.table(console.counted(sum(counts.values()), "image"), ("month", ">images"), rows)
            return
        found, total = opened.newest(skip, k, **only)
    if as_json:
        console.print_json({"items": [row.to_dict() for row in found], "total": total})
        return
    heads = ("date", "id", "camera", "labels", "path")
    lines = [
        (_day(row), row.id, row.camera or "-", _labels_shown(row), "\n".join(row.paths) or "-")
        for row in found
    ]
    console.table(f"{len(found):,} of {console.counted(total, 'image')}, the newest first", heads, lines)


@index_app.command()
def verify(index: IndexArgument) -> None:
    """Read everything and report damage with exit code 1. Count images whose file is gone.

    Example: `centerhash index verify photos.index`
    """
    from centerhash.search import Index, verify_index
    from centerhash.search.results import missing_text

    problems = verify_index(index)
    for problem in problems:
        console.log(f"damaged: {problem}")
    if problems:
        raise typer.Exit(1)
    with Index.open(index, read_only=True) as opened:
        gone = len(opened.missing())
    console.warn([missing_text(index, gone)] if gone else [])
    console.output(f"no damage found in {index}")


@index_app.command()
def compact(index: IndexArgument) -> None:
    """Reclaim the space of removed items.

    Example: `centerhash index compact photos.index`
    """
    from centerhash.search import Index

    with Index.open(index) as opened:
        opened.compact()
        count = len(opened)
    console.output(f"{console.counted(count, 'item')} in {index}")


@index_app.command()
def backup(
    index: IndexArgument,
    folder: Annotated[Path, typer.Argument(help="new folder of the copy", show_default=False)],
) -> None:
    """Copy an index, also while it is being written, and verify the copy. Your photos are not copied.

    Example: `centerhash index backup photos.index backups/photos.index`
    """
    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened, console.progress() as report:
        count = opened.backup(folder, progress=report)
    console.output(f"{console.counted(count, 'item')} in {folder}")


@index_app.command("import")
def import_(
    index: IndexArgument,
    codes: Annotated[
        Path,
        typer.Argument(
            help="code file or folder of shards from `centerhash encode` with the same model, or a Faiss file",
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
    added = f"{console.counted(done.added, 'code')} added, {done.known:,} already known"
    console.output(f"{added}; {console.counted(count, 'item')} in {index}")


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
            "format: npz (for `index import` and `evaluate`), npy, parquet, faiss, pgvector",
            arguments.one_of(*arguments.FORMATS),
        ),
    ] = "npz",
) -> None:
    """Write all codes with ids, paths and labels, for centerhash or other programs.

    Examples: `centerhash index export photos.index codes.npz`, `centerhash index export photos.index items --to pgvector`
    """
    check_installed(*{"parquet": ["pyarrow"], "faiss": ["faiss"]}.get(to, []))

    from centerhash.search import Index

    with Index.open(index, read_only=True) as opened, console.progress() as report:
        count = opened.export(out, to, progress=report)
    console.output(f"{console.counted(count, 'code')} in {out}")


def search(
    index: IndexArgument,
    image: Annotated[Path | None, typer.Argument(help="image to search by", show_default=False)] = None,
    id: Annotated[str | None, typer.Option(help="search by an item of the index")] = None,
    code: Annotated[str | None, typer.Option(help="search by a code in hex digits")] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help='search by labels instead: "dog, bicycle" or "dog:0.7,bicycle:0.3"; a label with a comma stands '
            "in double quotes"
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="number of results")] = 10,
    visual: Annotated[
        bool, typer.Option("--visual", help="rank by visual similarity alone, whatever the labels")
    ] = False,
    semantic: Annotated[
        bool, typer.Option("--semantic", help="rank by the semantic code alone, without visual similarity")
    ] = False,
    having: HavingOption = None,
    without: WithoutOption = None,
    under: UnderOption = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    camera: CameraOption = None,
    within: Annotated[int | None, typer.Option(min=0, help="maximum Hamming distance of the results")] = None,
    rotations: Annotated[
        bool, typer.Option(help="also find rotated copies of the image, in four times the time")
    ] = True,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find images similar to an image or an item, or images with given labels.

    Examples: `centerhash search photos.index photo.jpg`, `centerhash search photos.index --labels "dog, car" -k 20`
    """
    from centerhash.search import Index
    from centerhash.search.names import match

    if sum(given is not None for given in (image, id, labels, code)) != 1:
        raise ConfigError("search by one thing: an IMAGE, --id, --labels or --code.")
    if visual and semantic:
        raise ConfigError("search by one of --visual and --semantic, or by both without naming any.")
    with Index.open(index, read_only=True, device=device, engine=engine) as opened:
        results = opened.search(
            image,
            id=id,
            labels=labels,
            code=code,
            k=k,
            by="visual" if visual else "semantic" if semantic else "both",
            having=having or (),
            without=without or (),
            under=under,
            after=after,
            before=before,
            camera=camera,
            within=within,
            rotations=rotations,
        )
        known = [*opened.labels(), *opened.model_info.classes] if having or without else []
        _warn_of_camera(opened, camera)
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
        console.output(f"query: {shown}")
    compared = any(row.visual is not None for row in results)
    dated = any(given is not None for given in (after, before, camera))
    heads = (">distance", *([">visual"] if compared else []), "id", *(["date"] * dated), "labels", "path")
    rows = []
    for row in results:
        numbers = [str(row.distance), "-" if row.visual is None else str(row.visual)][: 1 + compared]
        day = [_day(row)] * dated
        rows.append((*numbers, row.id, *day, _labels_shown(row), "\n".join(row.paths) or "-"))
    console.table(f"{console.counted(len(results), 'result')}{by}", heads, rows)


def _day(row: Result) -> str:
    return "-" if row.taken is None else f"{row.taken:%Y-%m-%d}"


def _warn_of_camera(index: Index, camera: str | None) -> None:
    """Warn if no camera has such a name, and list those that there are."""
    from centerhash.search.query import cameras_named

    if camera is not None and not cameras_named(index.store, camera):
        known = ", ".join(list(index.cameras())[:10]) or "none"
        console.warn([f"no camera of the index is named like '{camera}'; its cameras are: {known}."])


def _labels_shown(row: Result) -> str:
    """The labels of a result with their shares, in percent, as far as they are known; then others asked for."""
    share = row.share or {}
    names = dict.fromkeys((*row.labels, *share))
    return ", ".join(f"{name} {share[name]:.0%}" if name in share else name for name in names)


def duplicates(
    images: Annotated[
        Path | None,
        typer.Argument(metavar="PATH_OR_INDEX", help="a folder of images, or an index", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        option(
            "show only one kind; similar ones of a folder are compared only if named",
            ("same", "near", "similar"),
        ),
    ] = None,
    prefer: Annotated[
        list[Path] | None,
        typer.Option(
            help="keep the files in this folder before all others; may be repeated, the first counts most"
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="write an HTML page with thumbnails side by side")] = None,
    csv: Annotated[Path | None, typer.Option(help="write a table with a row per image")] = None,
    move_to: Annotated[
        Path | None,
        typer.Option(
            help="move all but the image to keep of same and near groups, or of the --kind, to this folder"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what --move-to would do")] = False,
    undo: Annotated[
        Path | None, typer.Option(help="move everything back that was moved to this folder")
    ] = None,
    model: Annotated[
        str, typer.Option(help="for similar ones of a folder: the built-in model, or the folder of a run")
    ] = "coco",
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find images that are there more than once, show which to keep and why, and move the others. No file is deleted.

    Same: equal bytes. Near: the same photo, recompressed, resized, brightened, rotated, mirrored, cropped, in gray or
    in a screenshot. Similar: photos that look alike.

    Kept is the file in a preferred folder, then by resolution, file size, EXIF, oldest date taken, and shorter path.

    Examples: `centerhash duplicates photos --page duplicates.html`, `centerhash duplicates photos --prefer photos/albums
    --move-to duplicates --dry-run`, `centerhash duplicates --undo duplicates`
    """
    from centerhash.search import Index
    from centerhash.search.duplicates import folder_duplicates
    from centerhash.search.index import is_index

    if undo is not None:
        if images is not None or move_to is not None:
            raise ConfigError("--undo needs only the folder that images were moved to: omit the rest.")
        _undo_moves(undo, as_json)
        return
    if images is None:
        raise ConfigError("name a folder of images or an index, or --undo with a folder of moved images.")
    if dry_run and move_to is None:
        raise ConfigError("--dry-run shows what --move-to would do: name that folder too.")
    choice: dict[str, Any] = {"kind": kind, "prefer": prefer or ()}
    with ExitStack() as stack:
        report = stack.enter_context(console.progress())
        index = None
        if is_index(images):
            index = stack.enter_context(Index.open(images, read_only=move_to is None or dry_run))
            found = index.duplicates(**choice, progress=report)
        else:
            found = folder_duplicates(
                images, **choice, model=model, device=device, engine=engine, progress=report
            )
        if page is not None:
            found.write_page(page)
        if csv is not None:
            found.write_csv(csv)
        moves = None if move_to is None else _move(found, move_to, kind, index, dry_run, report)
    if as_json:
        console.print_json(found.to_dict() | ({} if moves is None else moves))
        return
    _show_duplicates(found)
    for name, path in (("page", page), ("table", csv)):
        if path is not None:
            console.output(f"{name}: {path}")
    if move_to is not None and moves is not None:
        _show_moves(moves, move_to, dry_run)


def _move(
    found: Duplicates, folder: Path, kind: str | None, index: Index | None, dry_run: bool, report: Progress
) -> dict[str, Any]:
    """Move the images that are not kept, or only plan it; return what --json prints."""
    from centerhash.search.moving import move, plan_moves

    if found.root is None:
        raise ConfigError(
            "the images have no folder in common, so their places cannot be kept: move them by hand."
        )
    planned, skipped = plan_moves(found.wanted(kind), folder, found.root)
    files = [[str(old), str(new)] for one in planned for old, new in one.files]
    photos, sidecars = len(planned), len(files) - len(planned)
    if not dry_run:
        done = move(planned, folder, index=index, progress=report)
        photos, sidecars, skipped = done.photos, done.sidecars, skipped | done.skipped
    counts = {"photos": photos, "sidecars": sidecars, "not_moved": skipped}
    return {"planned" if dry_run else "moved": {"folder": str(folder), **counts, "files": files}}


def _show_moves(moves: dict[str, Any], folder: Path, dry_run: bool) -> None:
    (facts,) = moves.values()
    _warn_some(list(facts["not_moved"].values()))
    if dry_run:
        console.table("would be moved", ("from", "to"), facts["files"][:_SHOWN])
        if len(facts["files"]) > _SHOWN:
            console.output(f"and {len(facts['files']) - _SHOWN:,} more files: --json lists them.")
    counts = f"{console.counted(facts['photos'], 'photo')} and {console.counted(facts['sidecars'], 'sidecar file')}"
    if dry_run:
        console.output(f"{counts} would be moved to {folder}; the same command without --dry-run moves them.")
    else:
        console.output(f"{counts} moved to {folder}  undo: `centerhash duplicates --undo {folder}`")


def _undo_moves(folder: Path, as_json: bool) -> None:
    from centerhash.search.moving import find_journal, undo

    with console.progress() as report:
        done = undo(find_journal(folder), progress=report)
    if as_json:
        counts = {"photos": done.photos, "sidecars": done.sidecars, "not_moved": done.skipped}
        console.print_json({"undone": counts})
        return
    _warn_some(list(done.skipped.values()))
    moved = f"{console.counted(done.photos, 'photo')} and {console.counted(done.sidecars, 'sidecar file')}"
    console.output(f"{moved} moved back from {folder}")


def _warn_some(reasons: list[str]) -> None:
    console.warn(reasons[:5])
    if len(reasons) > 5:
        console.warn([f"{len(reasons) - 5:,} more: --json lists them."])


def _show_duplicates(found: Duplicates) -> None:
    from centerhash.search.duplicates import KINDS, common_folder

    folder = common_folder([one.path for group in found for one in group.photos if one.path is not None])
    counts = ", ".join(f"{len(found.of_kind(kind)):,} {kind}" for kind in KINDS)
    place = f", names below {folder}" if folder else ""
    rows = []
    for group in found[:_SHOWN]:
        keep, *others = ((one.path or one.id or "").removeprefix(folder) for one in group.photos)
        size = f" ({group.keep.width} x {group.keep.height})" if group.keep.width else ""
        changed = [
            f"{name} ({one.change})" if one.change else name
            for name, one in zip(others, group.others, strict=True)
        ]
        rows.append((group.kind, f"{keep}{size}", group.rule, "\n".join(changed)))
    heads = ("kind", "keep", "because of", "others")
    console.table(f"{console.counted(found.looked_at, 'image')}, groups: {counts}{place}", heads, rows)
    if len(found) > _SHOWN:
        console.output(
            f"and {len(found) - _SHOWN:,} more groups: --json and --csv list them, --page shows them."
        )
    console.warn(found.notes)
    _warn_some([f"skipped: {reason}" for reason in found.skipped.values()])


def serve(
    index: Annotated[
        Path,
        typer.Argument(help="folder of an index, or of images, for which an index is created next to it"),
    ],
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0 for all, so that phones can open the page")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="CENTERHASH_TOKEN", help="token that requests need to add or remove images"),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            envvar="CENTERHASH_PASSWORD",
            help="password for viewing; rather set it in the environment, since other users can read command lines",
        ),
    ] = None,
    max_upload_mb: Annotated[float, typer.Option(help="largest upload in megabytes")] = 20.0,
    max_megapixels: Annotated[float, typer.Option(help="largest image in million pixels")] = 50.0,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    queue: Annotated[int, typer.Option(help="requests of a kind that may wait; more get a 503")] = 32,
    timeout: Annotated[float, typer.Option(help="seconds that a request may take")] = 30.0,
    connections: Annotated[int, typer.Option(help="open connections; more get a 503")] = 512,
    duplicates_to: Annotated[
        Path | None,
        typer.Option(help="folder that the page moves duplicates to, with the token; it can move them back"),
    ] = None,
    read_only: Annotated[bool, typer.Option(help="reject all changes, also with a token")] = False,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="processes that answer requests, with --read-only")
    ] = 1,
    no_watch: Annotated[
        bool, typer.Option("--no-watch", help="do not follow the folders that were added to the index")
    ] = False,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="print method, path, status and time of every request")
    ] = False,
    model: Annotated[
        str | None,
        option("of a folder of images: a run's folder, the built-in model, or hf:owner/name", default="coco"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="name by which clients may call the server, e.g. that of a proxy; may be repeated"),
    ] = None,
) -> None:
    """Serve an index or a folder of photos: a web page and a JSON API.

    For a folder of images, an index is created or updated: photos.index next to photos, or in the cache if that folder is
    read-only. The page works while images are being added. The same command resumes after a stop.

    New, changed and vanished images in the folders of an index are noticed within seconds, unless --no-watch or
    --read-only is given. Images that were removed stay removed. Other commands can change the index meanwhile.

    Examples: `centerhash serve photos`, `centerhash serve photos.index --host 0.0.0.0 --password SECRET`
    """
    given: dict[str, Any] = dict(locals())  # by name; most are fields of Settings

    from centerhash.core.options import read_options
    from centerhash.search import Index
    from centerhash.search.index import is_index
    from centerhash.search.results import missing_text
    from centerhash.serve.app import reading, serve_index
    from centerhash.serve.background import Filling
    from centerhash.serve.limits import Settings
    from centerhash.serve.processes import serve_in_processes

    def announce(addresses: list[str], opened: Index) -> None:
        place = f"{index} is served at {addresses[0]} (stop with Ctrl-C)"
        _announce(place, addresses, opened, settings, host)

    def ended(done: Added) -> None:
        if done.has_changed:
            console.report_added(done, f"{len(opened):,} items in {index}")

    def counted(missing: int) -> None:
        if missing:
            console.warn([missing_text(index, missing)])
        elif opened.folders():  # imported codes have no files
            console.output("all files were found")

    given |= {"token": token or None, "password": password or None, "hosts": tuple(allow_host or ())}
    settings = read_options(
        Settings, {name: given[name] for name in Settings.model_fields if name in given}, "serving"
    )
    if duplicates_to is not None and not settings.may_write:
        raise ConfigError(
            "--duplicates-to needs a --token, and no --read-only: only with it are files moved."
        )
    if processes > 1 and not (settings.read_only and is_index(index)):
        raise ConfigError("--processes is for an index with --read-only: one process writes to an index.")
    if not is_index(index):
        if no_watch:
            raise ConfigError(f"'{index}' is no index: create one first, or omit --no-watch.")
        _serve_images(index, model, settings, host, port)
    elif model is not None:
        raise ConfigError(f"'{index}' is an index and has its model: omit --model.")
    elif processes > 1:
        serve_in_processes(index, settings, host, port, processes, announce)
    else:
        folders = [] if no_watch or settings.read_only else _followed(index)
        read_only = not (settings.may_write or folders)
        # shared: other processes may write between the changes of this one, such as `centerhash index add`
        with (
            Index.open(index, read_only=read_only, shared=not read_only, **reading(settings)) as opened,
            console.progress() as report,
        ):
            filling = Filling(opened, folders, ended, report) if folders else None
            serve_index(opened, settings, host, port, announce, counted, filling)


def _followed(folder: Path) -> list[Path]:
    """Return the folders that were added to an index as a whole, if it can be changed and reads images."""
    from centerhash.search import Index

    with Index.open(folder, read_only=True) as index:
        able = index.model_info.backbone is not None and os.access(folder, os.W_OK)
        return [Path(root) for root in index.store.roots()] if able else []


def _announce(place: str, addresses: list[str], index: Index, settings: Settings, host: str) -> None:
    """Print where, what, how many, and who may view and change it."""
    from centerhash.serve.addresses import is_local
    from centerhash.serve.qr import half_blocks, qr_code

    console.output(f"{place}{console.features_by(index.used_engine)}")
    if len(addresses) > 1:
        console.output(f"also at {', '.join(addresses[1:])}")
    changes = "changes with the token" if settings.may_write else "read-only"
    console.output(f"{console.counted(len(index), 'image')}, {index.model_info.bits}-bit codes, {changes}")
    if is_local(host):
        return
    if (code := qr_code(addresses[0])) is not None:
        console.drawing(half_blocks(code), "open the page on a phone in the same network:")
    if settings.password is None:
        console.warn(
            ["no password is set: everyone who can reach this address can view all photos. Set `password=`."]
        )


def _serve_images(images: Path, model: str | None, settings: Settings, host: str, port: int) -> None:
    """Make or open the index of a folder of images, and add them while it is served."""
    from centerhash.search.default_index import open_default
    from centerhash.serve.app import reading, serve_index
    from centerhash.serve.background import Filling

    opened, warning = open_default(images, model, **reading(settings))
    console.warn([warning] if warning else [])

    def announce(addresses: list[str], index: Index) -> None:
        place = f"{images} is served at {addresses[0]} (stop with Ctrl-C) and added to {index.folder}"
        _announce(place, addresses, index, settings, host)

    def ended(done: Added) -> None:
        console.report_added(done, f"{console.counted(len(opened), 'item')} in {opened.folder}")

    with opened, console.progress() as report:
        serve_index(opened, settings, host, port, announce, filling=Filling(opened, [images], ended, report))


def mcp(index: IndexArgument) -> None:
    """Answer an AI assistant about the photos of an index: tools of the Model Context Protocol, read-only.

    The assistant starts this command and talks to it over standard input and output.

    Example: `centerhash mcp photos.index`
    """
    check_installed("mcp")

    from centerhash.search import Index
    from centerhash.serve.assistant import run_assistant

    with Index.open(index, read_only=True) as opened:
        run_assistant(opened)
