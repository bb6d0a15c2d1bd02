"""Images that nobody vouches for, decoded in processes of their own, which have limited time and memory.

No look at a header bounds what a decoder does: a JPEG2000 of 9 megapixels can take more than a gigabyte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ImageError
from centerhash.data.images import load_pixels

_PIXELS, _ERROR = b"P", b"E"  # what an answer begins with; then its length, and pixels or an error's text
_PACKAGES = Path(__file__).parents[2]
_ADVICE = "Shrink it, or save it again as JPEG or PNG"


@dataclass(frozen=True)
class View:
    """How images are read: as `load_pixels`."""

    resize: int
    crop: int
    interpolation: str
    max_pixels: int

    @property
    def memory(self) -> int:
        """Bytes that are enough for the largest image: the greediest decoder, JPEG2000, takes 24 per pixel."""
        return 24 * self.max_pixels + (64 << 20)


class Decoders:
    """Processes that decode, started as they are needed and used again; safe to use from several threads.

    One that takes more than `seconds` for an image is killed, and none gets more than `memory` bytes for it.
    """

    def __init__(self, view: View, seconds: float, memory: int | None = None) -> None:
        self.view, self.seconds, self.memory = view, seconds, memory or view.memory
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """As `load_pixels` of an image's bytes: (crop, crop, 3); ImageError also for what takes too much."""
        process = self._take()
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.seconds, kill)
        timer.start()
        try:
            kind, answer = _ask(process, data)
        except (OSError, EOFError):
            process.kill()
            code = _end(process)
            ended = f"its decoder ended with code {code}, out of memory or by a mistake"
            cause = f"it was not decoded within {self.seconds:g} seconds" if late.is_set() else ended
            raise ImageError(f"cannot read image bytes: {cause}. {_ADVICE}.") from None
        finally:
            timer.cancel()
            timer.join()
        self._give_back(process)
        if kind == _ERROR:
            raise ImageError(answer.decode())
        return np.frombuffer(answer, dtype=np.uint8).reshape(self.view.crop, self.view.crop, 3).copy()

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        return _start(self.view, self.memory)

    def _give_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        _end(process)

    def close(self) -> None:
        """End all processes; those at work end when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)


def _start(view: View, memory: int) -> subprocess.Popen[bytes]:
    asked = (view.resize, view.crop, view.interpolation, view.max_pixels, memory)
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    # one heap and one thread: each further one reserves addresses, which count as memory
    quiet = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    # a decoder that an image has taken over must not find the server's token
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CENTERHASH_")}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=kept | quiet,
        start_new_session=True,  # Ctrl-C is for the server, which first finishes what runs
    )


def _ask(process: subprocess.Popen[bytes], data: bytes) -> tuple[bytes, bytes]:
    """Send an image, wait for the answer: its kind, and what it holds."""
    assert process.stdin is not None
    assert process.stdout is not None
    _send(process.stdin, data)
    return _receive(process.stdout, 1), _received(process.stdout)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Close the pipes, at which a process that waits for work ends, and wait for it."""
    process.communicate()
    return process.returncode


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "big"))
    stream.write(data)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    return _receive(stream, int.from_bytes(_receive(stream, 8), "big"))


def _receive(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def decode_for(view: View, source: IO[bytes], target: IO[bytes]) -> None:
    """Answer images with pixels until there are no more: what a process does."""
    while True:
        try:
            data = _received(source)
        except EOFError:
            return
        try:
            pixels = load_pixels(
                data, view.resize, view.crop, interpolation=view.interpolation, max_pixels=view.max_pixels
            )
            kind, answer = _PIXELS, pixels.tobytes()
        except ImageError as error:
            kind, answer = _ERROR, str(error).encode()
        target.write(kind)
        _send(target, answer)


def limit_memory(extra: int) -> None:
    """Let this process take `extra` bytes more than it has, where the system can limit that."""
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux: the time is limited all the same
        return
    resource.setrlimit(resource.RLIMIT_AS, (held + extra, held + extra))


def main(arguments: Sequence[str]) -> None:
    """Decode what comes through standard input, with little memory."""
    with suppress(ImportError):  # an older Pillow has none
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    resize, crop, interpolation, max_pixels, memory = arguments
    view = View(int(resize), int(crop), interpolation, int(max_pixels))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the answers
    limit_memory(int(memory))
    decode_for(view, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
