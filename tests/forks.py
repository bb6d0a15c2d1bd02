"""Real processes of the command line without the cost of their start.

Importing torch and timm takes seconds of computing. Here one process imports them, computes nothing, and forks a child
per command: a real process with separate files, signals and environment, which can be killed at any moment.
tests/cli/test_processes.py tests processes that start by themselves, with variables that Python reads at its start.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent


class Fork:
    """A process of the command line, or of `-c PROGRAM`, with the methods of `subprocess.Popen`."""

    def __init__(
        self, words: list[str], out: int, err: int, environment: dict[str, str], session: bool = False
    ) -> None:
        request = {"words": words, "environment": environment, "folder": str(Path.cwd()), "session": session}
        self.pid: int = _request(request, out, err)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = _request({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        """Wait for the exit code."""
        limit = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired(["centerhash"], timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


_lock = threading.Lock()


def _request(message: dict[str, Any], *files: int) -> Any:
    with _lock:
        socket.send_fds(_parent(), [json.dumps(message).encode()], files)
        answer = _parent().recv(1000)
    assert answer, "the process that forks has ended"
    return json.loads(answer)


@functools.cache
def _parent() -> socket.socket:
    """The connection to the process that forks, which ends when the connection is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "NUMBA_NUM_THREADS": "1"},
            start_new_session=True,  # An interrupt of the tests does not reach it.
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(line: socket.socket) -> list[str] | None:
    """Fork for every request; return the words of a command in a child, and None in the parent at its end."""
    while True:
        data, files, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not data:
            return None
        message = json.loads(data)
        if "wait" in message:
            answer: Any = _exit_code(message["wait"])
        elif answer := os.fork():
            for file in files:
                os.close(file)
        else:
            line.close()
            _become(message, *files)
            words: list[str] = message["words"]
            return words
        line.send(json.dumps(answer).encode())


def _exit_code(pid: int) -> int | None:
    """The exit code of a child, or None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(message: dict[str, Any], out: int, err: int) -> None:
    """Take the session, files, environment and folder of the command."""
    if message["session"]:
        os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    # The parent's streams may be of another kind: a pipe cannot seek.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])


def _import_all() -> None:
    """Import the modules of all commands, without starting threads, which a child would not have."""
    import lightning_fabric  # noqa: F401

    import centerhash.cli

    # The tables of a comparison need pandas, whose pyarrow starts a thread.
    import centerhash.experiments.tasks
    import centerhash.photos
    import centerhash.serve
    import centerhash.training.run  # noqa: F401
    from centerhash.networks.backbones import import_timm

    import_timm()
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    gc.collect()
    # Otherwise every child visits all objects as it ends, and copies their pages: more than a second.
    gc.freeze()


def read(file: IO[bytes]) -> bytes:
    """The whole content of a file, without moving the position of its writers."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


if __name__ == "__main__":
    _import_all()
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None and command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    elif command is not None:
        sys.argv = ["centerhash", *command]
        runpy.run_module("centerhash", run_name="__main__", alter_sys=True)
