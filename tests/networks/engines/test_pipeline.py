"""Decoding and the network work at the same time, and few pictures are held however many there are."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.networks.encoder import Encoder
from tests.networks.engines.toys import colours
from tests.toys import write_images

BATCH = 4


class CountingEngine:
    """Notes how many pictures were decoded when it was called, and may first wait for the decoding to go on."""

    name = "counting"
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.decoded = 0
        self.begun = threading.Condition()
        self.seen: list[int] = []  # pictures decoded by the time of each call
        self.waits_for = 0

    def decode(self, encoder: Encoder, image: object) -> NDArray[np.uint8]:
        with self.begun:
            self.decoded += 1
            self.begun.notify_all()
        return np.zeros((encoder.backbone.crop, encoder.backbone.crop, 3), dtype=np.uint8)

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self.begun:
            assert self.begun.wait_for(lambda: self.decoded >= self.waits_for, timeout=120)
            self.seen.append(self.decoded)
        return np.ones((len(pixels), 3), dtype=np.float32)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    counting = CountingEngine()
    monkeypatch.setattr(Encoder, "pixels", lambda encoder, image: counting.decode(encoder, image))
    return counting


def test_at_most_three_batches_of_pictures_are_held(engine: CountingEngine, tmp_path: Path) -> None:
    paths = write_images(tmp_path, 10 * BATCH, size=8)
    table = Encoder(colours(), device="cpu", engine=engine).table(paths, batch=BATCH)
    assert table.features.all()
    assert len(engine.seen) == 10
    assert all(decoded <= BATCH * (call + 3) for call, decoded in enumerate(engine.seen))


def test_decoding_goes_on_while_the_network_computes(engine: CountingEngine, tmp_path: Path) -> None:
    """The first batch is in the network until the next two are decoded."""
    engine.waits_for = 3 * BATCH
    paths = write_images(tmp_path, 4 * BATCH, size=8)
    Encoder(colours(), device="cpu", engine=engine).table(paths, batch=BATCH)
    assert engine.seen[0] == 3 * BATCH
