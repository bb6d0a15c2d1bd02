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
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import CentralObjective
from centerhash.methods.registry import get_method
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.tensors import save_tensors
from centerhash.training.config import TrainConfig
from centerhash.training.loop import epoch_batches, epoch_seed, fit_head, learning_rate, micro_batches
from centerhash.training.run_folder import EpochRow
from centerhash.training.session import Session
from tests.toys import CLASSES, separable, toy_config

FEATURES, LABELS = separable(70)
ROWS = np.arange(len(FEATURES))
BRIEF = {"epochs": 5, "batch_size": 16}


class Interrupted(Exception):
    """Stands for a kill between two epochs."""


def objective(config: TrainConfig) -> CentralObjective:
    method = get_method(config.method)
    centers = torch.from_numpy(hash_centers(len(CLASSES), config.bits, config.seed))
    return method.objective(
        centers.shape[0], config.bits, centers, method.options(config.options, config.bits), config.seed
    )


def trained(
    config: TrainConfig, rows: NDArray[np.int64] = ROWS, features: NDArray[Any] = FEATURES, **settings: Any
) -> tuple[nn.Module, list[EpochRow]]:
    return fit_head(features, rows, LABELS[rows], objective(config), config, Session(**settings))


def same_head(first: nn.Module, second: nn.Module) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_time(log: list[EpochRow]) -> list[EpochRow]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in log]


def stop_after(epochs: int) -> Callable[[list[EpochRow]], None]:
    def report(log: list[EpochRow]) -> None:
        if len(log) == epochs:
            raise Interrupted

    return report


@pytest.fixture(scope="module")
def unbroken() -> tuple[nn.Module, list[EpochRow]]:
    return trained(toy_config(**BRIEF))


def test_the_learning_rate_by_hand() -> None:
    for schedule, progress, expected in (
        ("constant", 0.0, 0.2),
        ("constant", 0.99, 0.2),
        ("cosine", 0.0, 0.2),
        ("cosine", 1 / 3, 0.15),
        ("cosine", 0.5, 0.1),
        ("cosine", 2 / 3, 0.05),
        ("cosine", 1.0, 0.0),
        ("steps", 0.0, 0.2),
        ("steps", 0.33, 0.2),
        ("steps", 0.34, 0.02),
        ("steps", 0.66, 0.02),
        ("steps", 0.67, 0.002),
        ("steps", 0.999, 0.002),
        ("decay", 0.0, 0.2),
        ("decay", 0.33, 0.2),
        ("decay", 1 / 3, 0.14),
        ("decay", 2 / 3, 0.098),
        ("decay", 0.99, 0.098),
    ):
        config = toy_config(schedule=schedule, learning_rate=0.2, epochs=30)
        assert learning_rate(config, progress) == pytest.approx(expected, abs=1e-12)


def test_the_learning_rate_moves_within_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, *arguments: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    config = toy_config(schedule="cosine", epochs=2, batch_size=35, learning_rate=0.2)
    _, log = trained(config)
    expected = [0.2 * 0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    assert rates == pytest.approx(expected)
    assert [row["learning_rate"] for row in log] == pytest.approx([0.1, 0.0])


def test_adam_has_the_decay_within_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adam has the length of the rate, along the sign of gradient plus 0.9 times the weights."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, *arguments: Any) -> Any:
        weights = self.param_groups[0]["params"][0]
        before, gradient = weights.detach().clone(), weights.grad.clone()
        found = step(self, *arguments)
        seen.append((before, gradient, weights.detach().clone()))
        return found

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    config = toy_config(optimizer="adam", weight_decay=0.9, schedule="constant", learning_rate=1e-3, epochs=1)
    trained(config)
    before, gradient, after = seen[0]
    whole = gradient + 0.9 * before
    clear = whole.abs() > 1e-3
    assert bool(clear.any())
    assert bool((gradient.sign() != whole.sign()).any()), "the decay must decide somewhere"
    torch.testing.assert_close((before - after)[clear], 1e-3 * whole.sign()[clear], rtol=1e-2, atol=0)


def test_batches_hold_every_row_once_and_never_leave_one_alone() -> None:
    for count, size, expected in (
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (5, 4, [5]),
        (3, 2, [3]),
        (2, 2, [2]),
        (3, 100, [3]),
        (1, 4, [1]),
    ):
        batches = epoch_batches(count, size, torch.Generator().manual_seed(1))
        assert [len(batch) for batch in batches] == expected
        assert sorted(torch.cat(batches).tolist()) == list(range(count))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        return torch.cat(epoch_batches(50, 8, generator)).tolist()

    assert order(0, 3) == order(0, 3)
    seen = {tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(seen) == 16
    assert len({epoch_seed(seed, epoch) for seed in range(30) for epoch in range(30)}) == 900


def test_the_seed_alone_decides_the_model(unbroken: tuple[nn.Module, list[EpochRow]]) -> None:
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    head, log = trained(toy_config(**BRIEF))
    assert same_head(head, unbroken[0])
    assert without_time(log) == without_time(unbroken[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert not same_head(trained(toy_config(**BRIEF, seed=1))[0], head)


def test_inputs_stay_as_they_are() -> None:
    features, labels, rows = FEATURES.copy(), LABELS.copy(), ROWS.copy()
    config = toy_config(**BRIEF)
    fit_head(features, rows, labels, objective(config), config, Session())
    assert np.array_equal(features, FEATURES)
    assert np.array_equal(labels, LABELS)
    assert np.array_equal(rows, ROWS)


def test_the_log_names_epoch_loss_parts_rate_and_time(
    unbroken: tuple[nn.Module, list[EpochRow]],
) -> None:
    head, log = unbroken
    assert not head.training
    assert [row["epoch"] for row in log] == [1, 2, 3, 4, 5]
    for row in log:
        parts = {name: value for name, value in row.items() if name not in LOGGED}
        assert parts
        assert row["loss"] == pytest.approx(sum(parts.values()), rel=1e-5)
        assert row["seconds"] >= 0


LOGGED = ("epoch", "loss", "learning_rate", "seconds")


def test_images_without_a_label_change_nothing() -> None:
    config = toy_config(**BRIEF)
    features = np.concatenate([FEATURES, FEATURES[:5] * 100])
    labels = np.concatenate([LABELS, np.zeros((5, len(CLASSES)), bool)])
    with_bare = fit_head(features, np.arange(len(features)), labels, objective(config), config, Session())
    assert same_head(with_bare[0], trained(config)[0])


def test_only_the_given_rows_are_seen() -> None:
    config, rows = toy_config(**BRIEF), np.arange(3, 60, 2)
    spoiled = FEATURES.copy()
    spoiled[np.setdiff1d(ROWS, rows)] = np.nan
    head, _ = trained(config, rows, spoiled)
    assert same_head(head, trained(config, rows)[0])


def test_half_precision_features_are_trained_in_single_precision() -> None:
    config, half = toy_config(**BRIEF), FEATURES.astype(np.float16)
    first, _ = trained(config, features=half)
    second, _ = trained(config, features=half.astype(np.float32))
    assert same_head(first, second)


@pytest.mark.parametrize("stop", [1, 2, 4, 5])
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["every epoch", "only at the end"])
def test_a_run_that_resumes_equals_an_unbroken_one(
    unbroken: tuple[nn.Module, list[EpochRow]], tmp_path: Path, stop: int, seconds: float
) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        trained(config, folder=tmp_path, checkpoint_seconds=seconds, on_epoch=stop_after(stop))
    checkpoint_was_there = checkpoint.exists()
    assert checkpoint_was_there == (seconds == 0 or stop == 5)
    epochs: list[int] = []
    head, log = trained(
        config,
        folder=tmp_path,
        checkpoint_seconds=seconds,
        on_epoch=lambda log: epochs.append(len(log)),
    )
    assert same_head(head, unbroken[0])
    assert without_time(log) == without_time(unbroken[1])
    assert epochs == list(range(stop if checkpoint_was_there else 1, 6))  # what was restored is told first


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "other run"])
def test_a_checkpoint_that_cannot_be_taken_up_is_named(tmp_path: Path, damage: str) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    trained(toy_config(**BRIEF, bits=24) if damage == "other run" else config, folder=tmp_path)
    if damage != "other run":
        content = {"empty": b"", "text": b"no tensors", "cut": checkpoint.read_bytes()[:-9]}
        checkpoint.write_bytes(content[damage])
    with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
        trained(config, folder=tmp_path)


def test_a_loss_that_is_not_a_number_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(**BRIEF)
    broken = objective(config)
    monkeypatch.setattr(broken, "terms", lambda batch: {"center": batch.logits.sum() * math.nan})
    with pytest.raises(DataError, match=r"loss became nan in epoch 1.*0\.02"):
        fit_head(FEATURES, ROWS, LABELS, broken, config, Session())


@pytest.mark.parametrize("labelled", [0, 1])
def test_too_few_labelled_images_are_refused(labelled: int) -> None:
    labels = np.zeros((6, len(CLASSES)), bool)
    labels[:labelled, 0] = True
    config = toy_config()
    with pytest.raises(DataError, match=f"at least 2 images with labels, got {labelled}"):
        fit_head(FEATURES[:6], np.arange(6), labels, objective(config), config, Session())


def test_two_labelled_images_are_enough() -> None:
    head, log = trained(toy_config(epochs=2), ROWS[:2])
    assert len(log) == 2
    assert all(torch.isfinite(value).all() for value in head.state_dict().values())


def test_a_batch_in_parts_has_the_gradients_of_the_whole() -> None:
    """Without batch norm and dropout, a central loss is a mean over images: parts add up to it."""
    head = HeadOptions(standardise=False, input_dropout=0.0, hidden=(8,), hidden_norm=False, dropout=0.0)
    whole, parts = (toy_config(epochs=2, head=head, accumulate=count) for count in (1, 4))
    one, two = (trained(config)[0].state_dict() for config in (whole, parts))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_parts_of_a_batch_have_two_rows_or_more() -> None:
    sizes = [len(part) for part in micro_batches(torch.arange(7), 4)]
    assert sizes == [3, 2, 2]
    assert [part.tolist() for part in micro_batches(torch.arange(3), 8)] == [[0, 1, 2]]


def test_every_changed_byte_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    trained(config, folder=tmp_path)
    sound = checkpoint.read_bytes()
    for place in random.Random(0).sample(range(len(sound)), 60):
        content = bytearray(sound)
        content[place] ^= 1 << place % 8
        checkpoint.write_bytes(content)
        with pytest.raises(DataError):
            trained(config, folder=tmp_path)


def test_a_malformed_checkpoint_is_named(tmp_path: Path) -> None:
    config, checkpoint = toy_config(**BRIEF), tmp_path / "checkpoint.safetensors"
    _, log = trained(config, folder=tmp_path)
    tensors = load_file(checkpoint)
    unknown = {**tensors, "optimizer.x.step": torch.zeros(1)}
    logs = ("", "[", "{}", "[1]", '[{"epoch": 7}]', '[{"loss": 1}]')
    for content, text in [*((tensors, log) for log in logs), (unknown, "[]"), ({"a": torch.zeros(3)}, "[]")]:
        save_tensors(checkpoint, content, {"log": text})
        with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
            trained(config, folder=tmp_path)
    save_tensors(checkpoint, tensors, {"log": json.dumps(log)})
    trained(config, folder=tmp_path)
