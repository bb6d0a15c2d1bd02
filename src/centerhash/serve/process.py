"""Running the server as a process: uvicorn with our own connections, and a graceful stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import uvicorn
from fastapi import FastAPI
from PIL import Image

from centerhash.core.errors import ConfigError
from centerhash.search import Index
from centerhash.serve.app import create_app
from centerhash.serve.background import Filling
from centerhash.serve.connections import Seldom, patient
from centerhash.serve.guard import LOOPBACK
from centerhash.serve.settings import Settings


def reading(settings: Settings) -> dict[str, Any]:
    """How a server's index reads images: for `Index.open`."""
    pixels = int(settings.max_megapixels * 1e6)
    return {"device": settings.device, "engine": settings.engine, "max_pixels": pixels}


def serve_index(
    index: Index,
    settings: Settings,
    host: str,
    port: int,
    announce: Callable[[str, Index], None],
    counted: Callable[[int], None] | None = None,
    filling: Filling | None = None,
) -> None:
    """Serve an open index until SIGTERM or SIGINT; requests that run then are finished first.

    `announce` is called as soon as clients may connect, with the address and the index, and `counted` soon
    after with the number of images whose files are gone. With `filling`, images are added to it meanwhile.
    """
    settings = settings.model_copy(update={"hosts": allowed_hosts(host, settings.hosts)})
    _share_cores(settings.workers)
    with listen(host, port) as listener:
        if index.model.spec.backbone is not None:  # the first visitor need not wait for network and search
            index.search(Image.new("RGB", (32, 32)), k=1)
        app = create_app(index, settings, None if filling is None else lambda: filling.left, counted)
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{listener.getsockname()[1]}", index)
        with filling or nullcontext():
            run(app, settings, listener)


def allowed_hosts(host: str, named: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a server on `host` answers to: on loopback its own and those named, elsewhere any unless named."""
    return tuple(dict.fromkeys((*LOOPBACK, *map(str.lower, named)))) if named or _is_loopback(host) else ()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def run(app: FastAPI, settings: Settings, listener: socket.socket) -> None:
    """Run the application on an open socket until a signal tells it to stop."""
    config = uvicorn.Config(
        app,
        http=patient(settings.timeout, settings.connections),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout) + 5,
    )
    loop_log, seldom = logging.getLogger("asyncio"), Seldom()
    loop_log.addFilter(seldom)
    try:
        _Server(config).run(sockets=[listener])
    finally:
        loop_log.removeFilter(seldom)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket; ConfigError where the address or the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        host.encode("idna")  # where this fails, create_server fails too, but leaves its socket open
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another `host=` or `port=`."
        ) from None


class _Server(uvicorn.Server):
    """uvicorn's server, which after a graceful stop would kill its own process with the signal once more."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _share_cores(workers: int) -> None:
    """Let workers that are in the network at once share the cores rather than fight for them."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
