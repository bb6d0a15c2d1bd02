"""What tests of all parts share: one thread, and a model and a run that are trained once for all."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from centerhash.data import Dataset
from centerhash.data.scenes.scenes import write_scenes
from centerhash.model import HashModel
from centerhash.networks import encoder
from centerhash.networks.backbones import Backbone
from centerhash.networks.cache import network_cache
from centerhash.networks.engines import Engine, open_engine
from centerhash.training.run import train
from tests.toys import feature_dataset, toy_config, write_feature_folder

# tables of the command line must not wrap in the middle of what a test looks for
os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = "200"


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny networks are faster on one thread, and sums have the same order on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def open_once(backbone: Backbone, engine: str, device: str | torch.device) -> Engine:
    return open_engine(backbone, engine, device, network_cache())


@pytest.fixture(scope="module")
def kept_networks() -> Iterator[None]:
    """A network is opened once for all tests of the modules that ask for this; tests/inference tests the opening."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            encoder, "open_engine", lambda backbone, engine, device, _: open_once(backbone, engine, device)
        )
        yield


@pytest.fixture(scope="session")
def toy_dataset() -> Dataset:
    """Separable features with six classes."""
    return feature_dataset()


@pytest.fixture(scope="session")
def toy_model(toy_dataset: Dataset) -> HashModel:
    """A model of the toy data set, for tests that only look at it."""
    return train(toy_dataset, config=toy_config())


@pytest.fixture(scope="session")
def feature_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of features; not to be changed."""
    return write_feature_folder(tmp_path_factory.mktemp("features") / "toy")


@pytest.fixture(scope="session")
def feature_run(feature_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the feature folder; not to be changed."""
    run = tmp_path_factory.mktemp("runs") / "features"
    train(feature_folder, config=toy_config(), out=run)
    return run


@pytest.fixture(scope="session")
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of image features for all tests, so that each picture goes through the network once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def scene_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small emoji scenes with labels.csv; not to be changed."""
    return write_scenes(tmp_path_factory.mktemp("data") / "scenes", 40, size=64)


@pytest.fixture(scope="session")
def image_run(scene_folder: Path, feature_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the scenes; not to be changed."""
    run = tmp_path_factory.mktemp("runs") / "images"
    config = toy_config(bits=32, epochs=4)
    train(scene_folder, config=config, out=run, cache=feature_cache, device="cpu")
    return run
