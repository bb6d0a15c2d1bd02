"""A run may end at any moment and goes on to the same result."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from centerhash.core.errors import OutputError
from centerhash.training.run import train
from tests.toys import (
    QUICK,
    RUN_FILES,
    Killed,
    cli,
    names,
    refused,
    run_contents,
    run_log,
    started,
    toy_config,
    wait_for_process,
    write_feature_folder,
)

BRIEF = {"epochs": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A feature folder, and a run on it that nothing interrupted."""
    base = tmp_path_factory.mktemp("unbroken")
    folder = write_feature_folder(base / "data", count=60)
    train(folder, config=toy_config(**BRIEF), out=base / "run")
    return folder, base / "run"


class Writes:
    """Counts the files that are put in place, and kills before or after the chosen one."""

    def __init__(self, number: int, before: bool) -> None:
        self.number, self.before, self.targets = number, before, list[str]()
        self.rename = Path.replace

    def __call__(self, source: Path, target: Path) -> Path:
        chosen = len(self.targets) == self.number
        self.targets.append(Path(target).name)
        if chosen and self.before:
            raise Killed
        moved = self.rename(source, target)
        if chosen:
            raise Killed
        return moved


def writes_until(folder: Path, run: Path, number: int, before: bool) -> list[str]:
    """Train until the write of this number, and return the names of what was written."""
    writes = Writes(number, before)
    # not as a mock: a bound method would not be given the path that it is called on
    with mock.patch.object(Path, "replace", lambda source, target: writes(source, target)), suppress(Killed):
        train(folder, config=toy_config(**BRIEF), out=run, checkpoint_seconds=0)
    return writes.targets


def moments(folder: Path, run: Path) -> Iterator[tuple[int, bool, str]]:
    for number, name in enumerate(writes_until(folder, run, -1, before=False)):
        yield number, True, name
        yield number, False, name


@pytest.mark.slow
def test_a_run_that_ends_at_any_write_goes_on_to_the_same_result(
    unbroken: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, finished = unbroken
    expected, rows = run_contents(finished), run_log(finished)
    seen = set()
    for number, before, name in moments(folder, tmp_path / "all"):
        seen.add(name)
        run, moment = tmp_path / f"{number}-{before}", f"{'before' if before else 'after'} {number} {name}"
        assert writes_until(folder, run, number, before)[-1] == name
        train(folder, config=toy_config(**BRIEF), out=run, checkpoint_seconds=0)
        assert names(run) == RUN_FILES, moment
        assert run_contents(run) == expected, moment
        assert run_log(run) == rows, moment
    assert seen == {*RUN_FILES, "checkpoint.safetensors"}


def test_a_second_trainer_is_refused_while_the_first_one_trains(
    unbroken: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, finished = unbroken
    refusals = list[str]()

    def second(stage: str, *_: object) -> None:
        if stage == "training":
            refusals.append(refused(cli("train", folder, *QUICK, "--overwrite", "--out", tmp_path / "run")))

    train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", progress=second)
    assert len(refusals) == 2
    assert f"process {os.getpid()} is training into" in " ".join(refusals[0].split())
    assert names(tmp_path / "run") == RUN_FILES
    assert run_contents(tmp_path / "run") == run_contents(finished)


@pytest.mark.parametrize("writes", [0, 1, 4, 7, 9, 11])
def test_a_full_disk_is_named_and_costs_nothing(
    unbroken: tuple[Path, Path], tmp_path: Path, writes: int
) -> None:
    folder, finished = unbroken
    left, sync = [writes], os.fsync

    def full(descriptor: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        sync(descriptor)

    with (
        mock.patch.object(os, "fsync", full),
        pytest.raises(OutputError),
    ):
        train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", checkpoint_seconds=0)
    assert not [name for name in names(tmp_path / "run") if name.endswith(".part")]
    train(folder, config=toy_config(**BRIEF), out=tmp_path / "run")
    assert run_contents(tmp_path / "run") == run_contents(finished)


def killed_training(place: Path, kills: int) -> int:
    """Kill a training again and again until it ends with the same model; return the epochs at the last kill."""
    folder = write_feature_folder(place / "data", count=1000)
    epochs = 20 * kills
    words = [
        "train",
        folder,
        "--method",
        "csq",
        "--bits",
        "32",
        "--epochs",
        str(epochs),
        "--batch-size",
        "32",
    ]
    words += ["--hidden", "128", "--device", "cpu", "--checkpoint-seconds", "0"]
    whole, broken = place / "whole", place / "broken"
    assert cli(*words, "--out", whole).code == 0

    generator, reached = random.Random(0), 0
    for _ in range(kills):
        with started(*words, "--out", broken) as process:
            wait_for_process(process, partial(_is_past, broken, reached), "it trains")
            time.sleep(generator.uniform(0, 0.03))  # any moment of an epoch
            code = process.signal(signal.SIGKILL)
        assert code == -signal.SIGKILL, "the training was over before it could be killed"
        reached = _epochs(broken)
    assert kills <= reached < epochs

    done = cli(*words, "--out", broken)
    assert done.code == 0, done.err
    assert run_contents(broken) == run_contents(whole)
    assert run_log(broken) == run_log(whole)
    return reached


@pytest.mark.slow
def test_a_process_killed_again_and_again_ends_with_the_same_model(tmp_path: Path) -> None:
    killed_training(tmp_path, 2)


def _is_past(run: Path, epochs: int) -> bool:
    return _epochs(run) > epochs


def _epochs(run: Path) -> int:
    return len((run / "log.jsonl").read_text().splitlines()) if (run / "log.jsonl").exists() else 0
