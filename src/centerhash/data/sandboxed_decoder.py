"""Decode untrusted images in separate processes with limited time and memory.

A header does not bound what a decoder does: a JPEG2000 of 9 megapixels can take more than a gigabyte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ImageError
from centerhash.data.images import load_views

_PIXELS, _ERROR = b"P", b"E"  # first byte of a reply; its length follows, then pixels or an error's text
_PACKAGES = Path(__file__).parents[2]
_ADVICE = "Shrink it, or save it again as JPEG or PNG"


@dataclass(frozen=True)
class Preprocessing:
    """The arguments of `load_views`."""

    resize: int
    crop: int
    interpolation: str
    max_pixels: int


class SandboxedDecoder:
    """A pool of decoding processes, started on demand and reused; safe to use from several threads.

    A process that takes more than `seconds` for an image is killed, and none gets more than `memory` bytes for it.
    """

    def __init__(self, preprocessing: Preprocessing, seconds: float) -> None:
        self.preprocessing, self.seconds = preprocessing, seconds
        # enough for the largest image: the greediest decoder, JPEG2000, takes 24 bytes per pixel
        self.memory = 24 * preprocessing.max_pixels + (64 << 20)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """Decode as `load_views`: (n, crop, crop, 3); ImageError also for images that exceed a limit."""
        process = self._acquire()
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.seconds, kill)
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, data)
            kind, reply = _read(process.stdout, 1), _receive(process.stdout)
        except (OSError, EOFError):
            process.kill()
            code = _close(process)
            exited = f"its decoder exited with code {code}, out of memory or by a mistake"
            cause = f"it was not decoded within {self.seconds:g} seconds" if late.is_set() else exited
            raise ImageError(f"cannot read image bytes: {cause}. {_ADVICE}.") from None
        finally:
            timer.cancel()
            timer.join()
        self._release(process)
        if kind == _ERROR:
            raise ImageError(reply.decode())
        crop = self.preprocessing.crop
        return np.frombuffer(reply, dtype=np.uint8).reshape(-1, crop, crop, 3).copy()

    def _acquire(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _close(process)
        return _start(self.preprocessing, self.memory)

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        _close(process)

    def close(self) -> None:
        """Stop all processes; busy ones stop when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            _close(process)


def _start(preprocessing: Preprocessing, memory: int) -> subprocess.Popen[bytes]:
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    # one heap and one thread: each further one reserves addresses, which count as memory
    quiet = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    # a decoder that an image has taken over must not find the server's token
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CENTERHASH_")}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, (*astuple(preprocessing), memory))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=kept | quiet,
        # Ctrl-C is for the server, which first finishes what runs
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
    )


def _close(process: subprocess.Popen[bytes]) -> int:
    """Close the pipes, which stops an idle process, and wait for it."""
    process.communicate()
    return process.returncode


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "big"))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    return _read(stream, int.from_bytes(_read(stream, 8), "big"))


def _read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def decode_all(preprocessing: Preprocessing, source: IO[bytes], target: IO[bytes]) -> None:
    """Reply to images with pixels until there are no more: the loop of a decoding process."""
    while True:
        try:
            data = _receive(source)
        except EOFError:
            return
        try:
            kind, reply = _PIXELS, load_views(data, **asdict(preprocessing)).tobytes()
        except ImageError as error:
            kind, reply = _ERROR, str(error).encode()
        target.write(kind)
        _send(target, reply)


def limit_memory(extra: int) -> None:
    """Limit this process to `extra` bytes more than it has, if the system can do that."""
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux: only the time is limited
        return
    resource.setrlimit(resource.RLIMIT_AS, (held + extra, held + extra))


def main(arguments: Sequence[str]) -> None:
    """Decode images from standard input with limited memory."""
    with suppress(ImportError):  # an older Pillow has none
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    resize, crop, interpolation, max_pixels, memory = arguments
    preprocessing = Preprocessing(int(resize), int(crop), interpolation, int(max_pixels))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the replies
    limit_memory(int(memory))
    decode_all(preprocessing, sys.stdin.buffer, replies)


if __name__ == "__main__":
    main(sys.argv[1:])
