"""The training loop: its rates, batches and gradients by hand, and the same result however often it is interrupted."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from centerhash.core.errors import DataError
from centerhash.losses.base import HashingLoss
from centerhash.model.model import save_tensors
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.context import EpochRow, RunContext
from centerhash.training.loop import (
    epoch_batches,
    epoch_seed,
    fit_head,
    learning_rate,
    make_objective,
    micro_batches,
)
from tests.toys import CLASSES, separable, toy_config

FEATURES, LABELS = separable(70)
ROWS = np.arange(len(FEATURES))
BRIEF = {"epochs": 5, "batch_size": 16}


class Interrupted(Exception):
    """Stands for a kill between two epochs."""


def objective(config: TrainConfig) -> HashingLoss:
    return make_objective(resolve(config), LABELS)


def trained(
    config: TrainConfig, rows: NDArray[np.int64] = ROWS, features: NDArray[Any] = FEATURES, **settings: Any
) -> tuple[nn.Module, list[EpochRow]]:
    return fit_head(features, rows, LABELS[rows], objective(config), config, RunContext(**settings))


def same_head(first: nn.Module, second: nn.Module) -> bool:
    first_state, second_state = first.state_dict(), second.state_dict()
    same_names = first_state.keys() == second_state.keys()
    return same_names and all(torch.equal(first_state[name], second_state[name]) for name in first_state)


def without_time(log: list[EpochRow]) -> list[EpochRow]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in log]


def stop_after(epochs: int) -> Callable[[list[EpochRow]], None]:
    def report(log: list[EpochRow]) -> None:
        if len(log) == epochs:
            raise Interrupted

    return report


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[nn.Module, list[EpochRow]]:
    return trained(toy_config(**BRIEF))


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        ("constant", {0.0: 0.2, 0.99: 0.2}),
        ("cosine", {0.0: 0.2, 1 / 3: 0.15, 0.5: 0.1, 2 / 3: 0.05, 1.0: 0.0}),
        ("steps", {0.0: 0.2, 0.33: 0.2, 0.34: 0.02, 0.66: 0.02, 0.67: 0.002, 0.999: 0.002}),
    ],
)
def test_learning_rate_by_hand(schedule: str, points: dict[float, float]) -> None:
    config = toy_config(schedule=schedule, learning_rate=0.2, epochs=30)
    for progress, expected in points.items():
        assert learning_rate(config, progress) == pytest.approx(expected, abs=1e-12)


def test_learning_rate_within_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *arguments: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    _, log = trained(toy_config(schedule="cosine", epochs=2, batch_size=35, learning_rate=0.2))
    assert rates == pytest.approx([0.1 * (1 + math.cos(math.pi * done / 4)) for done in range(4)])
    assert [row["learning_rate"] for row in log] == pytest.approx([0.1, 0.0])


def test_adam_decay_in_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adam has the length of the rate, along the sign of gradient plus 0.9 times the weights."""
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    step = torch.optim.Adam.step

    def recorded(self: torch.optim.Adam, *arguments: Any) -> Any:
        weights = self.param_groups[0]["params"][0]
        before, gradient = weights.detach().clone(), weights.grad.clone()
        result = step(self, *arguments)
        steps.append((before, gradient, weights.detach().clone()))
        return result

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    trained(toy_config(optimizer="adam", weight_decay=0.9, schedule="constant", learning_rate=1e-3, epochs=1))
    before, gradient, after = steps[0]
    total = gradient + 0.9 * before
    clear = total.abs() > 1e-3
    assert bool((gradient.sign() != total.sign())[clear].any()), "the decay must decide somewhere"
    torch.testing.assert_close((before - after)[clear], 1e-3 * total.sign()[clear], rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (5, 4, [5]),
        (3, 2, [3]),
        (2, 2, [2]),
        (3, 100, [3]),
        (1, 4, [1]),
    ],
)
def test_epoch_batches(count: int, size: int, expected: list[int]) -> None:
    batches = epoch_batches(count, size, torch.Generator().manual_seed(1))
    assert [len(batch) for batch in batches] == expected
    assert sorted(torch.cat(batches).tolist()) == list(range(count))


def test_epoch_seed_decides_order() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        return torch.cat(epoch_batches(50, 8, generator)).tolist()

    assert order(0, 3) == order(0, 3)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16
    assert len({epoch_seed(seed, epoch) for seed in range(30) for epoch in range(30)}) == 900


def test_fit_head_by_seed(uninterrupted: tuple[nn.Module, list[EpochRow]]) -> None:
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    head, log = trained(toy_config(**BRIEF))
    assert same_head(head, uninterrupted[0])
    assert without_time(log) == without_time(uninterrupted[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert not same_head(trained(toy_config(**BRIEF, seed=1))[0], head)


def test_fit_head_log(uninterrupted: tuple[nn.Module, list[EpochRow]]) -> None:
    head, log = uninterrupted
    assert not head.training
    assert [row["epoch"] for row in log] == [1, 2, 3, 4, 5]
    for row in log:
        terms = row.keys() - {"epoch", "loss", "learning_rate", "seconds"}
        assert terms
        assert row["loss"] == pytest.approx(sum(row[name] for name in terms), rel=1e-5)
        assert row["seconds"] >= 0


def test_fit_head_skips_unlabeled() -> None:
    config = toy_config(**BRIEF)
    features = np.concatenate([FEATURES, FEATURES[:5] * 100])
    labels = np.concatenate([LABELS, np.zeros((5, len(CLASSES)), bool)])
    inputs = features.copy(), labels.copy()
    head, _ = fit_head(features, np.arange(75), labels, objective(config), config, RunContext())
    assert same_head(head, trained(config)[0])
    assert np.array_equal(features, inputs[0])
    assert np.array_equal(labels, inputs[1])


def test_fit_head_reads_its_rows() -> None:
    config, rows = toy_config(**BRIEF), np.arange(3, 60, 2)
    spoiled = FEATURES.copy()
    spoiled[np.setdiff1d(ROWS, rows)] = np.nan
    assert same_head(trained(config, rows, spoiled)[0], trained(config, rows)[0])


def test_half_precision_features() -> None:
    config, half = toy_config(**BRIEF), FEATURES.astype(np.float16)
    first, second = (trained(config, features=stored)[0] for stored in (half, half.astype(np.float32)))
    assert same_head(first, second)


@pytest.mark.parametrize("stop", [1, 4, 5])
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["every epoch", "at the end"])
def test_resumed_run_equals_uninterrupted(
    uninterrupted: tuple[nn.Module, list[EpochRow]], tmp_path: Path, stop: int, seconds: float
) -> None:
    config, epochs = toy_config(**BRIEF), list[int]()
    with pytest.raises(Interrupted):
        trained(config, folder=tmp_path, checkpoint_seconds=seconds, on_epoch=stop_after(stop))
    stored = (tmp_path / "checkpoint.safetensors").exists()
    assert stored == (seconds == 0 or stop == 5)
    head, log = trained(
        config, folder=tmp_path, checkpoint_seconds=seconds, on_epoch=lambda log: epochs.append(len(log))
    )
    assert same_head(head, uninterrupted[0])
    assert without_time(log) == without_time(uninterrupted[1])
    assert epochs == list(range(stop if stored else 1, 6))


def test_checkpoint_of_another_run(tmp_path: Path) -> None:
    trained(toy_config(**BRIEF, bits=24), folder=tmp_path)
    with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
        trained(toy_config(**BRIEF), folder=tmp_path)


def test_damaged_checkpoint(tmp_path: Path) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    trained(config, folder=tmp_path)
    sound = checkpoint.read_bytes()
    damaged = [b"", b"no tensors", sound[:-9]]
    for position in random.Random(0).sample(range(len(sound)), 30):
        damaged.append(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
    for content in damaged:
        checkpoint.write_bytes(content)
        with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
            trained(config, folder=tmp_path)


def test_malformed_checkpoint(tmp_path: Path) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    _, log = trained(config, folder=tmp_path)
    tensors = load_file(checkpoint)
    unknown = {**tensors, "optimizer.x.step": torch.zeros(1)}
    logs = ("", "[", "{}", "[1]", '[{"epoch": 7}]', '[{"loss": 1}]')
    for content, text in [
        *((tensors, text) for text in logs),
        (unknown, "[]"),
        ({"a": torch.zeros(3)}, "[]"),
    ]:
        save_tensors(checkpoint, content, {"log": text})
        with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
            trained(config, folder=tmp_path)
    save_tensors(checkpoint, tensors, {"log": json.dumps(log)})
    trained(config, folder=tmp_path)


def test_loss_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(**BRIEF)
    broken = objective(config)
    monkeypatch.setattr(broken, "terms", lambda batch: {"center": batch.logits.sum() * math.nan})
    with pytest.raises(DataError, match=r"nan.*0\.02"):
        fit_head(FEATURES, ROWS, LABELS, broken, config, RunContext())


@pytest.mark.parametrize("labeled", [0, 1])
def test_too_few_labeled_images(labeled: int) -> None:
    labels = np.zeros((6, len(CLASSES)), bool)
    labels[:labeled, 0] = True
    config = toy_config()
    with pytest.raises(DataError, match=f"at least 2 images with labels, got {labeled}"):
        fit_head(FEATURES[:6], np.arange(6), labels, objective(config), config, RunContext())


def test_two_labeled_images() -> None:
    head, log = trained(toy_config(epochs=2), ROWS[:2])
    assert len(log) == 2
    assert all(torch.isfinite(value).all() for value in head.state_dict().values())


def test_accumulated_gradients() -> None:
    """Without batch norm and dropout, a central loss is a mean over images: parts add up to it."""
    head = HeadOptions(standardise=False, input_dropout=0.0, hidden=(8,), hidden_norm=False, dropout=0.0)
    single, accumulated = (
        toy_config(epochs=2, head=head, gradient_accumulation_steps=count) for count in (1, 4)
    )
    first, second = (trained(config)[0].state_dict() for config in (single, accumulated))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5)


def test_micro_batches() -> None:
    assert [len(part) for part in micro_batches(torch.arange(7), 4)] == [3, 2, 2]
    assert [part.tolist() for part in micro_batches(torch.arange(3), 8)] == [[0, 1, 2]]
