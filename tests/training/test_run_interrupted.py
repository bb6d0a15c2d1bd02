"""A run may stop at any moment and resumes to the same result."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
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
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A feature folder, and a run on it."""
    base = tmp_path_factory.mktemp("uninterrupted")
    folder = write_feature_folder(base / "data", count=60)
    train(folder, config=toy_config(**BRIEF), out=base / "run")
    return folder, base / "run"


def files_written(folder: Path, run: Path, last: int = -1) -> list[str]:
    """Train until the file of this number is to be put in place, and return the names of all until then."""
    targets, rename = list[str](), Path.replace

    def replace(source: Path, target: Path) -> Path:
        targets.append(Path(target).name)
        if len(targets) == last + 1:
            raise Killed
        return rename(source, target)

    with mock.patch.object(Path, "replace", replace), suppress(Killed):
        train(folder, config=toy_config(**BRIEF), out=run, checkpoint_seconds=0)
    return targets


@pytest.mark.slow
def test_end_at_any_write(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder, finished = uninterrupted
    written = files_written(folder, tmp_path / "all")
    assert set(written) == {*RUN_FILES, "checkpoint.safetensors"}
    for number, name in enumerate(written):
        run = tmp_path / str(number)
        assert files_written(folder, run, number)[-1] == name
        train(folder, config=toy_config(**BRIEF), out=run, checkpoint_seconds=0)
        assert names(run) == RUN_FILES, name
        assert run_contents(run) == run_contents(finished), name
        assert run_log(run) == run_log(finished), name


def test_second_trainer_is_rejected(uninterrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder, finished = uninterrupted
    errors = list[str]()

    def second(stage: str, *_: object) -> None:
        if stage == "training":
            errors.append(refused(cli("train", folder, *QUICK, "--overwrite", "--out", tmp_path / "run")))

    train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", progress=second)
    assert len(errors) == 2
    assert f"process {os.getpid()} is training into" in " ".join(errors[0].split())
    assert names(tmp_path / "run") == RUN_FILES
    assert run_contents(tmp_path / "run") == run_contents(finished)


@pytest.mark.parametrize("writes", [0, 4, 9])
def test_full_disk(uninterrupted: tuple[Path, Path], tmp_path: Path, writes: int) -> None:
    folder, finished = uninterrupted
    remaining, sync = [writes], os.fsync

    def full(descriptor: int) -> None:
        if not remaining[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        remaining[0] -= 1
        sync(descriptor)

    with mock.patch.object(os, "fsync", full), pytest.raises(OutputError):
        train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", checkpoint_seconds=0)
    assert not [name for name in names(tmp_path / "run") if name.endswith(".part")]
    train(folder, config=toy_config(**BRIEF), out=tmp_path / "run")
    assert run_contents(tmp_path / "run") == run_contents(finished)


def killed_training(folder: Path, kills: int) -> int:
    """Kill a training again and again until it ends with the same model; return the epochs at the last kill."""
    data, epochs = write_feature_folder(folder / "data", count=1000), 20 * kills
    words = ["train", data, "--method", "csq", "--bits", "32", "--epochs", str(epochs), "--batch-size", "32"]
    words += ["--hidden", "128", "--device", "cpu", "--checkpoint-seconds", "0"]
    uninterrupted_run, killed_run = folder / "whole", folder / "broken"
    assert cli(*words, "--out", uninterrupted_run).code == 0

    generator, reached = random.Random(0), 0
    for _ in range(kills):
        with started(*words, "--out", killed_run) as process:
            wait_for_process(process, partial(_is_past, killed_run, reached), "it trains")
            time.sleep(generator.uniform(0, 0.03))  # any moment of an epoch
            code = process.signal(signal.SIGKILL)
        assert code == -signal.SIGKILL, "the training was over before it could be killed"
        reached = _epochs(killed_run)
    assert kills <= reached < epochs

    done = cli(*words, "--out", killed_run)
    assert done.code == 0, done.err
    assert run_contents(killed_run) == run_contents(uninterrupted_run)
    assert run_log(killed_run) == run_log(uninterrupted_run)
    return reached


@pytest.mark.slow
def test_killed_process_resumes(tmp_path: Path) -> None:
    killed_training(tmp_path, 2)


def _is_past(run: Path, epochs: int) -> bool:
    return _epochs(run) > epochs


def _epochs(run: Path) -> int:
    return len((run / "log.jsonl").read_text().splitlines()) if (run / "log.jsonl").exists() else 0
