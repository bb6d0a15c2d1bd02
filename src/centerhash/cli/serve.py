"""`centerhash serve`: a web page and a JSON API for an index, or for a folder of photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import console
from centerhash.cli.arguments import DeviceOption, EngineOption
from centerhash.cli.index import passed


def serve(
    index: Annotated[
        Path, typer.Argument(help="folder of an index, or of pictures, which means their default index")
    ],
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0 for all, which needs a password")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one")] = 8000,
    password_file: Annotated[
        Path | None,
        typer.Option(help="file whose first line is the password; or set CENTERHASH_PASSWORD"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="name by which clients may call the server, e.g. that of a proxy; may be repeated"),
    ] = None,
    max_upload_mb: Annotated[float | None, typer.Option(help="largest upload in megabytes")] = None,
    max_megapixels: Annotated[float | None, typer.Option(help="largest image in million pixels")] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="print a line for every request")
    ] = False,
) -> None:
    """Serve an index or a folder of photos: a web page and a JSON API. The server only reads.

    For a folder of pictures, its index is created or brought up to date in the background while the page works. The same
    command resumes after a stop.

    Examples: `centerhash serve photos`, `centerhash serve photos.index --host 0.0.0.0 --password-file secret.txt`
    """
    from centerhash.index import is_index
    from centerhash.photos import PhotoIndex
    from centerhash.serve.app import open_index, serve_index
    from centerhash.serve.background import BackgroundSync
    from centerhash.serve.settings import Settings, read_password

    options = passed(
        password=None if password_file is None else read_password(password_file),
        hosts=tuple(allow_host or ()) or None,
        max_upload_mb=max_upload_mb,
        max_megapixels=max_megapixels,
        device=device,
        engine=engine,
    )
    settings = Settings.from_environment(options)
    is_folder = not is_index(index)
    opened = PhotoIndex.of(index, **settings.encoding) if is_folder else open_index(index, settings)
    with opened as served, console.progress() as report:

        def size() -> str:
            return f"{console.counted(len(served), 'item')} in {served.folder}"

        def announce(address: str) -> None:
            console.output(f"{index} is served at {address} (stop with Ctrl-C): {size()}")

        syncing = None
        if is_folder and isinstance(served, PhotoIndex):
            syncing = BackgroundSync(
                served, [index], lambda result: console.report_added(result, size()), report
            )
        serve_index(served, settings, host, port, announce, syncing, log_requests=log_requests)
