"""Reaching Milvus: addresses, the child process behind a milvus-lite file, and errors in plain words."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.extras import require
from centerhash.core.files import make_folder

_SCHEMES = ("http://", "https://", "tcp://")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")  # what milvus-lite takes

_START_SECONDS = 60  # that milvus-lite may take until it answers, on the busiest machine
_END_SECONDS = 3  # that the milvus-lite of a process that was killed may take to notice

# milvus-lite drops a client that pings it every ten seconds, as pymilvus does; a socket of this machine needs no pings
_LOCAL = {"grpc.keepalive_time_ms": 2**31 - 1, "grpc.keepalive_permit_without_calls": False}

_uses: Counter[Path] = Counter()  # milvus-lite has one child process per file, shared by all its users here
_uses_lock = threading.Lock()


class Connection:
    """A client of one Milvus: every call has a timeout, and what goes wrong is told as DataError."""

    def __init__(self, address: str, timeout: float, *, create: bool = False) -> None:
        """Connect to a server or a cluster, or open a milvus-lite file; only `create` may make a new file."""
        self.shown = shown(address)
        self.timeout = timeout
        self._file = file_of(address)
        client = _load("pymilvus").MilvusClient
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its errors come back as ours
        uri = address if self._file is None else _start(self._file, create)
        try:
            with explained(self.shown):
                options = {} if self._file is None else {"grpc_options": _LOCAL}
                self._client = client(uri, timeout=timeout, dedicated=True, **options)
        except BaseException:
            self._stop()
            raise
        self._open = True

    @property
    def embedded(self) -> bool:
        """Whether this is a milvus-lite file."""
        return self._file is not None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the client's `method` with the timeout of this connection."""
        if not self._open:
            raise InputError(f"the index at '{self.shown}' is closed: open it again.")
        action: Callable[..., Any] = getattr(self._client, method)
        with explained(self.shown):
            return action(*arguments, timeout=self.timeout, **options)

    def close(self) -> None:
        """Give back the channel, and the child process of a file; a second call does nothing."""
        if self._open:
            self._open = False
            self._client.close()
            self._stop()

    def _stop(self) -> None:
        if self._file is not None:
            _stop(self._file)


def file_of(address: str) -> Path | None:
    """The file of a milvus-lite address, or None for a server; anything else is refused."""
    if address.startswith(_SCHEMES):
        return None
    if not address.endswith(".db"):
        raise ConfigError(
            f"a Milvus address is a file that ends in .db, or a server such as http://host:19530, got '{address}'."
        )
    file = Path(address).absolute().resolve()
    if not _FILE_NAME.fullmatch(file.name):
        raise ConfigError(
            f"milvus-lite takes file names of up to 36 letters, digits, '.', '_' and '-', got '{file.name}'."
        )
    return file


def shown(address: str) -> str:
    """The address without the password that it may carry."""
    return re.sub(r"//[^/]*@", "//", address)


@contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn what the client raises into a DataError that names the address."""
    refusal, silence = _load("pymilvus.exceptions").MilvusException, _load("grpc").RpcError
    try:
        yield
    except refusal as error:
        raise DataError(
            f"Milvus at '{address}' failed: {_reason(error.message)}. Check the address and that it runs."
        ) from error
    except silence as error:
        raise DataError(
            f"Milvus at '{address}' does not answer: {_reason(error)}. Check the address and that it runs."
        ) from error


def _reason(error: object) -> str:
    """The first line of a client's message, without its full stop."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return lines[0][:300].rstrip(". ")


def _load(module: str) -> Any:
    """Import a module of the optional libraries, or say what to install."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # milvus-lite 2.5 looks itself up with pkg_resources
        return require(module)


def _start(file: Path, create: bool) -> str:
    """Start milvus-lite on `file`, unless this process has it running, and return the address of its socket."""
    if create:
        make_folder(file.parent)
    elif not file.is_file():
        raise DataError(f"no such index: '{file}'. Create it first.")
    servers = _load("milvus_lite.server_manager").server_manager_instance
    with _uses_lock:
        _refuse_second_process(file)
        uri: str | None = servers.start_and_get_uri(str(file))
        if uri is None:
            raise _unusable(file)
        if not _uses[file]:
            try:
                _wait_for_socket(file, Path(uri.removeprefix("unix:")), servers._servers[str(file)]._p)
            except BaseException:
                servers.release_server(str(file))
                raise
        _uses[file] += 1
        return uri


def _wait_for_socket(file: Path, place: Path, child: subprocess.Popen[bytes]) -> None:
    """Return when milvus-lite listens: it says that it has started after half a second, ready or not."""
    limit = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                return probe.connect(str(place))
            except OSError as error:
                reason = error
        if child.poll() is not None:
            raise _unusable(file)
        if time.monotonic() > limit:
            raise DataError(
                f"milvus-lite has not opened '{file}' after {_START_SECONDS} seconds ({reason}). Try again when the "
                "machine is less busy, or use a Milvus server."
            )
        time.sleep(0.02)


def _unusable(file: Path) -> DataError:
    return DataError(f"milvus-lite cannot open '{file}': is it a milvus-lite file, and writable?")


def _stop(file: Path) -> None:
    """End the child process of `file` when its last user here is gone: the client would leave it running."""
    servers = _load("milvus_lite.server_manager").server_manager_instance
    with _uses_lock:
        _uses[file] -= 1
        if not _uses[file]:
            del _uses[file]
            servers.release_server(str(file))


def _refuse_second_process(file: Path) -> None:
    """Refuse a file that another process has open: milvus-lite would take that one's lock file away.

    Not asked while this process has the file open, since closing the lock file once would give its lock back.
    """
    lock = file.parent / f".{file.name}.lock"
    if _uses[file]:
        return
    limit = time.monotonic() + _END_SECONDS
    while _is_locked(lock):
        if time.monotonic() < limit:
            time.sleep(0.05)
            continue
        raise DataError(
            f"'{file}' is open in another process: a milvus-lite file has one at a time. Close it there, or use a "
            "Milvus server."
        )


def _is_locked(lock: Path) -> bool:
    """Whether a milvus-lite holds its lock file; in its own way, which `filelock` would not notice."""
    import fcntl  # there is no milvus-lite for systems without it

    if not lock.exists():
        return False
    with lock.open("a") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
