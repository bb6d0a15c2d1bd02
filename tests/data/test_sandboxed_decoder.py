from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ImageError
from centerhash.data import sandboxed_decoder
from centerhash.data.images import load_views
from centerhash.data.sandboxed_decoder import Preprocessing, SandboxedDecoder
from tests.data.pictures import encoded, jpeg_of_scans, photo
from tests.toys import PATIENCE

pytestmark = pytest.mark.slow  # they start processes

SMALL = Preprocessing(64, 56, "bicubic", 10_000_000)


@pytest.fixture
def decoder() -> Iterator[SandboxedDecoder]:
    with closing(SandboxedDecoder(SMALL, PATIENCE)) as made:
        yield made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that have been started."""
    seen: list[subprocess.Popen[bytes]] = []
    start = sandboxed_decoder._start

    def remember(preprocessing: Preprocessing, memory: int) -> subprocess.Popen[bytes]:
        seen.append(start(preprocessing, memory))
        return seen[-1]

    monkeypatch.setattr(sandboxed_decoder, "_start", remember)
    return seen


def test_views_and_errors_are_those_of_load_views(
    decoder: SandboxedDecoder, started: list[subprocess.Popen[bytes]]
) -> None:
    for kind in ("PNG", "JPEG", "WEBP"):
        data = encoded(photo(300, 200), kind)
        assert np.array_equal(decoder.decode(data), load_views(data, **asdict(SMALL)))
    for broken in (b"", b"text", jpeg_of_scans(64, 101), encoded(Image.new("1", (4000, 4000)))):
        with pytest.raises(ImageError) as plain:
            load_views(broken, **asdict(SMALL))
        with pytest.raises(ImageError) as caught:
            decoder.decode(broken)
        assert str(caught.value) == str(plain.value)
    assert len(started) == 1
    decoder.close()
    assert started[0].returncode == 0


def test_what_takes_too_long_is_killed(started: list[subprocess.Popen[bytes]]) -> None:
    with closing(SandboxedDecoder(SMALL, 0.001)) as hasty:  # Python alone takes longer to start
        for _ in range(2):
            with pytest.raises(ImageError, match=r"not decoded within 0\.001 seconds"):
                hasty.decode(encoded(photo(30, 20)))
    assert [process.returncode for process in started] == [-9, -9]


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process has")


@linux
def test_memory_is_limited() -> None:
    large = encoded(Image.new("RGB", (3000, 3000)))  # 36 MB when decoded
    with closing(SandboxedDecoder(SMALL, PATIENCE)) as narrow:
        narrow.memory = 20_000_000
        with pytest.raises(ImageError, match="cannot read image bytes: there is not enough memory"):
            narrow.decode(large)
        assert narrow.decode(encoded(photo(30, 20))).shape == (1, 56, 56, 3)
    with closing(SandboxedDecoder(SMALL, PATIENCE)) as wide:
        assert wide.decode(large).shape == (1, 56, 56, 3)


@linux
def test_transparency_takes_the_image_and_its_result_and_little_more() -> None:
    clear = encoded(Image.new("RGBA", (3000, 3000)))  # 36 MB when decoded, and 36 as RGB
    with closing(SandboxedDecoder(SMALL, PATIENCE)) as narrow:
        narrow.memory = 120_000_000
        assert (narrow.decode(clear) == 255).all()


@linux
def test_a_process_does_not_know_the_token(
    decoder: SandboxedDecoder, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CENTERHASH_TOKEN", "correct horse")
    decoder.decode(encoded(photo(30, 20)))
    known = Path(f"/proc/{started[0].pid}/environ").read_bytes()
    assert b"PYTHONPATH" in known
    assert b"correct horse" not in known


def test_a_process_that_ended_is_replaced(
    decoder: SandboxedDecoder, started: list[subprocess.Popen[bytes]]
) -> None:
    data = encoded(photo(30, 20))
    first = decoder.decode(data)
    started[0].kill()
    started[0].wait()
    assert np.array_equal(decoder.decode(data), first)
    assert len(started) == 2


def test_threads_have_processes_of_their_own(decoder: SandboxedDecoder) -> None:
    sources = [encoded(photo(30 + width, 20)) for width in range(12)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(decoder.decode, sources))
    assert all(
        np.array_equal(views, load_views(data, **asdict(SMALL)))
        for views, data in zip(found, sources, strict=True)
    )
