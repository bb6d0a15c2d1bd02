"""Serve an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centerhash.cli.arguments import DeviceOption, EngineOption

if TYPE_CHECKING:
    from centerhash.networks.engines import Engine


def serve(
    index: Annotated[Path, typer.Argument(help="folder of the index, see `centerhash index create`")],
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
    read_only: Annotated[bool, typer.Option(help="never change the index, whatever token comes")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="name by which clients may call the server, e.g. that of a proxy; may be repeated"),
    ] = None,
) -> None:
    """Serve an index: a page to search by image or labels, and the same as JSON.

    Example: `centerhash serve photos.index --port 8000`
    """
    from centerhash.cli import console
    from centerhash.core.options import read_options
    from centerhash.serve.process import serve as run_server
    from centerhash.serve.settings import Settings

    given = {
        "token": token or None,
        "max_upload_mb": max_upload_mb,
        "max_megapixels": max_megapixels,
        "device": device,
        "engine": engine,
        "queue": queue,
        "timeout": timeout,
        "read_only": read_only,
        "hosts": tuple(allow_host or ()),
    }

    def announce(address: str, used: Engine | None) -> None:
        by = console.features_by(used)
        console.out.print(f"{index} is served at {address} (stop with Ctrl-C){by}", soft_wrap=True)

    run_server(index, read_options(Settings, given, "serving"), host, port, announce)
