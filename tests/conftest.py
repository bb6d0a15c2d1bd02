"""What tests of all parts share: one thread, a cache, and a model and a run that are trained once for all.

Tests run beside each other in several processes (pytest-xdist). What is dear is made once: tests of one module stay in
one process, and so do all that use the same server.
"""

from __future__ import annotations

import os

# processes that run beside each other must not all take all cpu_count: read by libraries that are imported below
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import atexit
import contextlib
import functools
import gc
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# the process that hands out the tests reads this file too and runs none: what is slow to import is imported below
if TYPE_CHECKING:
    import torch

    from centerhash.data import Dataset
    from centerhash.model.model import HashModel
    from centerhash.networks.backbones import Backbone
    from centerhash.networks.engines import Engine
    from tests.webserver import FileServer

# a shell that starts us in its background lets us ignore interrupts, which children would inherit: with a handler
# of our own, they get the system's default
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# absl, which comes with others, keeps the standard error of its import, and an import of pymilvus makes it close that,
# unless it is the system's own: a test must not lose pytest's
with contextlib.suppress(ImportError), contextlib.redirect_stderr(sys.__stderr__):
    import absl.logging  # noqa: F401

# tables of the command line must not wrap in the middle of what a test looks for
os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = "200"

# never the user's own cache; the processes of one run share theirs, as users' processes do: what is in it stands under
# its content's name, and is written whole
if "PYTEST_XDIST_WORKER" not in os.environ:
    _home = tempfile.mkdtemp(prefix="centerhash-tests-")
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["CENTERHASH_CACHE"] = f"{_home}/cache"

# a busy machine is no failure of a property
settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")

# tests of one file share its fixtures, and so run in one process; these also share a server, by a part of their name
SHARED_SERVERS = {"milvus": "milvus", "serve/test_page": "server", "serve/test_process": "server"}


def group_of(test: str) -> str:
    """What runs in one process: a file, or all tests that use one server."""
    return next((group for part, group in SHARED_SERVERS.items() if part in test), test.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out groups of tests in the order in which they are collected."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process has much left when the others are done."""
    servers = set(SHARED_SERVERS.values())
    slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (group_of(item.nodeid) not in servers, group_of(item.nodeid) not in slow))


def pytest_collection_finish() -> None:
    """What was imported until now stays: looking through it for garbage again and again takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny networks are faster on one thread, and sums have the same order on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def methods_as_before() -> Iterator[None]:
    """A method that a test registers, or names by its file, is unknown to the next test of the process."""
    from tests.methods.registering import temporary_methods

    with temporary_methods():
        yield


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one of the processes makes for all of them; not to be changed."""
    place = Path(os.environ["CENTERHASH_CACHE"]).with_name("made")
    place.mkdir(exist_ok=True)
    folder, finished = place / name, place / f"{name}.finished"
    with FileLock(place / f"{name}.lock"):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            finished.touch()
    return folder


@functools.cache
def open_once(backbone: Backbone, engine: str, device: str | torch.device) -> Engine:
    from centerhash.networks.cache import default_cache
    from centerhash.networks.engines import open_engine

    return open_engine(backbone, engine, device, default_cache() / "networks")


@pytest.fixture(scope="module")
def kept_networks() -> Iterator[None]:
    """A network is opened once for all tests of modules that ask for this; networks/engines tests the opening."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "centerhash.networks.encoder.open_engine",
            lambda backbone, engine, device, _: open_once(backbone, engine, device),
        )
        yield


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A real HTTP server of files."""
    from tests.webserver import FileServer

    with FileServer() as running:
        yield running


@pytest.fixture(scope="session")
def toy_dataset() -> Dataset:
    """Separable features with six classes."""
    from tests.toys import feature_dataset

    return feature_dataset()


@pytest.fixture(scope="session")
def toy_model(toy_dataset: Dataset) -> HashModel:
    """A model of the toy data set, for tests that only look at it."""
    from centerhash.training.run import train
    from tests.toys import toy_config

    return train(toy_dataset, config=toy_config())


@pytest.fixture(scope="session")
def feature_folder() -> Path:
    """A folder of features; not to be changed."""
    from tests.toys import write_feature_folder

    return made_once("toy", write_feature_folder)


@pytest.fixture(scope="session")
def feature_run(feature_folder: Path) -> Path:
    """A finished run on the feature folder; not to be changed."""
    from centerhash.training.run import train
    from tests.toys import toy_config

    return made_once("features", lambda run: train(feature_folder, config=toy_config(), out=run))


@pytest.fixture(scope="session")
def feature_cache() -> Path:
    """One cache of image features for all tests, so that each picture goes through the network once."""
    return Path(os.environ["CENTERHASH_CACHE"])


@pytest.fixture(scope="session")
def scene_folder() -> Path:
    """Forty small pictures of drawn shapes with labels.csv; not to be changed."""
    from tests.shapes import write_shapes

    return made_once("scenes", lambda folder: write_shapes(folder, 40, size=64))


@pytest.fixture(scope="session")
def image_run(scene_folder: Path, feature_cache: Path) -> Path:
    """A finished run on the drawn shapes; not to be changed."""
    from centerhash.training.run import train
    from tests.toys import toy_config

    config = toy_config(bits=32, epochs=12)
    return made_once(
        "images", lambda run: train(scene_folder, config=config, out=run, cache=feature_cache, device="cpu")
    )
