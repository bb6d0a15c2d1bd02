"""The names of `import centerhash`: listed, quick to import, and with one-line errors for common mistakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import centerhash as ch


def test_public_names() -> None:
    assert dir(ch) == sorted(ch.__all__)
    for name in ch.__all__:
        assert getattr(ch, name) is not None


@pytest.mark.slow
def test_import_is_light() -> None:
    script = (
        "import sys, centerhash; sys.exit(bool({'torch', 'numba', 'rich', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_arrays_to_search(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((120, 4)) < 0.4
    features = torch.from_numpy(
        labels @ generator.normal(size=(4, 12)) + 0.1 * generator.normal(size=(120, 12))
    )
    data = ch.Dataset.from_arrays(features.float(), labels, ["ant", "bee", "cat", "dog"])
    model = ch.train(data, method="ics", bits=16, epochs=3, progress=False)
    assert len(data) == 120
    assert ch.evaluate(model, data, k=20).map_retrieved > 0.5
    model.save(tmp_path / "run")
    with ch.Index.create(tmp_path / "index", ch.load(tmp_path / "run")) as index:
        index.add(features.float().numpy(), ids=[f"item {row}" for row in range(120)])
        assert len(index.search(labels=["ant"], k=5)) == 5
        assert "item 7" not in [result.id for result in index.search(id="item 7", k=5)]


def test_loss_in_own_loop() -> None:
    centers = torch.from_numpy(ch.hash_centers(4, 16))
    logits = torch.randn(8, 16, requires_grad=True)
    labels = torch.rand(8, 4) < 0.5
    ch.losses.ICSLoss(centers)(logits, labels).backward()
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


@pytest.mark.parametrize(
    "mistake",
    [
        lambda folder: ch.load(folder / "nowhere"),
        lambda folder: ch.load(None),
        lambda folder: ch.open_dataset(folder / "nowhere"),
        lambda folder: ch.open_dataset(7),
        lambda folder: ch.train(folder / "nowhere"),
        lambda folder: ch.train(None),
        lambda folder: ch.TrainConfig(bits=7),
        lambda folder: ch.TrainConfig(bitz=16),
        lambda folder: ch.Index.open(folder / "nowhere"),
        lambda folder: ch.Index.create(folder / "index", 7),
        lambda folder: ch.Dataset.from_arrays("features", "labels"),
        lambda folder: ch.hash_centers(0, 16),
        lambda folder: ch.pack("codes"),
    ],
)
def test_mistakes(mistake: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(ch.CenterhashError) as caught:
        mistake(tmp_path)
    assert 10 < len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError):
        ch.fitt  # noqa: B018
