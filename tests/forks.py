"""Real processes of the command line without what their start costs.

Importing torch and timm takes a process several seconds of computing. Here one process imports them, computes nothing,
and forks a child per command: a process of its own, with its own files, signals and environment, that can be killed at
any moment. That a process starts by itself is tested in tests/cli/test_processes.py; what Python reads from the
environment when it starts (PYTHONIOENCODING) needs such a one too.
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
    """A process of the command line, or of `-c PROGRAM`, as `subprocess.Popen` would show it."""

    seconds = 0.0  # what all of them that have ended cost the cpu_count

    def __init__(
        self, words: list[str], out: int, err: int, environment: dict[str, str], session: bool = False
    ) -> None:
        asked = {"words": words, "environment": environment, "folder": str(Path.cwd()), "session": session}
        self.pid: int = _ask(asked, out, err)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None."""
        if self.returncode is None:
            self.returncode, seconds = _ask({"wait": self.pid})
            Fork.seconds += seconds
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        """How it ended, once it did."""
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


_one_at_a_time = threading.Lock()


def _ask(message: dict[str, Any], *files: int) -> Any:
    with _one_at_a_time:
        socket.send_fds(_parent(), [json.dumps(message).encode()], files)
        answer = _parent().recv(1000)
    assert answer, "the process that forks has ended"
    return json.loads(answer)


@functools.cache
def _parent() -> socket.socket:
    """The line to the process that forks; it ends when the line is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "NUMBA_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt of the tests is not for it
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(line: socket.socket) -> list[str] | None:
    """Fork whenever asked to. Returns the words of a command in a child, and None in the parent at its end."""
    while True:
        data, files, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not data:
            return None
        message = json.loads(data)
        if "wait" in message:
            answer: Any = _ended(message["wait"])
        elif answer := os.fork():
            for file in files:
                os.close(file)
        else:
            line.close()
            _become(message, *files)
            words: list[str] = message["words"]
            return words
        line.send(json.dumps(answer).encode())


def _ended(pid: int) -> tuple[int | None, float]:
    """The code that a child ended with, if it did, and what it cost the cpu_count."""
    ended, status, used = os.wait4(pid, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime) if ended else (None, 0.0)


def _become(message: dict[str, Any], out: int, err: int) -> None:
    """Take the place that a new process would have."""
    if message["session"]:
        os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    # the parent's may have been of another kind: a pipe cannot seek
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])


def _import_all() -> None:
    """What commands import, but nothing that starts threads, which no child would have."""
    import lightning_fabric  # noqa: F401

    import centerhash.cli
    import centerhash.experiments.compare
    import centerhash.search
    import centerhash.serve
    import centerhash.training.run  # noqa: F401
    from centerhash.networks.backbones import import_timm

    import_timm()
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    gc.collect()
    gc.freeze()  # else every child goes through all objects as it ends, and copies their pages: a second and more


def read(file: IO[bytes]) -> bytes:
    """All that has been written to a file; where its writers go on is not moved."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


if __name__ == "__main__":
    _import_all()
    given = _serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None and given[0] == "-c":
        sys.argv = ["-c", *given[2:]]
        exec(compile(given[1], "<string>", "exec"), {"__name__": "__main__"})
    elif given is not None:
        sys.argv = ["centerhash", *given]
        runpy.run_module("centerhash", run_name="__main__", alter_sys=True)
