"""Serve an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centerhash.cli import console
from centerhash.cli.arguments import DeviceOption, EngineOption, option
from centerhash.core.errors import ConfigError

if TYPE_CHECKING:
    from centerhash.search import Added, Index
    from centerhash.serve.limits import Settings


def serve(
    index: Annotated[
        Path, typer.Argument(help="folder of an index, or of images: an index is made beside it")
    ],
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0 for all, then put a proxy with TLS before it")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="CENTERHASH_TOKEN", help="what a request must bring to add or remove images"),
    ] = None,
    max_upload_mb: Annotated[float, typer.Option(help="largest upload in megabytes")] = 20.0,
    max_megapixels: Annotated[float, typer.Option(help="largest image in million pixels")] = 50.0,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    queue: Annotated[int, typer.Option(help="requests of a kind that may wait; more get a 503")] = 32,
    timeout: Annotated[float, typer.Option(help="seconds that a request may take")] = 30.0,
    connections: Annotated[int, typer.Option(help="open connections; more are sent away")] = 512,
    read_only: Annotated[bool, typer.Option(help="never change the index, whatever token comes")] = False,
    model: Annotated[
        str | None,
        option("of a folder of images: a run's folder, the built-in model, or hf:owner/name", default="coco"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="name by which clients may call the server, e.g. that of a proxy; may be repeated"),
    ] = None,
) -> None:
    """Serve an index: a page to search by image or labels, and the same as JSON.

    Of a folder of images an index is made first, or updated: photos.index beside photos, or in the cache where nothing
    may be written. The page can be used while images are being added; the same command resumes after a stop.

    Examples: `centerhash serve photos`, `centerhash serve photos.index --port 8000`
    """
    given: dict[str, Any] = dict(locals())  # by name; most are fields of Settings

    from centerhash.core.options import read_options
    from centerhash.search import Index
    from centerhash.search.index import is_index
    from centerhash.search.results import missing_text
    from centerhash.serve.app import reading, serve_index
    from centerhash.serve.limits import Settings

    def announce(address: str, opened: Index) -> None:
        _announce(f"{index} is served at {address} (stop with Ctrl-C)", opened, settings)

    def counted(missing: int) -> None:
        if missing:
            console.warn([missing_text(index, missing)])
        else:
            console.say("the files of all of them are there")

    given |= {"token": token or None, "hosts": tuple(allow_host or ())}
    settings = read_options(
        Settings, {name: given[name] for name in Settings.model_fields if name in given}, "serving"
    )
    if not is_index(index):
        _serve_images(index, model, settings, host, port)
    elif model is not None:
        raise ConfigError(f"'{index}' is an index and has its model: leave out --model.")
    else:
        # without the right to write, another process may have it: `centerhash index add` works beside this server
        with Index.open(index, read_only=not settings.may_write, **reading(settings)) as opened:
            serve_index(opened, settings, host, port, announce, counted)


def _announce(place: str, index: Index, settings: Settings) -> None:
    """Say where, what, how many, and who may change it."""

    console.say(f"{place}{console.features_by(index.used_engine)}")
    changes = "can be added and removed with the token" if settings.may_write else "can only be searched"
    console.say(f"{len(index):,} images of {index.model_info.bits} bits, which {changes}")


def _serve_images(images: Path, model: str | None, settings: Settings, host: str, port: int) -> None:
    """Make or open the index of a folder of images, and add them while it is served."""
    from centerhash.search.default_index import open_default
    from centerhash.search.results import missing_text
    from centerhash.serve.app import reading, serve_index
    from centerhash.serve.background import Filling

    opened, warning = open_default(images, model, **reading(settings))
    console.warn([warning] if warning else [])

    def announce(address: str, index: Index) -> None:
        place = f"{images} is served at {address} (stop with Ctrl-C) and added to {index.folder}"
        _announce(place, index, settings)

    def ended(done: Added) -> None:
        console.added(done, f"{len(opened):,} items in {opened.folder}")
        gone = len(opened.missing())
        console.warn([missing_text(opened.folder, gone)] if gone else [])

    with opened, console.progress() as report:
        serve_index(opened, settings, host, port, announce, filling=Filling(opened, images, ended, report))
