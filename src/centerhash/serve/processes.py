"""Several processes that serve one index, which they only read, on one socket: a Python process uses about one core."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from centerhash.core.errors import DataError
from centerhash.search import Index
from centerhash.serve.app import create_app, listen, reading, run, warm_up, with_hosts
from centerhash.serve.limits import Settings

log = logging.getLogger("centerhash.serve")

_SPAWNED = multiprocessing.get_context("spawn")  # a fork would copy locks of threads that do not exist in it
_LOOK_SECONDS = 0.5  # between looks at the signals


@dataclass
class _Part:
    """One of the processes."""

    process: BaseProcess
    ready: Event


def serve_in_processes(
    folder: Path,
    settings: Settings,
    host: str,
    port: int,
    count: int,
    announce: Callable[[list[str], Index], None],
) -> None:
    """Serve an index in `count` processes until SIGTERM or SIGINT; a process that dies is started again.

    `announce` is called once all of them are ready. Each has its own network, codes, thumbnails and metrics.
    """
    stop, known = threading.Event(), (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in known}
    parts: list[_Part] = []
    try:
        with listen(host, port) as listener, Index.open(folder, read_only=True) as index:
            settings, addresses = with_hosts(settings, host)
            settings = settings.model_copy(update={"workers": max(1, settings.workers // count)})
            parts += [_start(folder, settings, listener) for _ in range(count)]
            for part in parts:
                while not part.ready.wait(_LOOK_SECONDS) and not stop.is_set():
                    if part.process.exitcode is not None:
                        raise DataError(f"a process of the server ended with code {part.process.exitcode}.")
            if not stop.is_set():
                number = listener.getsockname()[1]
                announce([f"http://{each}:{number}" for each in addresses], index)
            while not stop.is_set():
                ended = wait([part.process.sentinel for part in parts], _LOOK_SECONDS)
                for place, part in enumerate(parts):
                    if part.process.sentinel in ended and not stop.is_set():
                        log.error(
                            "a process ended with code %s: another one is started", part.process.exitcode
                        )
                        parts[place] = _start(folder, settings, listener)
    finally:
        for part in parts:
            part.process.terminate()  # it finishes the requests in progress
        for part in parts:
            part.process.join()
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _start(folder: Path, settings: Settings, listener: socket.socket) -> _Part:
    ready = _SPAWNED.Event()
    process = _SPAWNED.Process(target=_serve_part, args=(folder, settings, listener, ready))
    process.start()
    return _Part(process, ready)


def _serve_part(folder: Path, settings: Settings, listener: socket.socket, ready: Event) -> None:
    """Serve in this process, as long as the one that started it lives."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    with Index.open(folder, read_only=True, **reading(settings)) as index:
        warm_up(index)
        app = create_app(index, settings)
        ready.set()
        run(app, settings, listener)
