"""Find duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli import console
from centerhash.cli.arguments import DeviceOption, EngineOption, JsonOption, option

if TYPE_CHECKING:
    from centerhash.search.duplicates import Duplicates

_SHOWN = 50  # groups in the table; --json and --page show more


def duplicates(
    images: Annotated[
        Path,
        typer.Argument(metavar="PATH_OR_INDEX", help="a folder of images, or an index", show_default=False),
    ],
    near: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=128,
            help="bits of 128 in which visual codes of near ones may differ",
            show_default="40",
        ),
    ] = None,
    kind: Annotated[str | None, option("show only one kind", ("same", "near", "similar"))] = None,
    page: Annotated[Path | None, typer.Option(help="write an HTML page with thumbnails side by side")] = None,
    model: Annotated[
        str, typer.Option(help="for a folder: the built-in model, or the folder of a run with a visual code")
    ] = "coco",
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find images that are there more than once, and suggest which to keep; nothing is deleted.

    Same: equal bytes. Near: the same photo, encoded again, resized, brightened, cropped a little or mirrored. Similar:
    photos that look alike.

    Example: `centerhash duplicates photos --page duplicates.html`
    """
    from centerhash.search import Index
    from centerhash.search.duplicates import folder_duplicates
    from centerhash.search.index import is_index

    with console.progress() as report:
        if is_index(images):
            with Index.open(images, read_only=True) as index:
                found = index.duplicates(near=near, kind=kind, progress=report)
        else:
            found = folder_duplicates(
                images, model=model, near=near, kind=kind, device=device, engine=engine, progress=report
            )
    if page is not None:
        found.write_page(page)
    if as_json:
        console.print_json(found.to_dict())
        return
    _show(found)
    if len(found) > _SHOWN:
        console.say(f"and {len(found) - _SHOWN:,} more groups: --json lists them, --page shows them.")
    console.warn(found.notes)
    console.warn([f"skipped: {reason}" for reason in list(found.skipped.values())[:5]])
    if len(found.skipped) > 5:
        console.warn([f"{len(found.skipped) - 5:,} more images were skipped: --json lists them."])
    if page is not None:
        console.say(f"page: {page}")


def _show(found: Duplicates) -> None:
    from centerhash.search.duplicates import KINDS, common_folder

    folder = common_folder([one.path for group in found for one in group.photos if one.path is not None])
    counts = ", ".join(f"{len(found.of_kind(kind)):,} {kind}" for kind in KINDS)
    place = f", names below {folder}" if folder else ""
    rows = []
    for group in found[:_SHOWN]:
        keep, *others = ((one.path or one.id).removeprefix(folder) for one in group.photos)
        size = f" ({group.keep.width} x {group.keep.height})" if group.keep.width else ""
        rows.append((group.kind, f"{keep}{size}", "\n".join(others)))
    console.show(f"{found.looked_at:,} images, groups: {counts}{place}", ("kind", "keep", "others"), rows)
