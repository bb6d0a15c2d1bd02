"""Small data sets, small models and ways to call the command line, shared by the tests of the working line."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.data import Dataset, Splits
from centerhash.encoding.code_files import evaluate_codes_of, read_code_pair
from centerhash.evaluation import Evaluation
from centerhash.networks.head_options import HeadOptions
from centerhash.training.config import TrainConfig
from tests.forks import Fork, read

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")
WIDTH = 24  # D
RUN_FILES = [  # of a finished run, sorted
    "config.json",
    "database.npz",
    "log.jsonl",
    "model.json",
    "model.onnx",
    "model.safetensors",
    "query.npz",
    "splits.npz",
    "weights.npz",
]
PATIENCE = 300.0  # seconds until a state that does not come is a failure; far more than any needs
QUICK = ("--bits", "16", "--epochs", "2", "--batch-size", "32", "--hidden", "16", "--device", "cpu")


def separable(
    count: int = 160, seed: int = 0, most_labels: int = 3
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Features (N, D) that are the sum of their labels' own directions and a little noise; labels (N, C)."""
    generator = np.random.default_rng(seed)
    labels = np.zeros((count, len(CLASSES)), dtype=bool)
    for row in range(count):
        chosen = generator.choice(len(CLASSES), size=generator.integers(1, most_labels + 1), replace=False)
        labels[row, chosen] = True
    directions = np.linalg.qr(np.random.default_rng(99).normal(size=(WIDTH, WIDTH)))[0][: len(CLASSES)]
    features = labels @ directions * 4 + generator.normal(scale=0.05, size=(count, WIDTH))
    return features.astype(np.float32), labels


def feature_dataset(count: int = 160, seed: int = 0, most_labels: int = 3) -> Dataset:
    """The separable features as a data set: the first quarter asks, the rest trains and is searched."""
    features, labels = separable(count, seed, most_labels)
    rest = np.arange(count // 4, count)
    splits = Splits(train=rest, query=np.arange(count // 4), database=rest)
    return Dataset("toy", Path("toy"), CLASSES, labels, splits, features=features)


def write_feature_folder(folder: Path, count: int = 160, seed: int = 0) -> Path:
    """The separable features as a folder on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    features, labels = separable(count, seed)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


def toy_config(**changes: Any) -> TrainConfig:
    """A configuration that learns the separable features in well under a second."""
    head = HeadOptions(standardise=True, input_dropout=0.1, hidden=(32,), hidden_norm=True, dropout=0.1)
    settings = {"bits": 16, "epochs": 12, "batch_size": 32, "learning_rate": 0.02, "head": head}
    return TrainConfig(**{**settings, **changes})


def noise_image(size: int = 48, seed: int = 0) -> Image.Image:
    """A picture of smooth random colours, a different one per seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, size=(6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def write_images(folder: Path, count: int, size: int = 48) -> list[Path]:
    """Write `count` different PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}.png" for number in range(count)]
    for number, path in enumerate(paths):
        noise_image(size, seed=number).save(path)
    return paths


def evaluate_files(paths: Sequence[Path], **settings: Any) -> Evaluation:
    """Evaluate a run's folder, or two code files, queries then database."""
    return evaluate_codes_of(*read_code_pair(paths), **settings)


class Killed(BaseException):
    """Stands for a kill: no handler of errors may catch it."""


def names(folder: Path) -> list[str]:
    """The names of all files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def run_contents(run: Path) -> dict[str, bytes]:
    """The bytes of everything in a run but its log, which holds times."""
    return {name: (run / name).read_bytes() for name in RUN_FILES if name != "log.jsonl"}


def run_log(run: Path) -> list[dict[str, float]]:
    """The log of a run without the times."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What the command printed, as json."""
        return json.loads(self.out)

    @property
    def text(self) -> str:
        """Everything printed, with tables and line breaks reduced to single blanks."""
        marks = str.maketrans("│┃╭╮╰╯─", "       ")
        return " ".join((self.out + " " + self.err).translate(marks).split())


@functools.cache
def put_together() -> Any:
    """All commands as click wants them: typer does this for every call anew, which costs more than most calls."""
    from typer.main import get_command

    from centerhash.cli import app

    return get_command(app)


def cli(*arguments: str | Path) -> Finished:
    """Run the command line's own `main` in this process."""
    from centerhash.cli import main

    out, err = io.StringIO(), io.StringIO()
    argv = ["centerhash", *map(str, arguments)]
    code = 0
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch("typer.main.get_command", return_value=put_together()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Finished(code, out.getvalue(), err.getvalue())


def refused(done: Finished) -> str:
    """The words of a command that was refused as it should be."""
    assert done.code == 2, done
    assert "Traceback" not in done.out + done.err
    assert not done.out.strip()
    return done.err


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """The words with which a reader refuses its data."""
    with pytest.raises(DataError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def command(arguments: Sequence[str | Path]) -> list[str]:
    """The words that start the command line as a process of its own."""
    return [sys.executable, "-m", "centerhash", *map(str, arguments)]


def process_environment(**changes: str) -> dict[str, str]:
    """This environment with one thread: sums then have one order, and results are equal to the last bit."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "COLUMNS": "200", **changes}


def cli_process(*arguments: str | Path, **environment: str) -> Finished:
    """Run the command line as a real process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Fork(
            list(map(str, arguments)), out.fileno(), err.fileno(), process_environment(**environment)
        )
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        return Finished(code, read(out).decode(), read(err).decode())


def fresh_process(*arguments: str | Path, **environment: str) -> Finished:
    """Run the command line as a process that starts by itself, with all its imports."""
    return python_process("-m", "centerhash", *arguments, **environment)


def python_process(*arguments: str | Path, **environment: str) -> Finished:
    """Run Python as a process that starts by itself."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=process_environment(**environment),
        timeout=PATIENCE,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def wait_until(
    condition: Callable[[], object], words: str, pause: Callable[[], object] | None = None
) -> None:
    """Return as soon as `condition` holds; `words` say what was waited for, should it never come."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, f"never came true: {words}"
        pause() if pause else time.sleep(0.01)


def wait_for_process(process: Started, condition: Callable[[], object], words: str) -> None:
    """Return as soon as `condition` holds; a process that ends before that is a failure."""

    def holds() -> bool:
        if condition():
            return True
        code = process.process.poll()
        assert code is None, f"it ended with {code} before this came true: {words}; {process.err}"
        return False

    wait_until(holds, words)


@dataclass(frozen=True)
class Started:
    """A process that runs, and what it says about errors."""

    process: Fork | subprocess.Popen[bytes]
    errors: IO[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def err(self) -> str:
        """What it has said until now."""
        return read(self.errors).decode()

    def signal(self, number: int) -> int:
        """Send a signal, wait for its end, and return the code it ended with."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def wait(self) -> int:
        """The code it ends with."""
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def started(*arguments: str | Path, session: bool = False, **environment: str) -> Iterator[Started]:
    """Start the command line as a real process, and see to it that it is gone afterwards."""
    with tempfile.TemporaryFile() as errors, Path(os.devnull).open("wb") as nothing:
        words = list(map(str, arguments))
        process = Fork(words, nothing.fileno(), errors.fileno(), process_environment(**environment), session)
        # who waits for a moment to kill it in must not come too late on a busy machine
        os.setpriority(os.PRIO_PROCESS, process.pid, 10)
        yield from _until_gone(Started(process, errors))


@contextlib.contextmanager
def started_by(words: Sequence[str]) -> Iterator[Started]:
    """The same with any other program."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=process_environment())
        yield from _until_gone(Started(process, errors))


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _until_gone(process: Started) -> Iterator[Started]:
    try:
        yield process
    finally:
        process.process.kill()
        process.wait()
